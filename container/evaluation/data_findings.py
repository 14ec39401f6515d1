"""Find what is unusual in the data of a job: the report's findings on rows, columns and classes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from container.evaluation.charts import percent
from container.preprocessing.data_summary import IF_SHARED, shared_with_train

FEW_RECORDS, ENOUGH_RECORDS = 30, 200
_MANY_MISSING, _NEARLY_EMPTY = 0.2, 0.95  # share of the rows
_MANY_UNSEEN, _FEWEST_ROWS = 0.01, 5  # share of the rows, and rows
_LISTED = 8


@dataclass(frozen=True)
class Finding:
    """A sentence in the report."""

    level: str  # check (something may be wrong), note (information) or good
    text: str


def data_findings(summary: Mapping[str, Any]) -> list[Finding]:
    """Return findings on the rows, columns and classes of all splits; those of one kind are one finding."""
    return [*_rows(summary), *_columns(summary), *_classes(summary), *_drift(summary)]


def _rows(summary: Mapping[str, Any]) -> Iterator[Finding]:
    splits: Mapping[str, Any] = summary["splits"]
    for split, described in splits.items():
        if described["dropped_unlabelled"]:
            yield Finding("note", f"{described['dropped_unlabelled']:,} {split} rows without a label were dropped.")
        if described["duplicate_ids"]:
            yield Finding(
                "check",
                f"{described['duplicate_ids']:,} rows of {split} repeat the id of an earlier row, e.g. "
                f"{described['duplicate_id_example']}; all rows were kept.",
            )
        for what, shared in shared_with_train(described).items():
            yield Finding(
                "check", f"{what.capitalize()} of {split} that train has as well: {shared:,}. {IF_SHARED[what]}"
            )
    first = next(iter(splits.values()))
    for role, text in first["texts"].items():
        of_split = {split: described["texts"][role] for split, described in splits.items()}
        largest, truncated = _shares(
            {split: (of["truncated_records"], of["records"]) for split, of in of_split.items()}
        )
        if largest > 0:
            dropped = sum(of["cut_tokens"] for of in of_split.values())
            whole = "increase max_sen_len, or split the text with dialogue_chunker"
            if any(of["cut_chunks"] for of in of_split.values()):
                whole = "increase max_total_chunks"
            yield Finding(
                "check" if largest > 0.05 else "note",
                f"{text['column']} was truncated in {truncated}: {dropped:,} tokens dropped. To keep them, {whole}.",
            )
        largest, empty = _shares({split: (of["empty_records"], of["records"]) for split, of in of_split.items()})
        if largest > 0.05:
            yield Finding("note", f"{text['column']} is empty in {empty}.")


def _columns(summary: Mapping[str, Any]) -> Iterator[Finding]:
    splits: Mapping[str, Any] = summary["splits"]
    first = next(iter(splits.values()))
    missing = {name: numeric["imputed"] for name, numeric in first["numeric"].items()}
    missing |= {name: category["missing"] for name, category in first["categories"].items()}
    empty = {name: count / first["rows"] for name, count in missing.items() if count > _NEARLY_EMPTY * first["rows"]}
    constant = [name for name, numeric in first["numeric"].items() if numeric["std"] == 0]
    constant += [name for name, category in first["categories"].items() if category["distinct"] == 1]
    imputed, unseen = [], []
    for name in first["numeric"]:
        counts = {split: (of["numeric"][name]["imputed"], of["rows"]) for split, of in splits.items()}
        largest, text = _shares(counts)
        if largest > _MANY_MISSING and name not in empty:
            imputed.append(f"{name} in {text}")
    for name in first["categories"]:
        counts = {split: (of["categories"][name]["unseen_rows"], of["rows"]) for split, of in splits.items()}
        largest, text = _shares(counts)
        if largest > _MANY_UNSEEN and max(rows for rows, _ in counts.values()) >= _FEWEST_ROWS:
            unseen.append(f"{name} in {text}")
    unused = [name for name in constant if name not in empty]
    nearly = [f"{name} ({percent(share)} missing)" for name, share in empty.items()]
    for found, text, separator in (
        (unused, "One value in every row of train, so of no use: {}. Remove it.", ", "),
        (nearly, "Nearly empty in train: {}. Remove it, or find out why values are missing.", ", "),
        (imputed, "Missing numbers were imputed: {}.", "; "),
        (unseen, "Categories that do not occur in train: {}.", "; "),
    ):
        if found:
            yield Finding("check", text.format(listed(found, separator)))


def _classes(summary: Mapping[str, Any]) -> Iterator[Finding]:
    for split, described in summary["splits"].items():
        absent = [label for label, count in described["classes"].items() if not count]
        if absent and any(described["classes"].values()):
            what = "it is never learned" if split == "train" else "its metrics say nothing about it"
            yield Finding("check", f"{split} has no record of class {listed(absent)}: {what}.")


def listed(texts: Sequence[str], separator: str = ", ", *, most: int = _LISTED) -> str:
    """Join the first texts, and say how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return f"{separator.join(texts[:most])}{more}"


def _shares(counts: Mapping[str, tuple[int, int]]) -> tuple[float, str]:
    """Return the largest share of (part, whole) by split, and all shares as `12.0% of train, 3.0% of test`."""
    shares = {split: part / whole if whole else 0.0 for split, (part, whole) in counts.items()}
    return max(shares.values()), ", ".join(f"{percent(share)} of {split}" for split, share in shares.items() if share)


def _drift(summary: Mapping[str, Any]) -> Iterator[Finding]:
    """Report columns and classes that differ between train and test by more than sampling explains."""
    train, test = summary["splits"].get("train"), summary["splits"].get("test")
    if not train or not test or min(train["rows"], test["rows"]) < ENOUGH_RECORDS:
        return
    rows, compared = (train["rows"], test["rows"]), len(train["numeric"]) + len(train["classes"])
    certain = NormalDist().inv_cdf(1 - 0.05 / 2 / compared) * (1 / rows[0] + 1 / rows[1]) ** 0.5  # of all together
    for name, before in train["numeric"].items():
        after = test["numeric"].get(name)
        if after and before["std"] and after["mean"] is not None:
            shift = (after["mean"] - before["mean"]) / before["std"]
            if abs(shift) > max(0.25, certain):
                yield Finding(
                    "check",
                    f"{name} is {'higher' if shift > 0 else 'lower'} in test than in train: mean {after['mean']:.4g} "
                    f"instead of {before['mean']:.4g}, {abs(shift):.1f} standard deviations.",
                )
    totals = [sum(described["classes"].values()) for described in (train, test)]
    if not all(totals):
        return
    labels = list(train["classes"])
    for label in labels[1:] if len(labels) == 2 else labels:  # with two classes, one share implies the other
        count = train["classes"][label]
        before, after = count / totals[0], test["classes"].get(label, 0) / totals[1]
        if abs(after - before) > max(0.05, certain * (before * (1 - before)) ** 0.5):
            yield Finding(
                "check", f"Class {label} has {percent(before)} of train's rows and {percent(after)} of test's."
            )
