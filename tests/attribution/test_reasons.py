"""Predictor.explain: contributions of the calibrated, blended model, from ONNX Runtime alone."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from container.decision.calibrators import Isotonic, RisingLine, Temperature
from container.decision.decision import Decision, PriorShift
from container.predictor import Predictor
from contracts import artifacts
from contracts.errors import ContractError
from contracts.paths import JobPaths
from testing.exported_models import linear_model, random_model
from testing.jobs import run_python
from testing.jobs import table as job_table
from testing.table_jobs import table

RECORDS = table(8, start=500).drop_columns(["id", "label"]).to_pylist()
LINE = RisingLine((-2.0, 0.0, 3.0), (0.1, 0.4, 0.9))
DECISIONS = {
    "temperature": Decision("temperature", Temperature(1.7)),
    "isotonic": Decision("isotonic", Isotonic((LINE,)), prior=PriorShift(0.5, 0.2)),
    "isotonic, three classes": Decision("isotonic", Isotonic((LINE,) * 3)),
}


def logits(probabilities: np.ndarray, k: int) -> np.ndarray:
    """The logit of class k, precise near 0 and 1. [N, K] -> [N]"""
    return np.log(probabilities[:, k]) - np.log(np.delete(probabilities, k, axis=1).sum(axis=1))


def total(reasons: dict[str, Any]) -> float:
    return reasons["base"] + sum(each["contribution"] for each in reasons["contributions"]) + reasons.get("rest", 0)


def by_part(reasons: dict[str, Any]) -> dict[str, float]:
    return {each["part"]: each["contribution"] for each in reasons["contributions"]}


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = linear_model(tmp_path_factory.mktemp("linear"), np.array([0.005, -2.0, 3.0]), of_tokens=0.25, bias=-1.0)
    return Predictor.load(folder)


def test_the_contributions_of_a_linear_model_are_its_terms(linear: Predictor) -> None:
    prepared = linear.prepare(table(8, start=500))
    nothing = linear.prepare(table(1, text=[None], x=[None], y=[None], c=[None]))
    terms = (prepared.tabular - nothing.tabular[0]) * [0.005, -2.0, 3.0]
    for i, found in enumerate(linear.explain(RECORDS)):
        words = 0.25 * (prepared.texts[0].chunks(i).sum() - nothing.texts[0].chunks(0).sum())
        expected = dict(zip(("x", "y", "c"), terms[i].tolist())) | {"text": words}
        assert by_part(found) == pytest.approx(expected, abs=1e-5)


def test_the_words_of_a_linear_model_share_the_contribution_of_the_text(linear: Predictor) -> None:
    record = {"text": "good shirt late parcel", "x": 1.0, "y": 2, "c": "a"}
    (columns,), (words,) = linear.explain([record]), linear.explain([record], level="word")
    expected = {f"text[{i}]": by_part(columns)["text"] / 4 for i in range(4)}
    assert {name: value for name, value in by_part(words).items() if "[" in name} == pytest.approx(expected, abs=1e-5)


def test_missing_values_contribute_exactly_nothing(linear: Predictor) -> None:
    (found,) = linear.explain([{"text": None, "x": 3.0, "y": None, "c": None}])
    assert {name for name, value in by_part(found).items() if value == 0} == {"text", "y", "c"}


def test_the_largest_contributions_come_first_and_the_rest_is_summed(linear: Predictor) -> None:
    (every,), (top,) = linear.explain(RECORDS[:1]), linear.explain(RECORDS[:1], top=1)
    sizes = [abs(value) for value in by_part(every).values()]
    assert sizes == sorted(sizes, reverse=True)
    assert top["contributions"] == every["contributions"][:1]
    assert total(top) == pytest.approx(every["logit"])


def test_class_0_can_be_explained_in_place_of_class_1(linear: Predictor) -> None:
    (one,), (zero,) = linear.explain(RECORDS[:1]), linear.explain(RECORDS[:1], classes=[0])
    assert (one["class"], zero["class"]) == (1, 0)
    assert by_part(zero) == pytest.approx({name: -value for name, value in by_part(one).items()})


@pytest.mark.parametrize(("classes", "message"), [([0, 1], "2 for 1 records"), ([7], "7 is not known")])
def test_classes_that_do_not_fit_are_named(linear: Predictor, classes: list[int], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        linear.explain(RECORDS[:1], classes=classes)


def test_no_records_have_no_reasons(linear: Predictor) -> None:
    assert linear.explain([]) == []


def test_the_values_of_a_record_can_be_written_as_json(linear: Predictor) -> None:
    found = linear.explain(table(2, start=500).to_pandas())
    assert {type(each["value"]) for reasons in found for each in reasons["contributions"]} <= {
        str,
        int,
        float,
        type(None),
    }


def test_a_text_of_too_many_words_is_refused_before_it_is_prepared(
    linear: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "prepare", None)
    with pytest.raises(ContractError, match="more than 256 parts at level 'word'"):
        linear.explain([{"text": "late " * 800_000}], level="word")


def test_a_model_without_a_head_is_to_be_exported_again(linear: Predictor, tmp_path: Path) -> None:
    folder = copytree(linear._onnx._head_file.parent, tmp_path / "model")
    (folder / artifacts.head_file(None)).unlink()
    with pytest.raises(ContractError, match=r"(?s)model\.head\.onnx: is missing.*Export it again"):
        Predictor.load(folder).explain(RECORDS)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("temperature", {"tab_field_list": [], "cat_field_list": []}),
    "lstm": ("isotonic", {}),
    "multimodal_cnn": ("temperature", {}),
    "multimodal_gate_fusion": ("isotonic", {}),
    "multimodal_moe": ("temperature", {"category_embedding_dim": 2}),
    "multimodal_cross_attn": ("isotonic, three classes", {}),
    "trimodal_bert": ("temperature", {}),
    "trimodal_gate_fusion": ("isotonic", {}),
    "trimodal_cross_attn": ("isotonic, three classes", {}),
}


@pytest.fixture(scope="module")
def random_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Predictor]:
    def load(model_class: str) -> Predictor:
        calibration, given = CASES[model_class]
        if "three" in calibration:
            given = {**given, "is_binary": False, "num_classes": 3, "multiclass_categories": [0, 1, 2]}
        if model_class.startswith("tri"):
            given = {**given, "text_name": None, "primary_text_name": "text", "secondary_text_name": "other"}
        folder = tmp_path_factory.mktemp(model_class)
        return Predictor.load(random_model(folder, DECISIONS[calibration], model_class=model_class, **given))

    return load


@pytest.mark.slow
@pytest.mark.parametrize("model_class", CASES)
def test_base_and_contributions_add_up_to_the_logit_of_the_prediction(
    random_models: Callable[[str], Predictor], model_class: str
) -> None:
    predictor = random_models(model_class)
    records = [{**record, "other": "thank you. late parcel"} for record in RECORDS]
    probabilities = predictor.predict(records)
    for level in ("column", "text", "word"):
        for i, found in enumerate(predictor.explain(records, level=level)):
            decided = int(probabilities[i].argmax())
            k = 1 if len(predictor.class_labels) == 2 else decided
            assert found["class"] == predictor.class_labels[k]
            assert found["logit"] == pytest.approx(logits(probabilities[[i]], k)[0], abs=1e-4)
            assert total(found) == pytest.approx(found["logit"], abs=1e-6)
    assert max(abs(value) for value in by_part(predictor.explain(records[1:2])[0]).values()) > 1e-3


def enumerated(predictor: Predictor, record: dict[str, Any], pieces: dict[str, list[str]]) -> dict[str, float]:
    """The Shapley values of class 1's logit by the definition, from predictions of every coalition of the parts."""
    parts = [(c, i) for c in pieces for i in range(len(pieces[c]))]
    parts += [(c, -1) for c in record if c not in pieces]
    coalitions = list(product([False, True], repeat=len(parts)))
    made = []
    for kept in coalitions:
        present = {part for part, is_in in zip(parts, kept) if is_in}
        made.append(
            {
                c: (record[c] if (c, -1) in present else None)
                if c not in pieces
                else "".join(p for i, p in enumerate(pieces[c]) if (c, i) in present) or None
                for c in record
            }
        )
    values = dict(zip(coalitions, logits(predictor.predict(made), 1).tolist()))
    found = {}
    for i, (column, piece) in enumerate(parts):
        gains: dict[int, list[float]] = {}
        for kept in coalitions:
            if not kept[i]:
                gains.setdefault(sum(kept), []).append(values[(*kept[:i], True, *kept[i + 1 :])] - values[kept])
        found[column if piece < 0 else f"{column}[{piece}]"] = float(np.mean([np.mean(g) for g in gains.values()]))
    return found


@pytest.mark.slow
def test_exact_values_are_those_of_all_coalitions_of_predict(calibrated_job: JobPaths) -> None:
    predictor = Predictor.load(calibrated_job.model)  # with a companion, isotonic calibration and a prior correction
    columns = list(predictor.feature_inputs)
    for record in job_table(12, seed=5)[columns].replace({np.nan: None}).to_dict("records"):
        (found,) = predictor.explain([record])
        assert by_part(found) == pytest.approx(enumerated(predictor, record, {}), abs=1e-4)


@pytest.mark.slow
def test_exact_values_of_ten_parts_are_those_of_1024_predictions(calibrated_job: JobPaths) -> None:
    predictor = Predictor.load(calibrated_job.model)
    pieces = [
        "hello there. ",
        "great item! ",
        "please answer. ",
        "very happy. ",
        "broken item. ",
        "thank you. ",
        "bye.",
    ]
    record = {"chat": "".join(pieces), "price": 31.0, "quantity": 2, "color": "red"}
    (found,) = predictor.explain([record], level="text")
    assert len(found["contributions"]) == 10
    assert by_part(found) == pytest.approx(enumerated(predictor, record, {"chat": pieces}), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["column", "text"])
def test_every_text_is_encoded_once(calibrated_job: JobPaths, monkeypatch: pytest.MonkeyPatch, level: Any) -> None:
    predictor = Predictor.load(calibrated_job.model)
    encode, encoded = predictor._onnx.features, []
    monkeypatch.setattr(predictor._onnx, "features", lambda *given: encoded.append(len(given[1])) or encode(*given))
    predictor.explain([{"chat": "very happy. broken item.", "price": 31.0, "quantity": 2, "color": "red"}], level=level)
    assert sum(encoded) == (2 if level == "column" else 4)  # of 16 and 32 coalitions


@pytest.mark.slow
def test_predicting_and_explaining_import_neither_torch_nor_onnx(calibrated_job: JobPaths) -> None:
    code = (
        "import sys; from container.predictor import Predictor; "
        f"Predictor.load({str(calibrated_job.model)!r}).explain([{{'chat': 'very happy'}}], level='word'); "
        "sys.exit(str({'torch', 'transformers', 'onnx'} & sys.modules.keys() or ''))"
    )
    assert not run_python(code).stderr.strip()


@pytest.mark.slow
def test_pytorch_explains_nothing_and_names_the_other_backend(calibrated_job: JobPaths) -> None:
    with pytest.raises(ContractError, match=r'(?s)needs ONNX Runtime.*backend="onnx"'):
        Predictor.load(calibrated_job.model, backend="torch").explain([{"chat": "very happy"}])
