"""Measures what the model looks at, on prepared val records; one process, the final weights."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from container.data.batch import PackedBatch, PackedText
from container.data.records import RecordArrays
from container.data.split import PreparedSplit, pack_records
from container.decision.softmax import softmax
from container.evaluation.explanation import (
    METRIC,
    Explanation,
    Importance,
    even_sample,
    most_important_first,
    score,
)
from container.models.classifier import Classifier
from container.preprocessing.prepare import PreparedData
from container.preprocessing.transform import Preprocessor
from container.tables.records import records_to_table
from contracts.errors import first_line

logger = logging.getLogger(__name__)

SHUFFLES = 3
SECONDS = 60.0
LONGEST = 300.0  # where SECONDS are too few for _FEWEST records
_FEWEST = 64
_BATCH = 32
_TIMED = 4


class Interrupted(Exception):
    """The job is asked to stop: what is left of its time goes to the artifacts."""


class TooSlow(Exception):
    """Even a few records would take minutes."""


def explain(
    model: Classifier,
    data: PreparedData,
    val: PreparedSplit,
    *,
    records: int,
    batch_size: int,
    seed: int,
    device: torch.device,
    stopped: Callable[[], bool],
) -> Explanation:
    """Shuffle each raw column over val records, replace each modality by what a record without it has, and see how far
    the metric falls.

    A text that stays as it is is encoded once, so that a table of many columns costs little more than its texts. What
    goes wrong here is a `problem` and no failure of the job: its model is trained and exported.

    Args:
        records: at most; fewer where val has fewer, or where they would take longer than about a minute.
        batch_size: records that training computes at once: so many have room.
        seed: of the sample and the shuffles.
        stopped: asked between batches; when it says so, the explanation is given up.
    """
    began = time.perf_counter()
    labels = val.column("label").to_numpy()
    sample = even_sample(labels, records, seed=seed)
    size = min(_BATCH, batch_size)

    def nothing(problem: str | None) -> Explanation:
        return Explanation(METRIC, None, len(sample), 0, time.perf_counter() - began, problem=problem)

    try:
        model = model.to(device).eval()
        if len(sample):
            sample = sample[: _affordable(model, val, sample, size=size, device=device)]
        measured = _Measured(model, data, val, sample, size=size, device=device, stopped=stopped)
        base, problem = measured.score(lambda batch, _: batch)
        if base is None:
            return nothing(problem)
        columns = [measured.importance(column, kind, base, seed=seed) for column, kind in measured.columns]
        modalities = [measured.ablation(name, places, base) for name, places in measured.modalities]
    except Interrupted:
        return nothing("the job was asked to stop")
    except TooSlow as slow:
        logger.warning("explain: %s", slow)
        return nothing(str(slow))
    except Exception as error:  # out of memory, say: the metrics and predictions of a finished training come first
        logger.exception("explain: the job goes on without an explanation")
        return nothing(f"{type(error).__name__}: {first_line(error)}")
    seconds = time.perf_counter() - began
    logger.info(
        "explained in %.1f s: %d columns shuffled %d times over %d val records, %d modalities left out",
        seconds, len(columns), SHUFFLES, len(sample), len(modalities),
    )  # fmt: skip
    return Explanation(
        METRIC,
        base,
        len(sample),
        SHUFFLES,
        seconds,
        columns=most_important_first(columns),
        modalities=most_important_first(modalities),
    )


def _affordable(model: Classifier, val: PreparedSplit, sample: np.ndarray, *, size: int, device: torch.device) -> int:
    """How many records of `sample` take about SECONDS, by the time that the first ones take.

    Raises:
        TooSlow: _FEWEST of them would take more than LONGEST.
    """
    passes = 1 + SHUFFLES  # over every text: once as it is, once for each of its shuffles
    _seconds_per_record(model, val, sample[:1], device=device)  # a device's first pass takes long
    seconds = _seconds_per_record(model, val, sample[: min(size, _TIMED)], device=device)
    if passes * seconds * _FEWEST < LONGEST:  # many at once cost less each
        seconds = _seconds_per_record(model, val, sample[:size], device=device)
    records = max(_FEWEST, int(SECONDS / (passes * seconds)))
    used = min(records, len(sample))
    if passes * seconds * used > LONGEST:
        raise TooSlow(f"{used} val records would take about {passes * seconds * used / 60:.0f} minutes here")
    logger.info(
        "explaining on %d val records: about %.0f s",
        min(records, len(sample)), passes * seconds * min(records, len(sample)),
    )  # fmt: skip
    if records < len(sample):
        logger.info("explain: %d records would take more than %.0f s", len(sample), SECONDS)
    return records


def _seconds_per_record(model: Classifier, val: PreparedSplit, places: np.ndarray, *, device: torch.device) -> float:
    batch = val.pack(places).to(device)
    with torch.inference_mode():
        began = time.perf_counter()
        model(batch).cpu()
    return (time.perf_counter() - began) / len(places)


class _Measured:
    """The sample in batches, and what can be done to it.

    Attributes:
        columns: (raw column, kind) of everything that enters the model.
        modalities: (name, (places of its texts, whether it is the table)).
    """

    def __init__(
        self,
        model: Classifier,
        data: PreparedData,
        val: PreparedSplit,
        sample: np.ndarray,
        *,
        size: int,
        device: torch.device,
        stopped: Callable[[], bool],
    ) -> None:
        fitted = data.fitted
        self._model, self._val, self._device, self._stopped = model, val, device, stopped
        self._sample = sample
        self._labels = val.column("label").to_numpy()[sample]
        self._batches = [
            (part, val.pack(sample[part]).to(device))
            for part in np.array_split(np.arange(len(sample)), -(-len(sample) // size) or 1)
            if len(part)
        ]
        self._remembered = _Remembered(model, [batch for _, batch in self._batches])
        self._tabular = (
            np.concatenate([batch.tabular.cpu().numpy() for _, batch in self._batches]) if len(sample) else None
        )
        blank = records_to_table([dict.fromkeys(fitted.feature_inputs)])
        roles = [field.role for field in fitted.text_fields]
        self._neutral = RecordArrays.from_batch(Preprocessor.load(data.folder).transform(blank).batch, roles)
        texts = [field.column for field in fitted.text_fields]
        self._text_index = {column: index for index, column in enumerate(texts)}
        self._table_places = fitted.tabular_places if model.tabular is not None else {}
        self.columns = [
            *((column, "text") for column in texts),
            *(
                (column, "numeric" if column in fitted.numeric_columns else "categorical")
                for column in self._table_places
            ),
        ]
        self.modalities: list[tuple[str, tuple[tuple[int, ...], bool]]] = [
            *((f"text {column}", ((index,), False)) for index, column in enumerate(texts)),
            *([("all texts", (tuple(range(len(texts))), False))] if len(texts) > 1 else []),
            *([("the table", ((), True))] if self._table_places else []),
        ]

    def score(self, change: Callable[[PackedBatch, np.ndarray], PackedBatch]) -> tuple[float | None, str | None]:
        """The metric over the sample; `change` gets each batch and the places of its records in the sample."""
        if not self._batches:
            return None, "no val record has a label"
        logits = []
        with torch.inference_mode(), self._remembered:
            for places, batch in self._batches:
                if self._stopped():
                    raise Interrupted
                logits.append(self._model(change(batch, places)).float().cpu().numpy())
        return score(self._labels, softmax(np.concatenate(logits)))

    def importance(self, column: str, kind: str, base: float, *, seed: int) -> Importance:
        drops = []
        for shuffle in range(SHUFFLES):
            order = np.random.default_rng([seed, shuffle]).permutation(len(self._sample))
            drops.append(
                base - self._changed(lambda batch, places, order=order: self._shuffled(batch, column, order[places]))
            )
        return Importance(column, kind, float(np.mean(drops)), float(np.std(drops)))

    def ablation(self, name: str, left_out: tuple[Sequence[int], bool], base: float) -> Importance:
        texts, table = left_out
        return Importance(
            name, "modality", base - self._changed(lambda batch, _: self._without(batch, texts, table=table))
        )

    def _changed(self, change: Callable[[PackedBatch, np.ndarray], PackedBatch]) -> float:
        """Return the metric over the changed sample; it is defined, because the labels are those of the base."""
        changed, problem = self.score(change)
        assert changed is not None, problem
        return changed

    def _shuffled(self, batch: PackedBatch, column: str, sources: np.ndarray) -> PackedBatch:
        """`batch` with the values that `column` has in the records at the places `sources` of the sample."""
        if column in self._text_index:
            index = self._text_index[column]
            others = self._val.pack(self._sample[sources]).texts[index].to(self._device)
            return replace(batch, texts=_with(batch.texts, {index: others}))
        assert self._tabular is not None, "a sample without records is not explained"
        inputs = list(self._table_places[column])
        tabular = batch.tabular.clone()
        tabular[:, inputs] = torch.from_numpy(self._tabular[sources][:, inputs]).to(self._device)
        return replace(batch, tabular=tabular)

    def _without(self, batch: PackedBatch, texts: Sequence[int], *, table: bool) -> PackedBatch:
        """`batch` as if its records had nothing in these texts, or in the table."""
        count = len(batch.rows)
        empty = pack_records([self._neutral] * count, [0] * count).to(self._device)
        changed = replace(batch, texts=_with(batch.texts, {index: empty.texts[index] for index in texts}))
        return replace(changed, tabular=empty.tabular) if table else changed


def _with(texts: tuple[PackedText, ...], others: dict[int, PackedText]) -> tuple[PackedText, ...]:
    return tuple(others.get(index, text) for index, text in enumerate(texts))


class _Remembered:
    """While it is entered, each text branch computes each text of `batches` once."""

    def __init__(self, model: Classifier, batches: Sequence[PackedBatch]) -> None:
        self._branches = list({id(branch): branch for branch in model.branches.values()}.values())
        self._texts = {id(text): text for batch in batches for text in batch.texts}  # kept, so that ids stay theirs
        self._features: dict[tuple[int, int], Tensor] = {}

    def __enter__(self) -> None:
        for branch in self._branches:
            branch.forward = self._remembering(branch, branch.forward)

    def __exit__(self, *_: object) -> None:
        for branch in self._branches:
            del branch.forward

    def _remembering(self, branch: Any, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def compute(text: PackedText, **given: Any) -> Tensor:
            if id(text) not in self._texts:
                return forward(text, **given)
            key = id(branch), id(text)
            if key not in self._features:
                self._features[key] = forward(text, **given)
            return self._features[key]

        return compute
