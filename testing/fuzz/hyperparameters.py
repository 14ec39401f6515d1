"""Kind hyperparameters: values from the declarations of contracts/settings/, and files that hold none."""

import json
from random import Random
from typing import Any

from contracts.hyperparameters import Hyperparameters
from contracts.model_classes import ALIASES, MODEL_CLASSES, TWO_TEXT_CLASSES
from contracts.paths import JobPaths
from testing.fuzz import oracle, render, values
from testing.fuzz.draft import plain_draft
from testing.fuzz.outcome import ACCEPTED, REFUSED, Case, Outcome
from testing.fuzz.run_product import ended_training
from testing.fuzz.settings import Value, json_text, value_of
from testing.fuzz.tables import SMALL, Expected, predicted, prepared
from testing.jobs import CONFIGURATION

# A whole job does not change these: they need other data, other machines, a network, or hours.
_NOT_IN_WHOLE_JOBS = (
    "id_name", "text_name", "primary_text_name", "secondary_text_name", "label_name", "full_field_list",
    "cat_field_list",
    "tab_field_list", "categorical_features_to_encode", "train_filename", "val_filename", "test_filename",
    "model_class",
    "tokenizer", "primary_tokenizer", "secondary_tokenizer", "encoder_config", "num_classes", "is_binary",
    "multiclass_categories", "compile", "nproc_per_node", "strategy", "max_epochs", "imputation_dict", "risk_tables",
    "onnx_variants", "load_ckpt", "max_sen_len", "primary_max_sen_len", "secondary_max_sen_len", "early_stop_metric",
    "decision_threshold", "class_weights", "target_prior", "profile", "mlflow_tracking_uri",
)  # fmt: skip


def run(case: Case) -> Outcome:
    """Generate one configuration, and run a job with it on a plain table."""
    rng, paths = case.rng, JobPaths(case.folder / "job")
    expected = {}
    for split in ("train", "val", "test"):
        draft = plain_draft(rng, split)
        paths.channel(split).mkdir(parents=True)
        text = render.csv_text(draft, rng, delimiter=",", odd=False)
        (paths.channel(split) / "data.csv").write_text(text)
        expected[split] = Expected(list(draft.ids))
    recipe = case.recipe
    settings = {**CONFIGURATION, **SMALL, **_model_class(rng, recipe)}
    changed = _changes(rng, whole=case.whole)
    recipe += [f"{name}={str(value.content)[:60]!r}" for name, value in changed.items()]
    text = _text(settings | {name: value.content for name, value in changed.items()}, rng)
    if not case.whole and rng.random() < 0.15:
        text = _spoiled(text, rng, recipe)
        changed = {}
    paths.config.mkdir(parents=True)
    (paths.config / "hyperparameters.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    code, reached = ended_training(case, paths, whole=case.whole)
    outcome = Outcome(ACCEPTED if reached else REFUSED, recipe=recipe)
    if not reached:
        outcome.problems = oracle.refused_job_problems(paths) if code == 1 else [f"exit code {code}"]
        outcome.problems += _unnamed(paths, changed) if not outcome.problems else []
        return outcome
    outcome.problems = [
        f"{name}={str(value.content)[:60]!r} is accepted, although its declaration excludes it"
        for name, value in changed.items()
        if value.valid is False
    ]
    outcome.problems += predicted(paths, expected) if case.whole else prepared(paths, expected)
    return outcome


def _model_class(rng: Random, recipe: list[str]) -> dict[str, Any]:
    name = rng.choice((*MODEL_CLASSES, *ALIASES)) if rng.random() < 0.5 else "multimodal_bert"
    recipe.append(name)
    if ALIASES.get(name, name) in TWO_TEXT_CLASSES:
        return {"model_class": name, "text_name": None, "primary_text_name": "chat", "secondary_text_name": "color",
                "cat_field_list": []}  # fmt: skip
    return {"model_class": name, **({"text_name": None} if name == "tabular" else {})}


def _changes(rng: Random, *, whole: bool) -> dict[str, Value]:
    fields = Hyperparameters.model_fields
    names = [name for name in fields if name != "tuning" and not (whole and name in _NOT_IN_WHOLE_JOBS)]
    chosen = rng.sample(names, rng.choice((1, 1, 1, 1, 2, 4) if not whole else (2, 5, 10)))
    return {name: value_of(fields[name], rng, mild=whole) for name in chosen}


def _text(settings: dict[str, Any], rng: Random) -> str:
    entries = [f"{json.dumps(name)}: {json_text(value, rng)}" for name, value in settings.items() if value is not None]
    return "{" + ", ".join(entries) + "}"


def _spoiled(text: str, rng: Random, recipe: list[str]) -> str:
    """Return a damaged file."""
    key = json.dumps(rng.choice(sorted(Hyperparameters.model_fields)))
    way, spoiled = rng.choice(
        (
            ("cut", lambda: text[: rng.randrange(len(text))]),
            ("key twice", lambda: text[:-1] + f", {key}: 1, {key}: 2}}"),
            ("nested", lambda: text[:-1] + f", {key}: {values.json_nesting(rng)}}}"),
            ("number", lambda: text[:-1] + f", {key}: {values.json_number(rng)}}}"),
            ("unknown key", lambda: text[:-1] + f", {json.dumps(rng.choice(values.NAMES))}: 1}}"),
            ("surrogate key", lambda: text[:-1] + ', "\\ud800": 1}'),
            ("list", lambda: f"[{text}]"),
            ("mark", lambda: "\ufeff" + text),
            ("nul", lambda: text.replace(" ", "\0", 3)),
            ("empty", lambda: ""),
            ("null", lambda: "null"),
            ("comment", lambda: text + " // end"),
            ("comma", lambda: text[:-1] + ",}"),
            ("quotes", lambda: text.replace('"', "'")),
            ("long", lambda: text[:-1] + f", {key}: {json.dumps('x' * 1_000_000)}}}"),
        )
    )
    recipe.append(f"file: {way} {key if 'key' in way or way in ('nested', 'number', 'long') else ''}")
    return spoiled()


def _unnamed(paths: JobPaths, changed: dict[str, Value]) -> list[str]:
    """Return whether the message names none of the hyperparameters that exist, and no file."""
    line = paths.failure_files[0].read_text("utf-8").splitlines()[0]
    named = [name for name in Hyperparameters.model_fields if name in line]
    wrong = [name for name, value in changed.items() if value.valid is False]
    if not named and not any(name in line for name in changed) and str(paths.root) not in line:
        return [f"the cause names no hyperparameter: {line[:200]}"]
    if len(wrong) == len(changed) == 1 and wrong[0] not in line:
        return [f"the cause does not name {wrong[0]}: {line[:200]}"]
    return []
