"""Write metrics_summary.txt: the metrics on one page of text."""

from collections.abc import Iterator, Sequence

from container.evaluation.model_metrics import ModelMetrics, SplitMetrics
from contracts.errors import one_line
from contracts.metrics import DECLARED, METRICS
from contracts.spelling import aligned

_SHOWN_GROUPS = 12


def metrics_summary(metrics: ModelMetrics) -> str:
    """Return the page, with a final line break."""
    return "".join(f"{one_line(line.rstrip())}\n" for line in _lines(metrics))


def _lines(metrics: ModelMetrics) -> Iterator[str]:
    splits = metrics.splits
    calibrations = [split.analysis.calibration for split in splits.values()]
    errors = [calibration and calibration.expected_calibration_error for calibration in calibrations]
    yield from _table(
        ["", *splits],
        [
            ["records", *(f"{split.analysis.rows:,}" for split in splits.values())],
            ["with a label", *(f"{split.analysis.labelled:,}" for split in splits.values())],
            *(
                [metric.title, *(_figure(split.analysis.metrics.values[name]) for split in splits.values())]
                for name, metric in DECLARED.items()
            ),
            ["Calibration error", *(_figure(error) for error in errors)],
        ],
    )
    if metrics.threshold is not None:
        yield f"Class {metrics.class_labels[1]} is decided from {metrics.threshold:.4g} on."
    for name, split in splits.items():
        for reason in dict.fromkeys(split.analysis.metrics.undefined.values()):
            yield f"{name}: undefined where {reason}."
        interval = split.analysis.intervals.get("auroc")
        if interval:
            yield f"{name}: 95 % interval of AUROC {interval[0]:.4f} to {interval[1]:.4f}."
    yield from _operating_points(metrics)
    for name, split in splits.items():
        yield from _capture(name, split)
        yield from _comparison(name, split)
        yield from _slices(name, split)


def _operating_points(metrics: ModelMetrics) -> Iterator[str]:
    if not metrics.operating_points:
        return
    yield from ("", f"Thresholds, chosen on {metrics.chosen_on}")
    rows = []
    for target, point in metrics.operating_points.items():
        reached = [
            f"{_figure(at['precision'])} / {_figure(at['recall'])} / {_share(at['flagged_share'])}"
            for at in point.reached.values()
        ]
        rows.append([target if point.met else f"{target} (not reached)", f"{point.value:.4f}", *reached])
    columns = [f"{name}: precision / recall / flagged" for name in metrics.splits]
    yield from _table(["for", "threshold", *columns], rows)


def _capture(name: str, split: SplitMetrics) -> Iterator[str]:
    if split.capture is None:
        return
    amount = split.capture.positive_amount
    total = "" if amount is None else f"; positives amount to {amount:,.2f}"
    yield from ("", f"Recall with a limit on flagged records, {name}{total}")
    points = [(f"{share:g} of the records", point) for share, point in split.capture.at_shares.items()]
    points += [(f"{rate:g} of the negatives", point) for rate, point in split.capture.at_false_positive_rate.items()]
    yield from _table(
        ["flagged at most", "threshold", "flagged", "precision", "count recall", "dollar recall"],
        [
            [
                limit,
                f"{point.threshold:.4f}",
                f"{point.flagged:,} ({point.flagged_share:.2%})",
                _figure(point.precision),
                _figure(point.count_recall),
                "-" if point.dollar_recall is None else _figure(point.dollar_recall),
            ]
            for limit, point in points
        ],
    )
    if split.missing_amounts:
        yield f"{split.missing_amounts:,} positives have no amount and count as 0."


def _comparison(name: str, split: SplitMetrics) -> Iterator[str]:
    comparison = split.comparison
    if comparison is None:
        return
    yield from ("", f"Compared with the previous model, {name}: {comparison.records:,} records that both scored")
    yield from _table(
        ["", "new", "previous", "difference"],
        [
            [
                DECLARED[metric].title,
                _figure(value),
                _figure(comparison.previous[metric]),
                _figure(comparison.differences[metric], sign="+"),
            ]
            for metric, value in comparison.values.items()
        ],
    )
    if comparison.auroc_interval is not None:
        low, high = comparison.auroc_interval
        yield f"Difference in AUROC: 95 % interval {low:+.4f} to {high:+.4f}: {comparison.verdict}."
    if comparison.newly_flagged is not None and comparison.no_longer_flagged is not None:
        newly, no_longer = comparison.newly_flagged, comparison.no_longer_flagged
        yield (
            f"Newly flagged: {newly.positives:,} positives, {newly.negatives:,} negatives; no longer flagged: "
            f"{no_longer.positives:,} and {no_longer.negatives:,}."
        )
    else:
        yield f"The decided class changed for {comparison.changed_decisions:,} records."


def _slices(name: str, split: SplitMetrics) -> Iterator[str]:
    for field, groups in split.slices.items():
        yield from ("", f"By {field}, {name}")
        yield from _table(
            ["group", "labelled", "positives", *(DECLARED[metric].title for metric in METRICS)],
            [
                [
                    group.group,
                    f"{group.labelled:,}",
                    _share(group.positive_share),
                    *(_figure(group.metrics.values[metric]) for metric in METRICS),
                ]
                for group in groups[:_SHOWN_GROUPS]
            ],
        )
        if len(groups) > _SHOWN_GROUPS:
            yield f"and {len(groups) - _SHOWN_GROUPS} more groups in metrics_report.json"


def _figure(value: float | None, *, sign: str = "") -> str:
    return "undefined" if value is None else f"{value:{sign}.4f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return aligned([header, *rows], right=True)
