"""Kind steps: settings, predictions and configurations of the pipeline's steps, and files that describe hosts."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import yaml

from container.job.failure import Failure
from contracts.artifacts import USE_PRECOMPUTED_IMPUTATION, USE_PRECOMPUTED_RISK_TABLES
from contracts.errors import ContractError
from contracts.paths import JobPaths
from contracts.steps import DATA_LOADING, MODEL_METRICS, PACKAGE, PAYLOAD, TABULAR_PREPROCESSING
from pipeline.config_file import load_config
from pipeline.plan import make_plan
from testing.fuzz import oracle, render, values
from testing.fuzz.draft import CELL_MUTATIONS, Draft, change_names, plain_draft, raw_quotes
from testing.fuzz.outcome import ACCEPTED, REFUSED, Case, Outcome
from testing.fuzz.run_product import ended_step, ended_training, environment
from testing.fuzz.settings import value_of
from testing.fuzz.tables import SMALL, Expected, prepared
from testing.jobs import REPOSITORY, write_hyperparameters


def run(case: Case) -> Outcome:
    """Generate one input of a step, of a pipeline or of a job's host, and run it."""
    ways = (_metrics, _metrics, _metrics, _load_data, _preprocess, _pipeline, _pipeline, _host, _host)
    return case.rng.choice(ways)(case) if case.rng.random() > 0.03 else _payload(case)


def _settings(contract: Any, rng: Random, recipe: list[str], *, changes: int) -> dict[str, str]:
    """Return some environment variables of a step."""
    fields = contract.settings.model_fields
    chosen = {}
    for name in rng.sample(sorted(fields), min(changes, len(fields))):
        value = value_of(fields[name], rng).content
        text = value if isinstance(value, str) else json.dumps(value)
        chosen[name.upper()] = text.encode("utf-8", "replace").decode()[:50_000]
        recipe.append(f"{name.upper()}={text[:60]!r}")
    return chosen


def _ended(
    case: Case, command: str, contract: Any, settings: dict[str, str], recipe: list[str], *arguments: str
) -> Outcome:
    root = case.folder / "job"
    recipe.insert(0, command)
    code = ended_step(case, command, settings, *arguments)
    outcome = Outcome(ACCEPTED if code == 0 else REFUSED, recipe=recipe)
    if code != 0:
        folders = [folder.path(root) for folder in contract.outputs if folder.name != "processed_data"]
        message = root / "output" / "message"
        outcome.problems = oracle.refused_step_problems(message, folders) if code == 1 else [f"exit code {code}"]
        return outcome
    for folder in contract.outputs:
        for path in folder.path(root).rglob("*.json"):
            try:
                json.loads(path.read_text("utf-8"), parse_constant=_not_json)
            except ValueError as error:
                outcome.problems.append(f"{path.name} is not JSON: {error}")
    return outcome


def _not_json(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _metrics(case: Case) -> Outcome:
    """Compute metrics of mutated predictions."""
    rng, root, recipe = case.rng, case.folder / "job", case.recipe
    folder = MODEL_METRICS.input("eval_output").path(root)
    folder.mkdir(parents=True)
    suffix = rng.choice(("csv", "csv", "tsv", "json", "jsonl", "parquet"))
    changed = rng.choice(("val", "test", "none"))
    recipe.append(f"{suffix}, {changed} changed")
    for split in ("val", "test"):
        draft = _predictions(rng, split)
        ways = (
            rng.choices(("cells", "cells", "names", "form", "damage", "raw"), k=rng.choice((1, 1, 2)))
            if split == changed
            else []
        )
        for way in ways:
            if way in ("cells", "names", "raw"):
                {"cells": rng.choice(CELL_MUTATIONS), "names": change_names, "raw": raw_quotes}[way](draft, rng)
        data = _bytes(draft, rng, suffix, odd="form" in ways)
        if "damage" in ways:
            data = render.damage(data, rng, draft.recipe)
        (folder / f"{split}_predictions.{suffix}").write_bytes(data)
        recipe += [f"{split}: {step}" for step in draft.recipe]
    settings = {"ID_FIELD": "order_id", "LABEL_FIELD": "label", "GENERATE_PLOTS": "false"}
    settings |= _settings(MODEL_METRICS, rng, recipe, changes=rng.choice((0, 0, 1, 3)))
    return _ended(case, "metrics", MODEL_METRICS, settings, recipe)


def _predictions(rng: Random, split: str) -> Draft:
    """Return predictions; the mutations of other tables find their columns at the places of price and quantity."""
    draft = plain_draft(rng, split)
    first, second = draft.place("price"), draft.place("quantity")
    for row in draft.rows:
        score = rng.choice((0.0, 1.0, 0.5, rng.random(), rng.random()))
        row[first], row[second] = repr(1 - score), repr(score)
    draft.names[first], draft.names[second] = "prob_class_0", "prob_class_1"
    return draft


def _bytes(draft: Draft, rng: Random, suffix: str, *, odd: bool) -> bytes:
    if suffix == "parquet":
        return render.parquet(draft, rng, odd=odd)[0]
    if suffix in ("json", "jsonl"):
        return render.json_text(draft, rng, lines=suffix == "jsonl", odd=odd).encode("utf-8", "surrogatepass")
    return render.csv_text(draft, rng, delimiter=render.DELIMITERS[suffix], odd=odd).encode("utf-8", "surrogatepass")


def _load_data(case: Case) -> Outcome:
    recipe = case.recipe
    settings = _settings(DATA_LOADING, case.rng, recipe, changes=case.rng.choice((1, 2, 4)))
    if case.rng.random() < 0.7:
        _write(case, DATA_LOADING.input("input_data").path(case.folder / "job"), "data.csv")
    elif len(settings.get("GENERATE_ROWS", "").strip()) > 4:
        settings["GENERATE_ROWS"] = "20"  # millions of rows are no finding
    return _ended(case, "load-data", DATA_LOADING, settings, recipe)


def _preprocess(case: Case) -> Outcome:
    rng, recipe = case.rng, case.recipe
    folder = TABULAR_PREPROCESSING.input("DATA").path(case.folder / "job")
    _write(case, folder, "data.csv")
    if rng.random() < 0.3:
        _signature(TABULAR_PREPROCESSING.input("SIGNATURE").path(case.folder / "job"), rng, recipe)
    settings = {"LABEL_FIELD": "label", "ID_FIELD": "order_id"}
    settings |= _settings(TABULAR_PREPROCESSING, rng, recipe, changes=rng.choice((1, 2, 4)))
    job_type = rng.choice(("training", "testing"))
    return _ended(case, "preprocess", TABULAR_PREPROCESSING, settings, recipe, "--job_type", job_type)


def _signature(folder: Path, rng: Random, recipe: list[str]) -> None:
    folder.mkdir(parents=True)
    text = rng.choice(
        ('["order_id", "chat", "price", "quantity", "color", "label"]', "order_id,chat,price,quantity,color,label",
        "[]", "{}",
         "[1]", '["a", "a"]', '["\\ud800"]', "a", "\0", "a\n\nb", '["order_id"', "[" * 50_000, '[""]', "order_id",
         '"a",b',
         "\ufeffa,b", "[null]", '"a')
    )  # fmt: skip
    recipe.append(f"signature {text[:60]!r}")
    (folder / "signature.json").write_text(text)


def _write(case: Case, folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    draft = plain_draft(case.rng, "train")
    (folder / name).write_text(render.csv_text(draft, case.rng, delimiter=",", odd=False))


def _payload(case: Case) -> Outcome:
    """Check a good package with odd settings."""
    rng, root, recipe = case.rng, case.folder / "job", case.recipe
    shutil.copytree(case.model, PACKAGE.input("model_input").path(root))
    code = ended_step(case, "package", {})
    assert code == 0, "the model is good"
    package = PACKAGE.output("packaged_model").path(root)
    target = PAYLOAD.input("model_input").path(root)
    shutil.rmtree(target)
    package.rename(target)
    return _ended(case, "payload", PAYLOAD, _settings(PAYLOAD, rng, recipe, changes=2), recipe)


def _pipeline(case: Case) -> Outcome:
    """Read a mutated configuration of a pipeline, and plan its steps."""
    rng, recipe = case.rng, case.recipe
    source = REPOSITORY / "examples" / rng.choice(("pipeline.yaml", "pipeline.yaml", "pipeline_aws.yaml"))
    recipe.append(source.name)
    text = source.read_text()
    if rng.random() < 0.6:
        content = yaml.safe_load(text)
        _change_tree(content, rng, recipe)
        text = yaml.safe_dump(content, allow_unicode=rng.random() < 0.5)
    else:
        text = _spoiled_yaml(text, rng, recipe)
    path = case.folder / "job" / "input" / "pipeline.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text, errors="surrogatepass")
    case.begin()
    try:
        config = load_config(path)
        make_plan(config, config.inputs)
    except ContractError as error:
        problems = oracle.message_problems(Failure.from_exception(error).text())
        return Outcome(REFUSED, problems, recipe)
    return Outcome(ACCEPTED, recipe=recipe)


def _change_tree(content: Any, rng: Random, recipe: list[str]) -> None:
    parent, keys = content, []
    while True:
        key = rng.choice(sorted(parent, key=str)) if isinstance(parent, dict) else rng.randrange(len(parent))
        keys.append(str(key))
        inner = parent[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.3:
            break
        parent = inner
    new: Any = rng.choice(
        (None, [], {}, "", "x", 0, -1, 10**30, 1e300, True, [[]], {"": None}, {1: 2}, "é", ["a", 1], float("nan"),
        "1", "s3://",
         "x" * 10_000, {"price": 1})
    )  # fmt: skip
    recipe.append(f"{'.'.join(keys)} = {str(new)[:40]!r}")
    if rng.random() < 0.2 and isinstance(parent, dict):
        parent[rng.choice((1, None, "", "x", True, "naem"))] = new
    else:
        parent[key] = new


def _spoiled_yaml(text: str, rng: Random, recipe: list[str]) -> str:
    way, spoiled = rng.choice(
        (
            ("key twice", text + "\nname: other\n"),
            ("tag", text.replace("claims", "!!python/object/apply:os.system ['false']", 1)),
            ("anchor", "a: &a [x]\nb: [*a, *a]\n" + text),
            (
                "bombs",
                "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b]\n" + text,
            ),
            ("itself", "a: &a [*a]\n" + text),
            ("tab", text.replace("  ", "\t", 1)),
            ("nul", text + "\0"),
            ("cut", text[: rng.randrange(len(text))]),
            ("list", "- a\n- b\n"),
            ("two", text + "\n---\n" + text),
            ("empty", ""),
            ("nested", "name: " + "[" * 5000),
            ("number", text.replace("claims", "9" * 5000, 1)),
            ("date", text.replace("claims", "2026-01-01", 1)),
            ("bad date", text.replace("claims", "2026-13-41", 1)),
            ("base 60", text.replace("0.85", "1:30:00", 1)),
            ("json", json.dumps(yaml.safe_load(text))),
            ("surrogate", text.replace("claims", '"\\ud800"', 1)),
            ("mark", "\ufeff" + text),
            ("file", text + "\nhyperparameters_file: /etc\n"),
        )
    )
    recipe.append(f"file: {way}")
    return spoiled


def _host(case: Case) -> Outcome:
    """Start a job with odd files of the service, precomputed artifacts and variables."""
    rng, paths, recipe = case.rng, JobPaths(case.folder / "job"), case.recipe
    expected = {}
    for split in ("train", "val", "test"):
        draft = plain_draft(rng, split)
        paths.channel(split).mkdir(parents=True)
        (paths.channel(split) / "data.csv").write_text(render.csv_text(draft, rng, delimiter=",", odd=False))
        expected[split] = Expected(list(draft.ids))
    write_hyperparameters(paths, dict(SMALL))
    variables = {}
    way = rng.choice(("config", "config", "artifacts", "artifacts"))
    if way == "config":
        name, text = rng.choice(_CONFIGS)
        (paths.config / name).write_text(text)
        recipe.append(f"{name}: {text[:100]}")
    else:
        name, flag = rng.choice(
            (("impute_dict", USE_PRECOMPUTED_IMPUTATION), ("risk_table_map", USE_PRECOMPUTED_RISK_TABLES))
        )
        text = rng.choice(_ARTIFACTS)
        variables[flag] = rng.choice(("true", "true", "TRUE", "1", "maybe"))
        paths.precomputed_artifacts.mkdir(parents=True)
        name = rng.choice((f"{name}.json", f"{name}.json", f"{name}.pkl", "selected_features.json"))
        (paths.precomputed_artifacts / name).write_text(text)
        recipe.append(f"{flag}={variables[flag]}, {name}: {text[:100]}")
    with environment(variables):
        code, reached = ended_training(case, paths, whole=False)
    outcome = Outcome(ACCEPTED if reached else REFUSED, recipe=recipe)
    if reached:
        outcome.problems = prepared(paths, expected)
    elif code == 1:
        outcome.problems = oracle.refused_job_problems(paths)
    elif code != 0:
        outcome.problems = [f"exit code {code}"]
    return outcome


_ONE_HOST = '"current_host": "algo-1", "hosts": ["algo-1"]'
_CONFIGS = [
    *(("resourceconfig.json", text) for text in (
        "", "{", "[]", "null", "{}", "{" + _ONE_HOST + "}", '{"current_host": "algo-2", "hosts": ["algo-1"]}',
        '{"current_host": 1, "hosts": "algo-1"}', '{"current_host": "algo-1", "hosts": []}', '{"hosts": ["algo-1"]}',
        '{"current_host": "algo-1", "hosts": ["algo-1", "algo-1"]}', '{"current_host": "algo-1", "hosts": [null]}',
        "{" + _ONE_HOST + ', "instance_groups": []}', "{" + _ONE_HOST + ', "instance_groups": [{"hosts": 1}]}',
        "{" + _ONE_HOST + ', "instance_groups": {"a": 1}}', "{" + _ONE_HOST + ', "network_interface_name": 5}',
        "[" * 100_000, "9" * 5000, '{"current_host": "\\ud800", "hosts": ["\\ud800"]}', "\ufeff{" + _ONE_HOST + "}",
    )),
    *(("inputdataconfig.json", text) for text in (
        "", "{", "[]", "null", "{}", '{"train": null}', '{"train": []}', '{"train": {"TrainingInputMode": "Pipe"}}',
        '{"train": {"S3DistributionType": 1}}', '{"train": {"S3DistributionType": "ShardedByS3Key"}}',
        '{"train": "File"}',
        '{"train": {"RecordWrapperType": "RecordIO"}}', '{"train": {"TrainingInputMode": ["File"]}}', "[" * 100_000,
        '{"nothing": {}}', '{"train": {"ContentType": 5, "TrainingInputMode": "FastFile"}}',
    )),
]  # fmt: skip
_ARTIFACTS = (
    "", "{", "[]", "null", "1", "{}", '{"price": 1, "quantity": 2}', '{"price": "x", "quantity": 2}',
    '{"price": NaN, "quantity": 2}',
    '{"price": 1e400, "quantity": 2}', '{"price": null, "quantity": 2}', '{"price": [1], "quantity": 2}',
    '{"price": true, "quantity": 0}',
    '{"price": ' + "9" * 5000 + ', "quantity": 2}', '{"price": 1, "price": 2, "quantity": 2}',
    '{"\\ud800": 1}', "[" * 100_000,
    '{"color": {"bins": {"red": 0.5}, "default_bin": 0.1}}', '{"color": {"bins": {"red": "x"}, "default_bin": 0.1}}',
    '{"color": {"bins": [], "default_bin": 0.1}}', '{"color": {"bins": {"red": 5}, "default_bin": -1}}',
    '{"color": {}}',
    '{"color": {"bins": {"red": [0.5, 0.5]}, "default_bin": [0.5, 0.5]}}',
    '{"color": {"bins": {"red": NaN}, "default_bin": 0}}',
    '["price"]', '["price", "price"]', '["nothing"]', '[["price"]]', "\x80\x04K\x01.", "cos\nsystem\n(S'false'\ntR.",
    "(", "\x80\x05.",
    *(json.dumps(text) for text in values.SURROGATES),
)  # fmt: skip
