"""What the model looks at: a column that decides is found, one that does not matter is not, and the cost is bounded."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import roc_auc_score

from container.companion.blend import Blend, BlendedCompanion
from container.companion.fit import fit_companion
from container.data.batch import PackedBatch
from container.data.records import RecordArrays
from container.data.split import PreparedSplit, pack_records
from container.evaluation.evaluate import write_evaluation
from container.evaluation.evaluation_input import Explanation, Importance
from container.models.classifier import Classifier
from container.preprocessing.prepare import prepare_data
from container.preprocessing.prepared import PreparedData
from container.preprocessing.transform import Preprocessor
from container.results import explain as module
from container.results.explain import Measured, even_sample
from container.training.train import build_model
from contracts.hyperparameter_files import cast_value, load_hyperparameters, parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from testing.evaluations import two_splits
from testing.jobs import CONFIGURATION, NO_DROPOUT, TWO_TEXTS, table, write_job
from testing.tiers import long_except

MULTICLASS = {"is_binary": False, "num_classes": 3, "multiclass_categories": [0, 1, 2]}


@dataclass(frozen=True)
class Made:
    hp: Hyperparameters
    model: Classifier
    data: PreparedData
    val: PreparedSplit
    paths: JobPaths

    def explain(
        self,
        *,
        stopped: Callable[[], bool] = lambda: False,
        seed: int = 0,
        companion: BlendedCompanion | None = None,
    ) -> Explanation:
        hp = self.hp.model_copy(update={"explain": 1000, "batch_size": 32, "seed": seed})
        of_job = (self.paths, hp, companion, torch.device("cpu"), stopped)
        return Measured(self.model, self.data, self.val, *of_job).explain()


def make(root: Path, *, steps: int, decides: str = "price", classes: int = 2, **overrides: Any) -> Made:
    """A model trained for `steps` on a table whose label follows from the column `decides` alone."""
    frames = {}
    for seed, (split, rows) in enumerate({"train": 120, "val": 100, "test": 12}.items()):
        frame = table(rows, seed=seed, classes=classes)
        noise = table(rows, seed=seed + 50, classes=classes)
        for column in ("chat", "events", "price", "color"):
            frame[column] = frame[column] if column == decides else noise[column]
        frames[split] = frame
    paths = write_job(root, overrides={**NO_DROPOUT, **overrides}, frames=frames)
    hp = load_hyperparameters(paths)
    data = prepare_data(paths, hp)
    roles = [field.role for field in hp.text_fields]
    train, val = (PreparedSplit(data.split(split), roles=roles) for split in ("train", "val"))
    model = build_model(hp, data)
    # Where the table decides, encoders stay as they are: they would learn 120 meaningless texts by heart.
    learns = [p for name, p in model.named_parameters() if decides in ("chat", "events") or "branches" not in name]
    optimizer = torch.optim.AdamW(learns, lr=3e-3)
    batch = train.pack(np.arange(len(train)))
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), batch.labels).backward()
        optimizer.step()
    return Made(hp, model.eval(), data, val, paths)


def auroc(made: Made, batch: PackedBatch) -> float:
    """The AUROC of the model on a batch."""
    with torch.no_grad():
        return roc_auc_score(batch.labels, made.model(batch).softmax(-1)[:, 1])


CASES: dict[str, dict[str, Any]] = {
    "price": {"steps": 60},
    "color": {"steps": 60, "classes": 3, **MULTICLASS},
    "chat": {"steps": 60},
    "events": {"steps": 60, **TWO_TEXTS},
}


@pytest.fixture(scope="module")
def decided_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    return cache(lambda column: make(tmp_path_factory.mktemp(column), decides=column, **CASES[column]))


@pytest.fixture(scope="module")
def by_price(decided_by: Callable[[str], Made]) -> Made:
    return decided_by("price")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "modality"),
    long_except(
        [("price", "the table")],
        [("price", "the table"), ("color", "the table"), ("chat", "text chat"), ("events", "text events")],
    ),
)
def test_the_column_and_the_modality_that_decide_come_first(
    decided_by: Callable[[str], Made], column: str, modality: str
) -> None:
    found = decided_by(column).explain()
    assert found.base > 0.7
    assert found.columns[0].name == column
    assert found.columns[0].drop > 0.2 > 5 * max(entry.drop for entry in found.columns[1:])
    assert next(entry.name for entry in found.modalities if entry.name != "all texts") == modality


@pytest.mark.slow
def test_a_column_that_the_companion_alone_reads_is_important(decided_by: Callable[[str], Made]) -> None:
    made, other = decided_by("chat"), decided_by("price")
    train = PreparedSplit(other.data.split("train"), roles=["text"]).arrays()
    by_price = fit_companion(train, other.hp.text_fields, class_weights=[1.0, 1.0], seed=0).companion
    alone, both = made.explain(), made.explain(companion=BlendedCompanion(by_price, Blend(0.0, 1.0)))
    price = [next(entry.drop for entry in found.columns if entry.name == "price") for found in (alone, both)]
    assert price[1] > 0.05 > 2 * abs(price[0])
    assert both.base != alone.base


@pytest.mark.slow
def test_every_column_that_enters_the_model_and_every_modality_is_there(decided_by: Callable[[str], Made]) -> None:
    found = decided_by("events").explain()
    assert {(entry.name, entry.kind) for entry in found.columns} == {
        ("chat", "text"), ("events", "text"), ("price", "numeric"), ("quantity", "numeric"), ("color", "categorical"),
    }  # fmt: skip
    assert {entry.name for entry in found.modalities} == {"text chat", "text events", "all texts", "the table"}


def test_a_class_without_a_table_has_no_columns_of_it(tmp_path: Path) -> None:
    found = make(tmp_path, steps=0, **{**TWO_TEXTS, "tab_field_list": [], "cat_field_list": []}).explain()
    assert {entry.name for entry in found.columns} == {"chat", "events"}
    assert {entry.name for entry in found.modalities} == {"text chat", "text events", "all texts"}


def test_a_model_of_one_column_has_nothing_to_compare(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = make(tmp_path, steps=0, model_class="bert", tab_field_list=[], cat_field_list=[]).explain()
    assert found.problem == "the model reads one column, so there is nothing to compare"
    assert "explain" not in caplog.text


def test_drops_are_those_of_dealing_the_prepared_values_anew(by_price: Made) -> None:
    found = by_price.explain(seed=3)
    positions = even_sample(by_price.val.column("label").to_numpy(), 1000, seed=3)
    batch = by_price.val.pack(positions)
    place = by_price.data.fitted.feature_columns.index("price")
    base, drops, kept = auroc(by_price, batch), [], batch.tabular[:, place].clone()
    for shuffle in range(module.SHUFFLES):
        batch.tabular[:, place] = kept[np.random.default_rng([3, shuffle]).permutation(len(kept))]
        drops.append(base - auroc(by_price, batch))
    price = next(entry for entry in found.columns if entry.name == "price")
    assert (price.drop, price.spread) == (pytest.approx(np.mean(drops)), pytest.approx(np.std(drops)))
    assert found.base == pytest.approx(base)


@pytest.mark.parametrize("model_class", ["multimodal_bert", "multimodal_cross_attn"])
def test_a_shuffled_text_counts_as_if_it_were_encoded_with_its_new_record(tmp_path: Path, model_class: str) -> None:
    made = make(tmp_path, steps=0, model_class=model_class)
    positions = even_sample(made.val.column("label").to_numpy(), 1000, seed=0)
    batch = made.val.pack(positions)
    orders = [positions[np.random.default_rng([0, k]).permutation(100)] for k in range(module.SHUFFLES)]
    shuffled = [auroc(made, replace(batch, texts=made.val.pack(order).texts)) for order in orders]
    chat = next(entry for entry in made.explain().columns if entry.name == "chat")
    assert chat.spread > 0
    assert chat.drop == pytest.approx(auroc(made, batch) - np.mean(shuffled), abs=1e-3)  # a pair or two may tie


def test_a_shuffled_one_of_joined_texts_is_joined_anew_with_the_others_of_its_record(tmp_path: Path) -> None:
    made = make(
        tmp_path, steps=0, text_name=["chat", "events"], tab_field_list=[], cat_field_list=[], model_class="bert"
    )
    positions = even_sample(made.val.column("label").to_numpy(), 1000, seed=0)
    raw = pd.read_csv(made.paths.channel("val") / "data.csv", dtype=str).iloc[positions].reset_index(drop=True)
    preprocessor = Preprocessor.load(made.data.folder)

    def auroc_of(frame: pd.DataFrame) -> float:
        records = RecordArrays.from_batch(preprocessor.transform(pa.Table.from_pandas(frame)).batch, ["text"])
        return auroc(made, pack_records(records.take(np.arange(len(frame)))))

    orders = [np.random.default_rng([0, k]).permutation(len(raw)) for k in range(module.SHUFFLES)]
    for name in ("chat", "events"):
        shuffled = [auroc_of(raw.assign(**{name: raw[name].to_numpy()[order]})) for order in orders]
        found = next(entry for entry in made.explain().columns if entry.name == name)
        assert found.drop == pytest.approx(auroc_of(raw) - np.mean(shuffled), abs=1e-3)  # a pair or two may tie


def test_the_importance_of_the_table_is_measured_with_imputed_values(by_price: Made) -> None:
    batch = by_price.val.pack(even_sample(by_price.val.column("label").to_numpy(), 1000, seed=0))
    base, fitted = auroc(by_price, batch), by_price.data.fitted
    batch.tabular[:] = torch.tensor([*fitted.imputation.values(), fitted.risk_tables["color"].values[-1, 0]])
    without = auroc(by_price, batch)
    found = next(entry for entry in by_price.explain().modalities if entry.name == "the table")
    assert found.drop == pytest.approx(base - without, abs=1e-3)  # a pair or two of 2,500 may be tied but for rounding


def test_two_columns_are_shuffled_together(by_price: Made) -> None:
    found = by_price.explain(seed=3)
    batch = by_price.val.pack(even_sample(by_price.val.column("label").to_numpy(), 1000, seed=3))
    first, second = (entry.name for entry in found.columns[:2])
    assert found.pair is not None
    assert found.pair.name == f"{first} and {second}"
    places = [by_price.data.fitted.feature_columns.index(name) for name in ("price", "quantity")]
    base, drops, kept = auroc(by_price, batch), [], batch.tabular.clone()
    for shuffle in range(module.SHUFFLES):
        batch.tabular[:] = kept
        batch.tabular[:, places] = kept[np.random.default_rng([3, shuffle]).permutation(len(kept))][:, places]
        drops.append(base - auroc(by_price, batch))
    assert {first, second} == {"price", "quantity"}
    assert found.pair.drop == pytest.approx(np.mean(drops))


def test_a_modality_has_an_interval_of_its_drop(by_price: Made) -> None:
    table, *_, text = by_price.explain().modalities
    assert table.interval is not None
    assert table.interval[0] < table.drop < table.interval[1]
    assert text.interval is None or text.interval[0] <= text.drop <= text.interval[1]


def test_the_same_seed_gives_the_same_and_the_model_is_left_as_it_was(by_price: Made) -> None:
    first, second = by_price.explain(), by_price.explain()
    assert (first.columns, first.modalities) == (second.columns, second.modalities)
    assert by_price.explain(seed=1).columns != first.columns


def tokens_of_passes(made: Made) -> tuple[Explanation, list[int]]:
    tokens = []
    hook = made.model.branches["text"].encoder.register_forward_hook(
        lambda _, given, __: tokens.append(len(given[0].tokens))
    )
    explanation = made.explain()
    hook.remove()
    return explanation, tokens


def test_max_tokens_per_batch_limits_a_pass_of_the_encoders_and_changes_no_score(by_price: Made) -> None:
    most = int(by_price.val.token_counts(np.arange(100)).max())
    limited = replace(by_price, hp=by_price.hp.model_copy(update={"max_tokens_per_batch": most}))
    explanation, tokens = tokens_of_passes(limited)
    whole = by_price.explain()
    assert max(tokens) <= most
    assert (explanation.base, explanation.records) == (pytest.approx(whole.base), whole.records)
    for found, expected in ((explanation.columns, whole.columns), (explanation.modalities, whole.modalities)):
        drops = {each.name: each.drop for each in expected}
        assert {each.name: each.drop for each in found} == pytest.approx(drops, abs=1e-3)  # ranks of equal scores


def test_each_text_is_encoded_once(by_price: Made) -> None:
    _, tokens = tokens_of_passes(by_price)
    once = sum(by_price.val.token_counts(np.arange(100)))
    first = once * 0.37  # one warms up; how long they take is measured on the first 4, then on the first 32
    empty = 2
    assert once < sum(tokens) < once + 2 * first + empty


def test_fewer_records_are_used_where_they_would_take_too_long(
    by_price: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SECONDS", 1e-9)
    caplog.set_level("INFO")
    assert by_price.explain().records == 64
    assert "100 records would take more than" in caplog.text
    assert re.search(r"explained in \d+\.\d s: 4 columns shuffled 3 times over 64 val records", caplog.text)


def test_no_minutes_are_spent_on_an_explanation(
    by_price: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LONGEST", 1e-9)
    monkeypatch.setattr(module, "SECONDS", 1e-9)
    found = by_price.explain()
    assert re.fullmatch(r"64 val records would take about \d+ minutes here", found.problem)
    assert found.problem in caplog.text
    assert found.columns == ()


def test_an_error_costs_the_explanation_and_not_the_job(
    by_price: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Measured, "importance", fail)
    assert by_price.explain().problem == "RuntimeError: out of memory"
    assert "explain: none, because of RuntimeError: out of memory" in caplog.text


def test_a_job_that_is_asked_to_stop_gives_the_explanation_up(by_price: Made) -> None:
    answers = iter([False, False, True])
    found = by_price.explain(stopped=lambda: next(answers))
    assert found.problem == "the job was requested to stop"


@pytest.mark.parametrize(
    ("label", "problem"),
    [("yes", "all 30 labelled records are of class yes"), (None, "no val record has a label")],
)
def test_a_val_without_both_classes_says_so(tmp_path: Path, label: str | None, problem: str) -> None:
    named = {split: table(60, seed=seed) for seed, split in enumerate(("train", "test"))}
    frames = {split: frame.assign(label=frame.label.map({0: "no", 1: "yes"})) for split, frame in named.items()}
    frames["val"] = table(30, seed=1).assign(label=label)
    paths = write_job(tmp_path, overrides=NO_DROPOUT, frames=frames)
    hp = load_hyperparameters(paths)
    data = prepare_data(paths, hp)
    made = Made(hp, build_model(hp, data).eval(), data, PreparedSplit(data.split("val"), roles=["text"]), paths)
    found = made.explain()
    assert found.problem.startswith(problem)
    assert found.columns == ()


def test_any_start_of_the_sample_is_as_even_as_it_can_be() -> None:
    labels = np.array([0] * 90 + [1] * 8 + [-100] * 20)
    order = even_sample(labels, 40, seed=0)
    assert np.bincount(labels[order[:10]]).tolist() == [5, 5]
    assert np.bincount(labels[order]).tolist() == [32, 8]
    assert len(set(order.tolist())) == 40


@pytest.mark.parametrize(("given", "expected"), [(True, 500), ("true", 500), (False, 0), ("false", 0), ("80", 80)])
def test_explain_is_a_switch_or_a_number_of_records(given: Any, expected: int) -> None:
    value = cast_value("explain", given)
    assert parse_hyperparameters({**CONFIGURATION, "explain": value}).explain == expected


def explanation(**replaced: Any) -> Explanation:
    columns = (Importance("price", "numeric", 0.41, 0.02), Importance("<b>chat</b>", "text", -0.001, 0.001))
    modalities = (
        Importance("the table", "modality", 0.42, interval=(0.4, 0.44)),
        Importance("text chat", "modality", 0.0, interval=(-0.01, 0.01)),
    )
    fields = {"base": 0.93, "records": 300, "shuffles": 3, "columns": columns, "modalities": modalities}
    return Explanation("auroc", seconds=1.0, **{**fields, **replaced})


def test_the_report_and_the_metrics_have_it(tmp_path: Path) -> None:
    made = two_splits()
    object.__setattr__(made, "explanation", explanation())
    written = write_evaluation(tmp_path, made)["explanation"]
    assert written["columns"][0] == {"name": "price", "kind": "numeric", "drop": 0.41, "spread": 0.02, "interval": None}
    page = (tmp_path / "report.html").read_text()
    assert "<b>chat" not in page
    assert "leakage first: the model depends almost only on price: when shuffled, AUROC falls from 0.930 to 0" in page
    assert "AUROC on val does not clearly decrease without text chat" in page
    assert page.count("decrease in AUROC") == 3  # two charts and the table


def test_the_report_says_why_there_is_none_and_has_no_section_without_one(tmp_path: Path) -> None:
    made = two_splits()
    write_evaluation(tmp_path, made)
    assert "Feature importance" not in (tmp_path / "report.html").read_text()
    object.__setattr__(made, "explanation", explanation(base=None, columns=(), modalities=(), problem="too late"))
    write_evaluation(tmp_path, made)
    assert "Importance was not measured: too late" in (tmp_path / "report.html").read_text()
