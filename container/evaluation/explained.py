"""Choose the records whose reasons the report shows, and arrange the reasons for it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_RIGHT, _WRONG, _RECORDS = 4, 3, 10
_BARS, _CHARACTERS = 8, 1500
_SHADES = 3
_LEAST = 0.0005  # smaller contributions have no bar
_PIECE = re.compile(r"(.*)\[(\d+)\]", re.DOTALL)


@dataclass(frozen=True)
class Span:
    """A piece of a text; `shade` is 0 to 3, by the contribution as a share of the largest one of the record's texts."""

    text: str
    contribution: float
    shade: int


@dataclass(frozen=True)
class SignedBar:
    """The contribution of a column; `left` and `width` are percentages of the space for all bars."""

    name: str
    value: str
    contribution: float
    left: float
    width: float


@dataclass(frozen=True)
class ExplainedRecord:
    """A record with the reasons for its prediction.

    Attributes:
        group: why the record is shown.
        probability: of the explained class.
        reasons: as Predictor.explain returns them.
        texts: the columns that are texts.
    """

    group: str
    id: Any
    label: int | str
    decided: int | str
    probability: float
    reasons: Mapping[str, Any]
    texts: Sequence[str]

    def _place(self, part: str) -> tuple[str, int]:
        """Return the column of a part, and its number in the text."""
        piece = _PIECE.fullmatch(part)
        return (piece[1], int(piece[2])) if piece and piece[1] in self.texts else (part, 0)

    @property
    def spans(self) -> dict[str, list[Span]]:
        """Return the pieces of each text in its order; a long text is cut."""
        pieces: dict[str, dict[int, Mapping[str, Any]]] = {name: {} for name in self.texts}
        for part in self.reasons["contributions"]:
            column, number = self._place(part["part"])
            if column in pieces and part["value"] is not None:
                pieces[column][number] = part
        largest = max((abs(part["contribution"]) for of in pieces.values() for part in of.values()), default=0.0) or 1.0
        spans = {
            name: [
                Span(str(part["value"]), part["contribution"], round(_SHADES * abs(part["contribution"]) / largest))
                for _, part in sorted(of.items())
            ]
            for name, of in pieces.items()
        }
        return {name: _shown(of) for name, of in spans.items() if of}

    @property
    def bars(self) -> list[SignedBar]:
        """Return the sum of each text and the largest contributions of other columns, the largest first."""
        sums: dict[str, tuple[Any, float]] = {}
        for each in self.reasons["contributions"]:
            name, _ = self._place(each["part"])
            value = "" if name in self.texts else each["value"]
            sums[name] = (value, sums.get(name, ("", 0.0))[1] + each["contribution"])
        visible = [entry for entry in sums.items() if abs(entry[1][1]) >= _LEAST]
        chosen = sorted(visible, key=lambda entry: -abs(entry[1][1]))[:_BARS]
        lowest, highest = (f([0.0, *(of for _, (_, of) in chosen)]) for f in (min, max))
        scale = 100 / (highest - lowest or 1.0)
        return [
            SignedBar(
                name, "missing" if value is None else str(value), of, (min(of, 0) - lowest) * scale, abs(of) * scale
            )
            for name, (value, of) in chosen
        ]


def _shown(spans: list[Span]) -> list[Span]:
    kept, length = [], 0
    for span in spans:
        if length + len(span.text) > _CHARACTERS:
            return [*kept, Span(f"{span.text[: _CHARACTERS - length]}…", span.contribution, span.shade)]
        kept.append(span)
        length += len(span.text)
    return kept


def chosen_records(
    labels: np.ndarray, decided: np.ndarray, probabilities: np.ndarray, *, threshold: float | None
) -> list[tuple[str, int]]:
    """Return the group and the position of up to ten labelled records.

    Args:
        labels: class ids, negative if unlabelled. [N]
        decided: class ids. [N]
        probabilities: [N, K]
        threshold: of class 1 of two classes; None: the most probable class is decided.
    """
    labelled = np.flatnonzero(labels >= 0)
    sure = -probabilities[labelled, decided[labelled]]
    by_confidence = labelled[np.argsort(sure, kind="stable")]
    is_right = labels[by_confidence] == decided[by_confidence]
    right, wrong = by_confidence[is_right], by_confidence[~is_right]
    turns = np.array([np.count_nonzero(decided[right[:i]] == decided[right[i]]) for i in range(min(len(right), 200))])
    right = right[: len(turns)][np.argsort(turns, kind="stable")]  # the classes in turn
    ordered = np.sort(probabilities, axis=1)
    margins = ordered[:, -1] - ordered[:, -2] if threshold is None else np.abs(probabilities[:, 1] - threshold)
    near = labelled[np.argsort(margins[labelled], kind="stable")]
    groups = {"confident and right": right[:_RIGHT], "confident and wrong": wrong[:_WRONG]}
    chosen = {int(position): group for group, positions in groups.items() for position in positions}
    for position in near.tolist():
        if len(chosen) == _RECORDS:
            break
        chosen.setdefault(position, "near the threshold" if threshold is not None else "between two classes")
    return [(group, position) for position, group in chosen.items()]
