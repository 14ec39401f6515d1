"""Decide which columns, texts, scores and metrics of new records are out of bounds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import stats

from container.evaluation.bootstrap import Estimate
from container.evaluation.reliability import ReliabilityBin
from container.monitoring.baseline import Baseline, SampledTexts, Scores
from container.monitoring.drift import (
    Difference,
    Told,
    adjusted,
    counts_difference,
    numbers_difference,
    outcome_difference,
    share_difference,
)
from container.monitoring.profile import RecordProfile
from container.preprocessing.distributions import Categories, Distribution
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.numeric_summary import NumericSummary
from container.preprocessing.risk_tables import MISSING
from contracts.errors import shown
from contracts.steps import MonitorSettings

_WATCHED = ("auroc", "accuracy")  # other metrics are shown
SCORES, LABELS = "scores", "labels"


@dataclass(frozen=True)
class Check:
    """One comparison of the records with the baseline.

    Attributes:
        subject: a column, a text field, scores or labels.
        what: what is compared.
        distance: the difference. limit: it is out of bounds above it.
        p_value: of no difference, for all checks together; None: the difference is certain.
        psi: the population stability index, of distributions.
        about: what has changed, for a person.
    """

    subject: str
    what: str
    distance: float
    limit: float
    p_value: float | None
    about: str
    psi: float | None = None
    violated: bool = False


@dataclass(frozen=True)
class Current:
    """The records that are compared.

    Attributes:
        texts, told: of sampled records, by role.
        scores: of sampled records.
        labels: records of each class among those with a label; None without labels.
        labelled: the scores of sampled records with a label; None without labels.
        unknown_labels: rows with another label than those of the model.
    """

    profile: RecordProfile
    texts: Mapping[str, SampledTexts]
    lengths: Mapping[str, NumericSummary]
    told: Mapping[str, Told]
    scores: Scores
    labels: Mapping[str, int] | None = None
    labelled: Scores | None = None
    unknown_labels: Mapping[str, int] = field(default_factory=dict)


def check_records(
    baseline: Baseline, current: Current, fitted: FittedPreprocessing, settings: MonitorSettings
) -> list[Check]:
    """Return all checks, those that are out of bounds first; p-values are adjusted for their number.

    A difference is out of bounds if it is larger than its limit (or the population stability index than its own), and
    cannot be explained by the number of records.
    """
    families = (
        _columns(baseline, current.profile, fitted, settings),
        _texts(baseline, current, fitted, settings),
        _scores(baseline.scores, current.scores, settings),
        _labels(baseline, current, settings),
    )
    return _judged([*map(list, families)], settings)


def check_columns(
    baseline: Baseline, profile: RecordProfile, fitted: FittedPreprocessing, settings: MonitorSettings
) -> list[Check]:
    """Return the checks of the columns alone, as `check_records`."""
    return _judged([[*_columns(baseline, profile, fitted, settings)]], settings)


def _judged(families: Sequence[Sequence[Check]], settings: MonitorSettings) -> list[Check]:
    """Judge the checks; each family has an equal share of ALPHA, so that many columns do not hide the labels."""
    judged = []
    for checks in families:
        p_values = iter(adjusted([check.p_value for check in checks if check.p_value is not None]))
        for check in checks:
            p_value = None if check.p_value is None else min(1.0, next(p_values) * len(families))
            large = check.distance > check.limit or (check.psi or 0.0) > settings.max_psi
            violated = large and (p_value is None or p_value < settings.alpha)
            judged.append(replace(check, p_value=p_value, violated=violated))
    return sorted(judged, key=lambda check: (not check.violated, -check.distance / max(check.limit, 1e-9)))


def _check(subject: str, what: str, difference: Difference, limit: float, about: str) -> Check:
    return Check(subject, what, difference.distance, limit, difference.p_value, about, difference.psi)


def _of_shares(subject: str, what: str, *pairs: tuple[float, int], limit: float, examples: Iterable[str] = ()) -> Check:
    """Compare the shares of records (part, whole), then and now, that something is true of."""
    then, now = pairs
    shares = f"{then[0] / max(then[1], 1):.1%} of the records then, {now[0] / max(now[1], 1):.1%} now"
    about = ", such as ".join([shares, *[", ".join(map(shown, examples))][: bool(examples)]])
    return _check(subject, what, share_difference(then, now), limit, about)


def _of_numbers(subject: str, what: str, then: Distribution, now: NumericSummary, limit: float) -> Check:
    about = f"median {_median(then.edges, then.counts)} then, {_median(*now.distribution.items())} now"
    return _check(subject, what, numbers_difference(then, then.like(now)), limit, about)


def _median_score(scores: Scores) -> str:
    return f"median {_median((*scores.scores.edges, 1.0), scores.scores.counts)}"


def _median(values: Sequence[float] | np.ndarray, counts: Sequence[int] | np.ndarray) -> str:
    ranks = np.cumsum(counts)
    return f"{values[int(np.searchsorted(ranks, ranks[-1] / 2))]:.4g}" if len(ranks) and ranks[-1] else "none"


def _columns(
    baseline: Baseline, profile: RecordProfile, fitted: FittedPreprocessing, settings: MonitorSettings
) -> Iterator[Check]:
    rows, table = profile.rows, baseline.table
    for name in fitted.feature_inputs:
        if name not in profile.columns:
            yield Check(name, "absent", 1.0, 0.0, None, "no record has the column")
        elif name not in fitted.categorical_columns:
            then, now = (0, table.rows), (profile.unreadable[name], rows)
            yield _of_shares(name, "type", then, now, limit=settings.max_share, examples=profile.examples.get(name, ()))
    for name, summary in profile.numbers.items():
        if name in table.numbers and (name in profile.columns or name not in fitted.raw_numbers):
            then = table.numbers[name]
            missing = (then.missing, then.missing + then.total), (summary.missing, summary.missing + summary.count)
            yield _of_shares(name, "missing", *missing, limit=settings.max_share)
            yield _of_numbers(name, "distribution", then, summary, settings.max_distance)
    for name, counts in profile.categories.items():
        if name in table.categories and name in profile.columns:
            yield from _categories(name, table.categories[name], counts, profile, settings)


def _categories(
    name: str, then: Categories, counts: Mapping[str, int], profile: RecordProfile, settings: MonitorSettings
) -> Iterator[Check]:
    rows, unseen, missing = profile.rows, profile.unseen[name], counts.get(MISSING, 0)
    yield _of_shares(name, "missing", (then.missing, then.total), (missing, rows), limit=settings.max_share)
    expected = min(then.once, unseen * then.total / rows)  # fewer than expected are no reason for a warning
    pairs, examples = [(expected, then.total), (unseen, rows)], profile.examples.get(name, ())
    yield _of_shares(name, "unseen", *pairs, limit=settings.max_share, examples=examples)
    names = [category for category in then.counts if category != MISSING]
    before, now = [then.counts[category] for category in names], [counts.get(category, 0) for category in names]
    others = rows - missing - sum(now)  # also unseen ones: some categories of train would be unseen without their row
    change = np.array([*now, 0]) / rows - np.array([*before, 0]) / max(then.total, 1)
    most = int(np.abs(change).argmax())
    about = f"most: {shown([*names, None][most])}, {change[most]:+.1%} of the records"
    difference = counts_difference(before, now, others=(then.others, others))
    yield _check(name, "distribution", difference, settings.max_distance, about)


def _texts(
    baseline: Baseline, current: Current, fitted: FittedPreprocessing, settings: MonitorSettings
) -> Iterator[Check]:
    for text in fitted.text_fields:
        role, name = text.role, text.name
        if not current.profile.columns.keys().isdisjoint(text.columns):
            yield _of_numbers(name, "length", baseline.lengths[role], current.lengths[role], settings.max_distance)
            samples = [each[role] for each in (baseline.texts, current.texts)]
            missing = [(each.empty, len(each.unknown)) for each in samples]
            yield _of_shares(name, "missing", *missing, limit=settings.max_share)
            shares = [(sum(count > 0 for count in each.unknown), len(each.unknown)) for each in samples]
            yield _of_shares(name, "unknown tokens", *shares, limit=settings.max_share)
            if role in current.told:
                about = f"a classifier tells new texts from old ones, with an AUROC of {current.told[role].auroc:.3f}"
                yield _check(name, "words", current.told[role].difference, settings.max_distance, about)


def _scores(then: Scores, now: Scores, settings: MonitorSettings) -> Iterator[Check]:
    about = " then, ".join(_median_score(each) for each in (then, now)) + " now"
    difference = numbers_difference(then.scores, now.scores)
    yield _check(SCORES, "distribution", difference, settings.max_distance, about)
    if len(then.decided) > 2:
        difference = counts_difference(*([each.decided[name] for name in then.decided] for each in (then, now)))
        yield _check(SCORES, "classes", difference, settings.max_distance, "records of each most probable class")


def _labels(baseline: Baseline, current: Current, settings: MonitorSettings) -> Iterator[Check]:
    if current.labels is None or current.labelled is None:
        return
    then, now, classes = baseline.scores, current.labelled, baseline.table.labels
    counts = [[each[name] for name in classes] for each in (classes, current.labels)]
    yield _check(LABELS, "distribution", counts_difference(*counts), settings.max_distance, "records of each class")
    unknown = sum(current.unknown_labels.values())
    shares = (0, sum(counts[0])), (unknown, unknown + sum(counts[1]))
    yield _of_shares(LABELS, "unknown", *shares, limit=settings.max_share, examples=[*current.unknown_labels][:5])
    difference = outcome_difference(*map(_bands, (then.calibration, now.calibration)))
    about = f"the share of the outcome in a band of scores changed by {difference.distance:.1%} on average"
    yield _check(LABELS, "calibration", difference, settings.max_distance, about)
    for name in _WATCHED:
        before, after = ((scores.metrics or {}).get(name) or Estimate(None) for scores in (then, now))
        if before.value is not None and after.value is not None:
            error, drop = np.hypot(before.standard_error or 0, after.standard_error or 0), before.value - after.value
            p_value = float(stats.norm.sf(drop / error)) if error else 1.0
            about = f"{before.value:.3f} then, {after.value:.3f} now"
            yield Check(LABELS, name, max(0.0, drop), settings.max_metric_drop, p_value, about)


def _bands(bins: tuple[ReliabilityBin, ...]) -> dict[int, tuple[int, float]]:
    return {round(10 * each.lower): (each.count, each.observed) for each in bins}
