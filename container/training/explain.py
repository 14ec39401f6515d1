"""Measure the importance of columns and modalities on prepared val records, in one process, with the final weights."""

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
from container.preprocessing.prepared import PreparedData
from container.preprocessing.transform import Preprocessor
from container.tables.records import records_to_table
from contracts.errors import first_line

logger = logging.getLogger(__name__)

SHUFFLES = 3
SECONDS = 60.0
LONGEST = 300.0  # limit where _FEWEST records take more than SECONDS
_FEWEST = 64
_BATCH = 32
_TIMED = 4


class Interrupted(Exception):
    """The job was requested to stop."""


class TooSlow(Exception):
    """_FEWEST records would take more than LONGEST."""


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
    """Measure the drop of the metric with each raw column shuffled over val records, and without each modality.

    An unchanged text is encoded once, so that a table of many columns costs little more than its texts. An error is
    returned as a `problem`: the model is already trained and exported.

    Args:
        records: the most val records to use; fewer if they would take longer than about a minute.
        batch_size: the most records in a batch.
        seed: seed of the sample and the shuffles.
        stopped: called between batches; if it returns True, nothing is measured.
    """
    began = time.perf_counter()
    labels = val.column("label").to_numpy()
    sample = even_sample(labels, records, seed=seed)
    size = min(_BATCH, batch_size)

    def not_measured(problem: str | None) -> Explanation:
        return Explanation(METRIC, None, len(sample), 0, time.perf_counter() - began, problem=problem)

    try:
        model = model.to(device).eval()
        if len(sample):
            sample = sample[: _affordable(model, val, sample, size=size, device=device)]
        measured = _Measured(model, data, val, sample, size=size, device=device, stopped=stopped)
        base, problem = measured.score(lambda batch, _: batch)
        if base is None:
            return not_measured(problem)
        columns = [measured.importance(column, kind, base, seed=seed) for column, kind in measured.columns]
        modalities = [measured.ablation(*modality, base=base) for modality in measured.modalities]
    except Interrupted:
        return not_measured("the job was requested to stop")
    except TooSlow as slow:
        logger.warning("explain: %s", slow)
        return not_measured(str(slow))
    except Exception as error:  # e.g. out of memory: the job must still write its metrics and predictions
        logger.exception("explain: failed; the job continues without an explanation")
        return not_measured(f"{type(error).__name__}: {first_line(error)}")
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
    """Return how many records of `sample` take about SECONDS, estimated from the first ones.

    Raises:
        TooSlow: _FEWEST of them would take more than LONGEST.
    """
    passes = 1 + SHUFFLES  # over every text: unchanged, and once per shuffle
    _seconds_per_record(model, val, sample[:1], device=device)  # a device's first pass is slow
    seconds = _seconds_per_record(model, val, sample[: min(size, _TIMED)], device=device)
    if passes * seconds * _FEWEST < LONGEST:  # a record costs less in a full batch
        seconds = _seconds_per_record(model, val, sample[:size], device=device)
    records = min(len(sample), max(_FEWEST, int(SECONDS / (passes * seconds))))
    expected = passes * seconds * records
    if expected > LONGEST:
        raise TooSlow(f"{records} val records would take about {expected / 60:.0f} minutes here")
    logger.info("explaining on %d val records: about %.0f s", records, expected)
    if records < len(sample):
        logger.info("explain: %d records would take more than %.0f s", len(sample), SECONDS)
    return records


def _seconds_per_record(model: Classifier, val: PreparedSplit, rows: np.ndarray, *, device: torch.device) -> float:
    batch = val.pack(rows).to(device)
    with torch.inference_mode():
        began = time.perf_counter()
        model(batch).cpu()
    return (time.perf_counter() - began) / len(rows)


class _Measured:
    """The sample in batches, and the changes whose effect is measured.

    Attributes:
        columns: (raw column, kind) of every input of the model.
        modalities: (name, indices of its texts, whether it is the table).
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
        self._empty = RecordArrays.from_batch(Preprocessor.load(data.folder).transform(blank).batch, roles)
        texts = [field.column for field in fitted.text_fields]
        self._text_index = {column: index for index, column in enumerate(texts)}
        self._tabular_index = fitted.tabular_places if model.tabular is not None else {}
        self.columns = [(column, "text") for column in texts]
        for column in self._tabular_index:
            self.columns.append((column, "numeric" if column in fitted.numeric_columns else "categorical"))
        self.modalities = [(f"text {column}", [index], False) for index, column in enumerate(texts)]
        if len(texts) > 1:
            self.modalities.append(("all texts", list(range(len(texts))), False))
        if self._tabular_index:
            self.modalities.append(("the table", [], True))

    def score(self, change: Callable[[PackedBatch, np.ndarray], PackedBatch]) -> tuple[float | None, str | None]:
        """Return the metric over the changed sample; `change` gets each batch and its positions in the sample."""
        if not self._batches:
            return None, "no val record has a label"
        logits = []
        with torch.inference_mode(), self._remembered:
            for positions, batch in self._batches:
                if self._stopped():
                    raise Interrupted
                logits.append(self._model(change(batch, positions)).float().cpu().numpy())
        return score(self._labels, softmax(np.concatenate(logits)))

    def importance(self, column: str, kind: str, base: float, *, seed: int) -> Importance:
        drops = []
        for shuffle in range(SHUFFLES):
            order = np.random.default_rng([seed, shuffle]).permutation(len(self._sample))
            drops.append(self._drop(base, lambda batch, rows, order=order: self._shuffled(batch, column, order[rows])))
        return Importance(column, kind, float(np.mean(drops)), float(np.std(drops)))

    def ablation(self, name: str, texts: Sequence[int], table: bool, *, base: float) -> Importance:
        return Importance(name, "modality", self._drop(base, lambda batch, _: self._without(batch, texts, table=table)))

    def _drop(self, base: float, change: Callable[[PackedBatch, np.ndarray], PackedBatch]) -> float:
        changed, problem = self.score(change)
        assert changed is not None, problem  # the base has the same labels, and is defined
        return base - changed

    def _shuffled(self, batch: PackedBatch, column: str, sources: np.ndarray) -> PackedBatch:
        """Return `batch` with the values of `column` from the sample's records at `sources`."""
        if column in self._text_index:
            index = self._text_index[column]
            others = self._val.pack(self._sample[sources]).texts[index].to(self._device)
            return replace(batch, texts=_with(batch.texts, {index: others}))
        assert self._tabular is not None, "a sample without records is not explained"
        inputs = list(self._tabular_index[column])
        tabular = batch.tabular.clone()
        tabular[:, inputs] = torch.from_numpy(self._tabular[sources][:, inputs]).to(self._device)
        return replace(batch, tabular=tabular)

    def _without(self, batch: PackedBatch, texts: Sequence[int], *, table: bool) -> PackedBatch:
        """Return `batch` with these texts, or the table, replaced by those of an empty record."""
        count = len(batch.rows)
        empty = pack_records([self._empty] * count, [0] * count).to(self._device)
        changed = replace(batch, texts=_with(batch.texts, {index: empty.texts[index] for index in texts}))
        return replace(changed, tabular=empty.tabular) if table else changed


def _with(texts: tuple[PackedText, ...], others: dict[int, PackedText]) -> tuple[PackedText, ...]:
    return tuple(others.get(index, text) for index, text in enumerate(texts))


class _Remembered:
    """Within the block, each text branch computes each text of `batches` once."""

    def __init__(self, model: Classifier, batches: Sequence[PackedBatch]) -> None:
        self._branches = list({id(branch): branch for branch in model.branches.values()}.values())
        self._texts = {id(text): text for batch in batches for text in batch.texts}  # prevents reuse of ids
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
