"""Compare the roles that `init` finds in real tables with roles written down by hand before the code.

    python -m benchmarks.init_tables [--packages FOLDER]

A package that is not installed, or data that is not on this machine, leaves its tables out. FOLDER has bokeh_sampledata
and statsmodels where they are not installed (pip install --no-deps --target FOLDER bokeh_sampledata statsmodels).
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import sklearn.datasets

from benchmarks.review_data import REPOSITORY

SHARED = REPOSITORY.parent / "shared" / "data"


class Table(NamedTuple):
    """A table and its roles, as a person sees them.

    Attributes:
        source: package, or "data"; then the path in it.
        label: the column that --label names.
        roles: columns by role, separated by |; a column that is not named is a number.
    """

    source: str
    label: str
    roles: Mapping[str, str]


TABLES = {
    "clothing": Table("data/clothing-reviews", "Recommended IND", {
        "id": "review_id", "text": "Review Text|Title",
        "category": "Division Name|Department Name|Class Name|Clothing ID"}),
    "drugs": Table("data/drug-reviews", "effectiveness", {
        "id": "review_id", "text": "benefitsReview|sideEffectsReview|commentsReview",
        "category": "urlDrugName|condition|sideEffects"}),
    "cards": Table("data/published/cards.parquet", "player_class", {
        "id": "id", "text": "name|text|flavor",
        "category": "type|set|rarity|mechanics|dust|play_requirements|race|how_to_earn|how_to_earn_golden",
        "ignored": "collectible|targeting_arrow_text|faction|durability|entourage"}),
    "films": Table("data/published/imdb.parquet", "Genre_is_Drama", {
        "id": "Rank", "text": "Title|Description|Director|Actors"}),
    "titanic": Table("bokeh_sampledata/_data/titanic_all.csv", "survived", {
        "text": "name", "category": "class|sex"}),
    "penguins": Table("bokeh_sampledata/_data/penguins.csv", "species", {"category": "island|sex"}),
    "cars": Table("bokeh_sampledata/_data/auto-mpg.csv", "origin", {"text": "name"}),
    "orders": Table("bokeh_sampledata/_data/SampleSuperstore.csv.gz", "Segment", {
        "category": "Ship Mode|City|State|Postal Code|Region|Category|Sub-Category", "ignored": "Country"}),
    "airports": Table("bokeh_sampledata/_data/airports.csv", "Type", {
        "id": "AirportID", "text": "Name|City", "category": "Country",
        "ignored": "IATA|ICAO|Timezone|DST|TZ|source"}),
    "glass": Table("bokeh_sampledata/_data/forensic_glass.csv", "type", {}),
    "iris": Table("bokeh_sampledata/_data/iris.csv", "species", {}),
    "cows": Table("bokeh_sampledata/_data/cows.csv", "breed", {"category": "age"}),
    "routes": Table("bokeh_sampledata/_data/routes.csv.gz", "Airline", {
        "category": "AirlineID|Source|SourceID|Destination|DestinationID", "ignored": "Codeshare|Stops|Equipment"}),
    "cancer": Table("sklearn/load_breast_cancer", "target", {}),
    "wine": Table("sklearn/load_wine", "target", {}),
    "marriages": Table("statsmodels/datasets/fair/fair.csv", "rate_marriage", {
        "category": "occupation|occupation_husb"}),
    "health": Table("statsmodels/datasets/randhie/randhie.csv", "idp", {}),
}  # fmt: skip


def find(table: Table, scratch: Path) -> Path | None:
    """Return the file or folder of a table, written to `scratch` where it is none; None if it is not here."""
    package, _, path = table.source.partition("/")
    if package == "data":
        return SHARED / path if (SHARED / path).exists() else None
    if package == "sklearn":
        file = scratch / f"{path}.csv"
        getattr(sklearn.datasets, path)(as_frame=True).frame.to_csv(file, index=False)
        return file
    found = find_spec(package)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / path


def expected_roles(table: Table, columns: list[str]) -> dict[str, str]:
    """Return the role of each column."""
    by_hand = {name: role for role, names in table.roles.items() for name in names.split("|")}
    assert by_hand.keys() <= set(columns), sorted(by_hand.keys() - set(columns))
    return {name: "label" if name == table.label else by_hand.get(name, "number") for name in columns}


def compare(packages: Path | None) -> Iterator[tuple[str, int, list[str]]]:
    """Yield each table that is here: its name, the number of its columns, the columns with another role."""
    from container.init.profile import read_tables

    sys.path += [str(packages)] if packages else []
    with tempfile.TemporaryDirectory() as scratch:
        for name, table in TABLES.items():
            path = find(table, Path(scratch))
            if path is None:
                continue
            columns = read_tables([path], label=table.label, given={}, scratch=Path(scratch)).columns
            expected = expected_roles(table, list(columns))
            wrong = [
                f"{each.name}: {each.role} ({each.why}), not {expected[each.name]}"
                for each in columns.values()
                if each.role != expected[each.name]
            ]
            yield name, len(columns), wrong


def main() -> None:
    """Print a table of the columns with another role than the one written by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, help="folder with bokeh_sampledata and statsmodels")
    columns = different = 0
    for name, count, wrong in compare(parser.parse_args().packages):
        print(f"{name:12s}{count:4d} columns {len(wrong):3d} wrong  {'; '.join(wrong)}".rstrip())
        columns, different = columns + count, different + len(wrong)
    print(f"{columns - different} of {columns} columns have the role written by hand: {1 - different / columns:.1%}")


if __name__ == "__main__":
    main()
