"""Compute the reasons for a prediction: Shapley values of the logit, with the parts of the record as players."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from container.attribution.coalitions import HeadInputs, text_variants
from container.attribution.parts import Part, Question, parts_of
from container.attribution.shapley import attribution
from container.data.records import RecordArrays
from container.decision.calibrators import log_odds
from container.preprocessing.transform import Preprocessor


@dataclass(frozen=True)
class Work:
    """A step of the computation: what `compute` returns for indices[i] of records[i], one object each."""

    compute: Callable[[Sequence[Any], Sequence[int]], np.ndarray]
    records: Sequence[Any]
    indices: Sequence[int]


@dataclass(frozen=True)
class Model:
    """What a model computes for reasons.

    Attributes:
        encode: returns the features of each text of records. [N] of lists of arrays by name
        score: returns the scores of runs of HeadInputs, whose softmax are the probabilities. [N] of [M, K]
        alone: the head computes coalitions one by one.
    """

    preprocessor: Preprocessor
    encode: Callable[[Sequence[Any], Sequence[int]], np.ndarray]
    score: Callable[[Sequence[Any], Sequence[int]], np.ndarray]
    alone: bool


Steps = Generator[Work, Any, dict[str, Any]]


def reasons(
    model: Model, table: pa.Table, row: int, prepared: np.ndarray, *, question: Question, class_id: int | None = None
) -> Steps:
    """Return the reasons for the prediction of a record; yield each computation, and take its result.

    Args:
        table: raw records.
        prepared: the values of the record's table. [K]
        class_id: the explained class; None = class 1 of two classes, otherwise the decided one.

    Returns:
        As Predictor.explain, for one record.
    """
    fitted = model.preprocessor.fitted
    parts = parts_of(table, row, fitted, question.level)
    absent = RecordArrays.from_batch(model.preprocessor.absent(), [field.role for field in fitted.text_fields])
    places = {column: list(inputs) for column, inputs in fitted.tabular_places.items()}
    # A part that changes no input of the model contributes nothing: a missing value, for example.
    differs = prepared != absent.tabular[0]
    active = [i for i, part in enumerate(parts) if part.text is not None or differs[places.get(part.column, [])].any()]
    pieces = [i for i, part in enumerate(active) if question.level != "column" and parts[part].text is not None]
    shapley = attribution(len(active), pieces, permutations=question.permutations)
    coalitions = shapley.coalitions
    texts, which = text_variants(parts, active, coalitions, model.preprocessor)
    count = len(texts.row)
    features = yield Work(model.encode, [texts] * count, range(count))
    tabular = np.repeat(absent.tabular, len(coalitions), axis=0)  # [M, K]
    for i, part in enumerate(active):
        if (column := parts[part].column) in places:
            rows = np.flatnonzero(coalitions[:, i])[:, None]
            tabular[rows, places[column]] = prepared[places[column]]
    inputs = HeadInputs(list(features), which, tabular, alone=model.alone)
    scores = np.concatenate((yield Work(model.score, [inputs] * len(inputs), range(len(inputs)))))  # [M, K]
    sizes = coalitions.sum(axis=1)
    if class_id is None:
        class_id = 1 if scores.shape[1] == 2 else int(scores[sizes.argmax()].argmax())
    logits = log_odds(scores)[:, class_id]  # [M]
    found, errors = shapley.values(logits)
    contributions = _contributions(parts, active, found, errors)
    answer = {
        "class": fitted.class_labels[class_id],
        "logit": float(logits[sizes.argmax()]),
        "base": float(logits[sizes.argmin()]),
        "contributions": contributions[: question.top],
    }
    if question.top is not None:
        answer["rest"] = float(sum(each["contribution"] for each in contributions[question.top :]))
    return answer


def direct(work: Work) -> np.ndarray:
    """Compute a step at once."""
    return work.compute(work.records, work.indices)


def run_steps(
    steps: Steps,
    compute: Callable[[Work], np.ndarray] = direct,
    run: Callable[[Callable[[], Any]], Any] = lambda call: call(),
) -> dict[str, Any]:
    """Return the reasons that `reasons` computes.

    Args:
        compute: computes a step on the encoders or the head.
        run: calls a function that prepares the next step.
    """
    step = run(partial(_advance, steps, None))
    while isinstance(step, Work):
        step = run(partial(_advance, steps, compute(step)))
    return step


def _advance(steps: Steps, result: np.ndarray | None) -> Work | dict[str, Any]:
    try:
        return steps.send(result)
    except StopIteration as end:
        return end.value


def _contributions(
    parts: Sequence[Part], active: Sequence[int], found: np.ndarray, errors: np.ndarray | None
) -> list[dict[str, Any]]:
    """Return the contribution of each part, the largest first."""
    values, spread = np.zeros((2, len(parts)))
    values[active] = found
    if errors is not None:
        spread[active] = errors
    return [
        {"part": parts[i].name, "value": parts[i].value, "contribution": float(values[i])}
        | ({} if errors is None else {"standard_error": float(spread[i])})
        for i in np.argsort(-np.abs(values), kind="stable").tolist()
    ]
