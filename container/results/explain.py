"""Measure the importance of columns and modalities on prepared val records, in one process, with the final weights."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from container.companion.blend import BlendedCompanion
from container.data.batch import PackedBatch, PackedText
from container.data.records import RecordArrays
from container.data.split import PreparedSplit, pack_records
from container.decision.softmax import softmax
from container.errors import NotMade
from container.evaluation.bootstrap import Scores, paired_differences
from container.evaluation.evaluation_input import Explanation, Importance
from container.evaluation.metrics import classification_metrics
from container.export.onnx import feed_of
from container.job.log_once import log_detail
from container.models.ensemble import Network
from container.preprocessing.prepared import PreparedData
from container.preprocessing.transform import Preprocessor
from container.results.attempt import Attempt
from container.tables.channel_files import read_rows
from container.tables.data_files import find_data_files
from container.training.predict import prediction_batch
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths

logger = logging.getLogger(__name__)

METRIC = "auroc"
SHUFFLES = 3
SECONDS = 60.0
LONGEST = 300.0  # limit where _FEWEST records take more than SECONDS
_FEWEST = 64
_BATCH = 32
_TIMED = 4


def _by_drop(entries: Iterable[Importance]) -> tuple[Importance, ...]:
    return tuple(sorted(entries, key=lambda entry: -entry.drop))


def even_sample(labels: np.ndarray, records: int, *, seed: int) -> np.ndarray:
    """Sample the positions of up to `records` labelled records, taking the classes in turn.

    Every prefix of the sample is as balanced as the data allows. [N] -> [at most records]
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.flatnonzero(labels >= 0))
    turn = np.empty(len(order), np.int64)
    for k in np.unique(labels[order]):
        of_class = labels[order] == k
        turn[of_class] = np.arange(of_class.sum())
    return order[np.argsort(turn, kind="stable")][:records]


@dataclass(frozen=True)
class _Text:
    """A text of every record of the sample.

    Attributes:
        features: of each record.
        pack: returns the tokens of the records at these positions, which the companion reads.
    """

    features: Sequence[Tensor]
    pack: Callable[[np.ndarray], PackedText]


@dataclass(eq=False)
class Measured:
    """Val records, in batches with the features of their texts, and the changes whose effect on a model is measured.

    Every text is encoded once: a shuffled text has the features of another record. Only columns that are joined to one
    text are encoded again, with the other columns of their new record.

    Attributes:
        val: the split of the records.
        paths: of the job, for the raw columns of joined texts.
        hp: its `explain` is the most records to use; fewer if they would take longer than about a minute.
            max_tokens_per_batch limits a pass of the encoders.
        companion: the part of the model beside the network.
        stopped: called between batches; if it returns True, nothing is measured.
        split: the name of `val`: test if the networks trained on val.
        columns: (raw column, kind) of every input of the model.
        modalities: (name, indices of its texts, whether it is the table).
    """

    model: Network
    data: PreparedData
    val: PreparedSplit
    paths: JobPaths
    hp: Hyperparameters
    companion: BlendedCompanion | None
    device: torch.device
    stopped: Callable[[], bool]
    split: str = "val"

    def _prepare(self) -> None:
        self.model.to(self.device).eval()
        fitted = self.data.fitted
        self._roles = [field.role for field in fitted.text_fields]
        self._preprocessor = Preprocessor.load(self.data.folder)
        self._empty = RecordArrays.from_batch(self._preprocessor.absent(), self._roles)
        texts = [field.name for field in fitted.text_fields]
        self._text_index = {name: i for i, field in enumerate(fitted.text_fields) for name in field.columns}
        self._joined = [name for field in fitted.text_fields if field.joined for name in field.columns]
        self._tabular_index = fitted.tabular_places if self.model.tabular is not None else {}
        self.columns = [(column, "text") for column in fitted.text_columns]
        for column in self._tabular_index:
            numeric = "date" if column in fitted.dates else "numeric"
            self.columns.append((column, "categorical" if column in fitted.categorical_columns else numeric))
        self.modalities = [(f"text {name}", [index], False) for index, name in enumerate(texts)]
        if len(texts) > 1:
            self.modalities.append(("all texts", list(range(len(texts))), False))
        if self._tabular_index:
            self.modalities.append(("the table", [], True))

    def explain(self, seconds: float = math.inf) -> Explanation:
        """Measure the drop of the metric with each raw column shuffled over the records, and without each modality.

        Args:
            seconds: that it may take, at most.

        Returns:
            The importances, or the `problem`: the model is already trained and exported.
        """
        began, seed = time.perf_counter(), self.hp.seed
        sample = even_sample(self.val.column("label").to_numpy(), self.hp.explain, seed=seed)
        size = min(_BATCH, prediction_batch(self.hp, self.device))

        def not_measured(problem: str) -> Explanation:
            took = time.perf_counter() - began
            return Explanation(METRIC, None, len(sample), 0, took, problem=problem, split=self.split)

        with Attempt("explain") as attempt:
            self._prepare()
            if len(self.columns) == 1:  # as the user chose, so the log does not warn of it
                return not_measured("the model reads one column, so there is nothing to compare")
            sample = sample[: self.affordable(sample, size=size, seconds=seconds)]
            base = self.encode(sample, size=size)
            columns = _by_drop(self.importance([name], kind, base, seed=seed) for name, kind in self.columns)
            pair = self.pair(columns, base, seed=seed)
            modalities = _by_drop(self.ablation(*modality, base=base) for modality in self.modalities)
            took = time.perf_counter() - began
            logger.info(
                f"explained in {took:.1f} s: {len(columns)} columns shuffled {SHUFFLES} times over {len(sample)} "
                f"{self.split} records, {len(modalities)} modalities left out"
            )
            return Explanation(METRIC, base, len(sample), SHUFFLES, took, columns, modalities, pair, split=self.split)
        logger.warning("explain: %s", attempt.problem)
        return not_measured(attempt.problem)

    def affordable(self, sample: np.ndarray, *, size: int, seconds: float) -> int:
        """Return how many records of `sample` take about SECONDS, or `seconds`, estimated from the first ones.

        Raises:
            NotMade: _FEWEST of them would take more than LONGEST, or `seconds`.
        """
        most, longest = min(SECONDS, seconds), min(LONGEST, seconds)
        if not len(sample):
            return 0
        self._seconds_per_record(sample[:1])  # a device's first pass is slow
        slowness = self._seconds_per_record(sample[: min(size, _TIMED)])
        if slowness * _FEWEST < longest:  # a record costs less in a full batch
            slowness = self._seconds_per_record(sample[:size])
        records = min(len(sample), max(_FEWEST, int(most / slowness)))
        expected = slowness * records
        if expected > longest:
            raise NotMade(f"{records} {self.split} records would take about {expected / 60:.0f} minutes here")
        log_detail(logger, "explaining on %d %s records: about %.0f s", records, self.split, expected)
        if records < len(sample):
            logger.info("explain: %d records would take more than %.0f s", len(sample), SECONDS)
        return records

    @torch.inference_mode()
    def _seconds_per_record(self, rows: np.ndarray) -> float:
        """Time the encoders once and for joined columns, and the head, the companion, the metric for every change."""
        passes, seconds = 1 + SHUFFLES * (1 + len(self.columns)) + len(self.modalities), 0.0
        encodings = 1 + SHUFFLES * (1 + len(self._joined) if self._joined else 0)
        logits = []
        for part in self._parts(rows, size=len(rows)):
            batch = self.val.pack(rows[part]).to(self.device)
            began = time.perf_counter()
            features = self.model.encode(batch)
            for of_text in features:
                of_text.cpu()  # waits for the device
            encoded = time.perf_counter()
            logits.append(self._logits(features, batch))
            seconds += encodings * (encoded - began) + passes * (time.perf_counter() - encoded)
        computed = time.perf_counter()
        self._metric(self.val.column("label").to_numpy()[rows], logits)
        seconds += passes * (time.perf_counter() - computed)
        return seconds / len(rows)

    def _logits(self, features: list[Tensor], batch: PackedBatch) -> np.ndarray:
        """Return the logits of records whose texts are encoded. [B, K]"""
        logits = self.model.head(features, batch).float().cpu().numpy()
        if self.companion is not None:
            logits = self.companion(logits, feed_of(self.model, self.hp, batch.to("cpu")))
        return logits

    @torch.inference_mode()
    def encode(self, sample: np.ndarray, *, size: int) -> float:
        """Encode the sample's texts, and return the metric without a change; raise NotMade if it is undefined."""
        if not len(sample):
            raise NotMade(f"no {self.split} record has a label")
        self._sample = sample
        self._labels = self.val.column("label").to_numpy()[sample]
        self._batches = [(part, self.val.pack(sample[part]).to(self.device)) for part in self._parts(sample, size=size)]
        self._tabular = torch.cat([batch.tabular for _, batch in self._batches])
        self._raw = self._raw_columns()
        batches = [*(batch for _, batch in self._batches), self._empty_batch(1)]
        self._features = self._encoded(batches)  # of each text and record; last the empty one
        self._base = self._score({}, self._tabular)
        base, problem = self._metric(self._labels, self._base)
        if base is None:
            raise NotMade(problem)
        return base

    def _encoded(self, batches: Sequence[PackedBatch]) -> list[list[Tensor]]:
        features: list[list[Tensor]] = [[] for _ in self._roles]
        for batch in batches:
            self._check_stopped()
            encoded = zip(self.model.branches.values(), self.model.encode(batch), batch.texts, strict=True)
            for i, (branch, of_text, text) in enumerate(encoded):
                features[i] += of_text.split(text.record_lengths if branch.per_token else 1)
        return features

    def _raw_columns(self) -> dict[str, pa.ChunkedArray]:
        """Read the joined columns of the sample's rows, in its order."""
        if not self._joined:
            return {}
        files = find_data_files(self.paths.channel(self.split), getattr(self.hp, f"{self.split}_filename"))
        table = read_rows(files, self._joined, self.val.column("row").to_numpy()[self._sample])
        return {name: table[name] for name in self._joined}

    def _parts(self, sample: np.ndarray, *, size: int) -> list[np.ndarray]:
        """Divide the positions 0..len(sample)-1 in order, by `size` records and by max_tokens_per_batch."""
        counts = self.val.token_counts(sample)
        ends = np.cumsum(counts)
        most = self.hp.max_tokens_per_batch or ends[-1]
        parts, start = [], 0
        while start < len(sample):
            stop = int(np.searchsorted(ends, ends[start] - counts[start] + most, side="right"))
            stop = min(max(stop, start + 1), start + size)
            parts.append(np.arange(start, min(stop, len(sample))))
            start = stop
        return parts

    def _check_stopped(self) -> None:
        if self.stopped():
            raise NotMade("the job was requested to stop")

    def _empty_batch(self, records: int) -> PackedBatch:
        return pack_records(self._empty.take(np.zeros(records, np.int64))).to(self.device)

    @torch.inference_mode()
    def _score(self, changed: Mapping[int, _Text], tabular: Tensor) -> list[np.ndarray]:
        """Return the logits, in parts, with these texts, by index, and this table; the other texts are unchanged."""
        logits = []
        for positions, batch in self._batches:
            self._check_stopped()
            texts, features = list(batch.texts), []
            for index, of_text in enumerate(self._features):
                text = changed.get(index)
                features.append(torch.cat([(text.features if text else of_text)[i] for i in positions]))
                if text:
                    texts[index] = text.pack(positions).to(self.device)
            logits.append(self._logits(features, replace(batch, texts=tuple(texts), tabular=tabular[positions])))
        return logits

    def _metric(self, labels: np.ndarray, logits: Sequence[np.ndarray]) -> tuple[float | None, str | None]:
        """Return the metric of parts of logits, or the reason why it is undefined."""
        probabilities, names = softmax(np.concatenate(logits)), self.data.fitted.class_labels
        computed = classification_metrics(labels, probabilities, [METRIC], class_labels=names)
        return computed.values[METRIC], computed.undefined.get(METRIC)

    def importance(self, columns: Sequence[str], kind: str, base: float, *, seed: int) -> Importance:
        """Return the mean drop over the shuffles of `columns`, all in the same order."""
        drops = []
        texts_of = {self._text_index[name]: name in self._joined for name in columns if name in self._text_index}
        joined = {name: self._raw[name] for name in columns if name in self._joined}
        inputs = [i for name in columns for i in self._tabular_index.get(name, ())]
        for shuffle in range(SHUFFLES):
            order = np.random.default_rng([seed, shuffle]).permutation(len(self._sample))
            rejoined = {name: raw.take(order) for name, raw in joined.items()}
            texts = {
                index: self._rejoined(index, rejoined) if is_joined else self._shuffled(index, order)
                for index, is_joined in texts_of.items()
            }
            tabular = self._tabular.clone()
            tabular[:, inputs] = self._tabular[order][:, inputs]
            drops.append(base - self._area(self._score(texts, tabular)))
        return Importance(" and ".join(columns), kind, float(np.mean(drops)), float(np.std(drops)))

    def pair(self, columns: Sequence[Importance], base: float, *, seed: int) -> Importance | None:
        """Return the drop without the first two columns, each of which may hide what the other knows."""
        if len(columns) < 3:
            return None
        first, second = columns[:2]
        kind = "text" if "text" in (first.kind, second.kind) else first.kind
        return self.importance([first.name, second.name], kind, base, seed=seed)

    def ablation(self, name: str, texts: Sequence[int], table: bool, *, base: float) -> Importance:
        """Return the drop with these texts, or the table, replaced by those of an empty record."""
        tabular = self._empty_batch(1).tabular.expand_as(self._tabular) if table else self._tabular
        without = self._score({i: self._nothing(i) for i in texts}, tabular)
        given = (softmax(np.concatenate(logits)) for logits in (without, self._base))
        scores = (Scores(probabilities, probabilities.argmax(axis=1)) for probabilities in given)
        difference = paired_differences(self._labels, *scores).get(METRIC)
        interval = None if difference is None else difference.interval
        return Importance(name, "modality", base - self._area(without), interval=interval)

    def _shuffled(self, index: int, order: np.ndarray) -> _Text:
        """Return the text of record order[i] for record i."""
        features = [self._features[index][i] for i in order]
        return _Text(features, lambda positions: self.val.pack(self._sample[order[positions]]).texts[index])

    def _nothing(self, index: int) -> _Text:
        features = [self._features[index][-1]] * len(self._sample)
        return _Text(features, lambda positions: self._empty_batch(len(positions)).texts[index])

    @torch.inference_mode()
    def _rejoined(self, index: int, columns: dict[str, pa.ChunkedArray]) -> _Text:
        """Return the joined text of every record with other columns."""
        size = len(self._sample)
        raw = dict.fromkeys(self._preprocessor.fitted.feature_inputs, pa.nulls(size)) | self._raw
        table = pa.table(raw | columns)
        records = RecordArrays.from_batch(self._preprocessor.transform(table).batch, self._roles)

        def pack(positions: np.ndarray) -> PackedBatch:
            return pack_records(records.take(positions)).to(self.device)

        features = self._encoded([pack(positions) for positions, _ in self._batches])[index]
        return _Text(features, lambda positions: pack(positions).texts[index])

    def _area(self, logits: Sequence[np.ndarray]) -> float:
        value, problem = self._metric(self._labels, logits)
        assert value is not None, problem  # the base has the same labels, and is defined
        return value
