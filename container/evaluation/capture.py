"""Measure recall if only the records with the highest scores are reviewed.

Count recall is the flagged share of the positives, dollar recall the flagged share of the positives' amounts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from container.evaluation.curves import Curve, Ranking, threshold_below


@dataclass(frozen=True)
class CapturePoint:
    """The records that are flagged within one limit.

    Attributes:
        flagged_share: of the records. false_positive_rate: of the negatives.
        precision: None if nothing is flagged.
        dollar_recall: None without amounts, or if the positives' amounts are 0.
    """

    threshold: float
    flagged: int
    flagged_share: float
    false_positive_rate: float
    precision: float | None
    count_recall: float
    dollar_recall: float | None


@dataclass(frozen=True)
class Capture:
    """Count and dollar recall of a split.

    Attributes:
        at_shares: at most this share of the records is flagged.
        at_false_positive_rate: at most this share of the negatives is flagged.
        count_curve, dollar_curve: x: share of the records flagged, y: recall; the latter None without amounts.
        positive_amount: sum of the positives' amounts; None without amounts.
    """

    at_shares: dict[float, CapturePoint]
    at_false_positive_rate: dict[float, CapturePoint]
    count_curve: Curve
    dollar_curve: Curve | None
    positive_amount: float | None


def capture(
    ranking: Ranking,
    *,
    positive_scores: np.ndarray,
    positive_amounts: np.ndarray | None,
    flagged_shares: Sequence[float],
    false_positive_rate: float,
) -> Capture:
    """Measure recall with a limit on flagged records. Records of equal score are flagged together, within the limit.

    Args:
        ranking: of all labelled records.
        positive_scores: [P]
        positive_amounts: at least 0. [P]
    """
    flagged = ranking.true_positives + ranking.false_positives  # [T]
    total = ranking.positives + ranking.negatives
    count_recall = ranking.true_positives / ranking.positives
    dollar_recall, amount = None, None
    if positive_amounts is not None:
        order = np.argsort(-positive_scores, kind="stable")
        sums = np.concatenate([[0.0], np.cumsum(positive_amounts[order])])
        amount = float(sums[-1])
        if amount > 0:
            dollar_recall = sums[ranking.true_positives] / amount

    def point(index: int) -> CapturePoint:
        return CapturePoint(
            threshold=threshold_below(ranking, index),
            flagged=int(flagged[index]),
            flagged_share=float(flagged[index] / total),
            false_positive_rate=float(ranking.false_positives[index] / ranking.negatives),
            precision=float(ranking.true_positives[index] / flagged[index]) if flagged[index] else None,
            count_recall=float(count_recall[index]),
            dollar_recall=None if dollar_recall is None else float(dollar_recall[index]),
        )

    def last_within(counts: np.ndarray, limit: float) -> int:
        return int(np.searchsorted(counts, limit * (1 + 1e-12), side="right")) - 1

    shares = flagged / total
    return Capture(
        at_shares={share: point(last_within(flagged, share * total)) for share in flagged_shares},
        at_false_positive_rate={
            false_positive_rate: point(last_within(ranking.false_positives, false_positive_rate * ranking.negatives))
        },
        count_curve=Curve(shares, count_recall),
        dollar_curve=None if dollar_recall is None else Curve(shares, dollar_recall),
        positive_amount=amount,
    )
