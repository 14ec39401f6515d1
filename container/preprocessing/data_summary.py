"""What a person wants to know about the data: for the log, and for the report of the evaluation."""

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from container.preprocessing.fit import SplitStatistics
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.numeric_summary import NumericSummary, weighted_quantiles
from container.preprocessing.split_file import WrittenSplit

logger = logging.getLogger(__name__)

LENGTH_PERCENTILES = (50, 90, 95, 99)


def summarize_split(statistics: SplitStatistics, written: WrittenSplit, fitted: FittedPreprocessing) -> dict[str, Any]:
    """One split as plain JSON values; None where there is nothing to describe."""
    counts = written.counts
    return {
        "rows": counts.rows,
        "dropped_unlabelled": counts.dropped,
        "unlabelled": statistics.unlabelled - counts.dropped,
        "duplicate_ids": statistics.ids.count,
        "duplicate_id_example": statistics.ids.example,
        "classes": {
            str(label): statistics.labels.counts.get(key, 0)
            for label, key in zip(fitted.class_labels, fitted.labels.keys.to_pylist())
        },
        "numeric": {
            name: {**summary.to_dict(), "imputed": counts.imputed[name], "imputed_with": fitted.imputation[name]}
            for name, summary in statistics.numeric.items()
        },
        "categories": {
            name: {"distinct": len(found.index), "missing": found.missing, "unseen_rows": counts.unseen[name]}
            for name, found in statistics.categories.items()
        },
        "texts": {
            field.role: {
                "column": field.column,
                **counts.texts[field.role].to_dict(),
                "tokens_per_record": _lengths(written.token_lengths[field.role]),
            }
            for field in fitted.text_fields
        },
        "seconds": round(written.seconds, 3),
        "rows_per_second": round(counts.rows / max(written.seconds, 1e-9), 1),
    }


def log_split(split: str, summary: Mapping[str, Any]) -> None:
    """Lines about what came in, and what was imputed, unseen and cut."""
    classes = ", ".join(f"{label!r}: {count}" for label, count in summary["classes"].items())
    logger.info("%s: %d rows; classes {%s}.", split, summary["rows"], classes)
    for name, numeric in summary["numeric"].items():
        if numeric["imputed"]:
            logger.info(
                "%s: column %r: %d of %d values imputed with %.6g.",
                split,
                name,
                numeric["imputed"],
                summary["rows"],
                numeric["imputed_with"],
            )
    for name, category in summary["categories"].items():
        if category["unseen_rows"]:
            logger.info(
                "%s: column %r: %d of %d rows (%.1f%%) have a category that the risk table lacks and get its default.",
                split,
                name,
                category["unseen_rows"],
                summary["rows"],
                100 * category["unseen_rows"] / summary["rows"],
            )
    for text in summary["texts"].values():
        length = text["tokens_per_record"]
        logger.info(
            "%s: text %r: %d records, %d chunks, %d tokens (median %s, 99%% at most %s, longest %s), %d empty.",
            split,
            text["column"],
            text["records"],
            text["chunks"],
            text["tokens"],
            length["p50"],
            length["p99"],
            length["max"],
            text["empty_records"],
        )
        if text["truncated_records"]:
            logger.warning(
                "%s: text %r: %d of %d records were cut; %d chunks, %d tokens lost.",
                split,
                text["column"],
                text["truncated_records"],
                text["records"],
                text["cut_chunks"],
                text["cut_tokens"],
            )


def _lengths(summary: NumericSummary) -> dict[str, float | None]:
    if not summary.count:
        return {"mean": None, "max": None, **{f"p{percent}": None for percent in LENGTH_PERCENTILES}}
    quantiles = weighted_quantiles(*summary.distribution.items(), np.array(LENGTH_PERCENTILES) / 100)
    named = {f"p{percent}": math.ceil(value) for percent, value in zip(LENGTH_PERCENTILES, quantiles)}
    return {"mean": round(summary.mean, 2), "max": int(summary.maximum), **named}
