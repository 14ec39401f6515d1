"""Measure the roles that `init` chooses against the labelled columns of a published study of feature type inference.

    python -m benchmarks.roles [--split train]

../shared/data/published/README.md describes the data: names, statistics and five values of columns, and their types. A
decision gets these facts in the place of those that `init` computes of a real column. Rules are chosen on train alone;
--split train measures there. Columns that the study calls context-specific may have any role, and a number among them
counts as a mistake only in the strict precision of numbers.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.init_tables import SHARED
from benchmarks.printing import print_table
from container.init.facts import ColumnFacts
from container.init.roles import role_of

FOLDER = SHARED / "published" / "columns"
ROLES = ("number", "category", "date", "text", "ignored", "id")
FREE = "context-specific"
NO_AMOUNT = ("", "category", "text", "ignored", "id")
RIGHT = {  # the first role is the one that a type demands, if there is one
    "numeric": ("number",),
    "embedded-number": ("number",),
    "categorical": ("category",),
    "datetime": ("date",),
    "sentence": ("text",),
    "not-generalizable": ("ignored", "id"),
    "url": NO_AMOUNT,
    "list": NO_AMOUNT,
    FREE: ROLES,
}


@dataclass(frozen=True)
class PublishedColumn(ColumnFacts):
    """A column of which statistics and five values are known.

    Attributes:
        published: a row of the study's table.
    """

    published: Mapping[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> float:
        return self.empty[0]

    @property
    def filled(self) -> int:
        return int(self.published["total_vals"] - self.published["num_nans"])

    @property
    def distinct(self) -> int:
        return int(self.published["num_of_dist_val"])

    @cached_property
    def bounds(self) -> tuple[float, float]:
        known = self.numbers[np.isfinite(self.numbers)]
        ends = (self.published["min_val"], self.published["max_val"]) if self.published["std_dev"] else ()
        return float(min((*ends, *known))), float(max((*ends, *known)))

    @property
    def moments(self) -> tuple[float, float]:
        mean, deviation = self.published["mean"], self.published["std_dev"]
        return (mean, deviation) if deviation else super().moments


def read_columns(split: str) -> Iterator[tuple[str, PublishedColumn]]:
    """Yield the type and the facts of each column of train or test."""
    table = pd.read_csv(FOLDER / f"data_{split}.csv", keep_default_na=False, na_values=[""])
    for row in table.to_dict("records"):
        cells = pa.array(
            [None if pd.isna(row[f"sample_{k}"]) else str(row[f"sample_{k}"]) for k in range(1, 6)], pa.string()
        )
        rows = max(int(row["total_vals"]), 1)
        missing = row["num_nans"] / rows
        facts = PublishedColumn(str(row["Attribute_name"]), rows, (missing, missing), cells, published=row)
        yield row["y_act"], facts


def main() -> None:
    """Print the share of right roles, and precision and recall by role."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("train", "test"), default="test")
    split = parser.parse_args().split
    counts = Counter((kind, role_of(facts)[0]) for kind, facts in read_columns(split))
    right = sum(count for (kind, role), count in counts.items() if role in RIGHT[kind])
    free = sum(count for (kind, _), count in counts.items() if kind == FREE)
    total = counts.total()
    print(f"{split}: {right} of {total} roles are right: {right / total:.4f}; without {free} {FREE} columns: "
          f"{(right - free) / (total - free):.4f}")  # fmt: skip
    print(f"strict precision of number: {_precision(counts, 'number', strict=True):.4f}")
    print_table(
        "Precision and recall of each role, without context-specific columns",
        ["role", "precision", "recall"],
        [[role, f"{_precision(counts, role):.4f}", f"{_recall(counts, role):.4f}"] for role in ROLES[:-1]],
    )
    columns = [[kind, *(str(counts[kind, role]) for role in ROLES)] for kind in RIGHT]
    print_table("Columns by published type and role", ["type", *ROLES], columns)


def _precision(counts: Counter[tuple[str, str]], role: str, *, strict: bool = False) -> float:
    """Return the share of the columns of a role whose type allows it."""
    found = {kind: count for (kind, of), count in counts.items() if of == role and (strict or kind != FREE)}
    return sum(count for kind, count in found.items() if role in RIGHT[kind] and kind != FREE) / sum(found.values())


def _recall(counts: Counter[tuple[str, str]], role: str) -> float:
    """Return the share of the columns whose type demands a role that have a role of it."""
    wanted = {kind for kind, roles in RIGHT.items() if roles[0] == role}
    found = {(kind, of): count for (kind, of), count in counts.items() if kind in wanted}
    return sum(count for (kind, of), count in found.items() if of in RIGHT[kind]) / sum(found.values())


if __name__ == "__main__":
    main()
