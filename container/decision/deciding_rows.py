"""Name the rows whose predictions decide about a model: val, or all of train and val out of fold."""

from collections.abc import Collection, Mapping

import numpy as np

OUT_OF_FOLD = "out_of_fold"  # name of a split: every row of train, then of val, by networks that did not train on it


def chosen_on(splits: Collection[str]) -> str:
    """Return OUT_OF_FOLD if it is among the splits, else val."""
    return OUT_OF_FOLD if OUT_OF_FOLD in splits else "val"


def in_words(split: str) -> str:
    """Return where something is measured or fitted, as the end of a sentence."""
    return "out of fold" if split == OUT_OF_FOLD else f"on {split}"


def with_val_out_of_fold(logits: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the logits by split, with those of val out of fold if there are any. [N, K] each"""
    if OUT_OF_FOLD not in logits:
        return dict(logits)
    return {**logits, "val": logits[OUT_OF_FOLD][-len(logits["val"]) :]}
