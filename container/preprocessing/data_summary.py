"""Summarize the data for the log and for the evaluation report."""

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from container.job.log_once import log_detail
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.numeric_summary import NumericSummary, weighted_quantiles
from container.preprocessing.scan import SplitStatistics
from container.preprocessing.split_file import WrittenSplit
from container.tables.duplicate_ids import count_shared
from contracts.tabular_inputs import DATE_PARTS, date_inputs

logger = logging.getLogger(__name__)

IF_SHARED = {
    "ids": "If they are the same rows, the metrics look too good.",
    "groups": "The metrics look too good for records of a new group.",
}
LENGTH_PERCENTILES = (50, 90, 95, 99)
MANY_UNKNOWN = 0.05  # share of a text's tokens


def summarize_split(
    statistics: SplitStatistics, written: WrittenSplit, fitted: FittedPreprocessing, *, train: SplitStatistics
) -> dict[str, Any]:
    """Return the summary of one split as JSON values; None for statistics of no values."""
    counts = written.counts
    days = (date_inputs(column)[DATE_PARTS.index("days")] for column in fitted.dates)  # the other parts follow from it
    places = statistics.labels.index
    shown = {*fitted.raw_numbers, *days}
    return {
        "rows": counts.rows,
        "dropped_unlabelled": counts.dropped,
        "unlabelled": statistics.unlabelled - counts.dropped,
        "without_weight": statistics.without_weight,
        "duplicate_ids": statistics.ids.count,
        "duplicate_id_example": statistics.ids.example,
        "ids_of_train": 0 if statistics is train else count_shared([train.ids, statistics.ids]),
        "groups": statistics.rows - statistics.groups.count if fitted.group_name else 0,
        "groups_of_train": 0 if statistics is train else count_shared([train.groups, statistics.groups]),
        "classes": {
            str(label): statistics.labels.counts.get(key, 0)
            for label, key in zip(fitted.class_labels, fitted.labels.keys.to_pylist())
        },
        "class_weights": {
            str(label): float(statistics.weights[places[key]]) if key in places else 0.0
            for label, key in zip(fitted.class_labels, fitted.labels.keys.to_pylist())
            if fitted.weight_name
        },
        "numeric": {
            name: {**summary.to_dict(), "imputed": counts.imputed[name], "imputed_with": fitted.imputation[name]}
            for name, summary in statistics.numeric.items()
            if name in shown
        },
        "categories": {
            name: {"distinct": len(category.index), "missing": category.missing, "unseen_rows": counts.unseen[name]}
            for name, category in statistics.categories.items()
        },
        "texts": {
            field.role: {
                "column": field.name,
                **counts.texts[field.role].to_dict(),
                "tokens_per_record": _lengths(written.token_lengths[field.role]),
            }
            for field in fitted.text_fields
        },
        "seconds": round(written.seconds, 3),
        "rows_per_second": round(counts.rows / max(written.seconds, 1e-9), 1),
    }


def shared_with_train(summary: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of ids and groups of a split that train has as well, without those that are 0."""
    counts = {what: summary.get(f"{what}_of_train", 0) for what in IF_SHARED}  # an earlier version prepared none
    return {what: count for what, count in counts.items() if count}


def log_split(split: str, summary: Mapping[str, Any]) -> None:
    """Log the rows and classes of a split, and its imputed, unseen and cut values."""
    rows = summary["rows"]
    classes = ", ".join(f"{label!r}: {count}" for label, count in summary["classes"].items())
    logger.info("%s: %d rows; classes {%s}.", split, rows, classes)
    for what, shared in shared_with_train(summary).items():
        logger.warning("%s: %s that train has as well: %s. %s", split, what, f"{shared:,}", IF_SHARED[what])
    for name, numeric in summary["numeric"].items():
        if numeric["imputed"]:
            imputed = f"{numeric['imputed']} of {rows} values imputed with {numeric['imputed_with']:.6g}"
            log_detail(logger, "%s: column %r: %s.", split, name, imputed)
    for name, category in summary["categories"].items():
        if unseen := category["unseen_rows"]:
            share = f"{unseen} of {rows} rows ({unseen / rows:.1%})"
            log_detail(
                logger,
                "%s: column %r: %s have a category that the risk table lacks and get its default.",
                split,
                name,
                share,
            )
    for text in summary["texts"].values():
        length = text["tokens_per_record"]
        counts = f"{text['records']} records, {text['chunks']} chunks, {text['tokens']} tokens"
        lengths = f"median {length['p50']}, 99% at most {length['p99']}, longest {length['max']}"
        log_detail(
            logger, "%s: text %r: %s (%s), %d empty.", split, text["column"], counts, lengths, text["empty_records"]
        )
        if split == "train" and text["unknown_tokens"] > MANY_UNKNOWN * text["tokens"]:
            logger.warning(
                f"{split}: text {text['column']!r}: {100 * text['unknown_tokens'] / text['tokens']:.0f}% of the tokens "
                "are unknown to the tokenizer, which has learned no such letters or words. Use a multilingual "
                "encoder, e.g. intfloat/multilingual-e5-small."
            )
        if text["truncated_records"]:
            cut = f"{text['truncated_records']} of {text['records']} records were cut"
            lost = f"{text['cut_chunks']} chunks, {text['cut_tokens']} tokens lost"
            logger.warning("%s: text %r: %s; %s.", split, text["column"], cut, lost)


def _lengths(summary: NumericSummary) -> dict[str, float | None]:
    if not summary.count:
        return {"mean": None, "max": None, **{f"p{percent}": None for percent in LENGTH_PERCENTILES}}
    quantiles = weighted_quantiles(*summary.distribution.items(), np.array(LENGTH_PERCENTILES) / 100)
    named = {f"p{percent}": math.ceil(value) for percent, value in zip(LENGTH_PERCENTILES, quantiles)}
    return {"mean": round(summary.mean, 2), "max": int(summary.maximum), **named}
