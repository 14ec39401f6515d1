"""All rows of a column decide how its numbers and dates are written."""

import pyarrow as pa
import pytest

from container.tables.notations import PLAIN, DateNotations, NumberNotations


def decided(cls, *slices, **customs):
    """Return the notation of a column that arrives in slices."""
    notations = cls()
    for cells in slices:
        notations.add(pa.array(cells))
    return notations.decide(**customs), notations


@pytest.mark.parametrize(
    ("slices", "written"),
    [
        ([["49", "39.306"], ["2.857", "3,5"]], "1.234,5"),
        ([["49", "39.306"], ["0.857", "7"]], PLAIN),  # a group of thousands does not begin with 0
        ([["3", "0,375"]], "1.234,5"),
        ([["3", "1,375,000", "2.5"]], "1,234.5"),
        ([["1.234,5"] * 300, ["12"] * 300, ["7,25"]], "1.234,5"),
        ([["5 kr", "1.234,50 kr"]], "1.234,5"),
    ],
)
def test_cells_that_only_one_notation_reads_decide_wherever_they_stand(slices, written):
    assert decided(NumberNotations, *slices)[0] == written


@pytest.mark.parametrize("cells", [["49", "39.306", "2.857"], ["49", "39,306", "2,857"]])
def test_other_columns_decide_about_groups_of_three_digits(cells):
    plain = PLAIN if "." in cells[1] else "1,234.5"
    for comma, written in ((None, plain), (False, plain), (True, "1.234,5")):
        found, notations = decided(NumberNotations, cells, decimal_comma=comma)
        assert (found, notations.decimal_comma, bool(notations.rivals(found))) == (written, None, True)


def test_whole_numbers_are_plain_whatever_other_columns_have():
    assert decided(NumberNotations, ["49", "1500"], decimal_comma=True)[0] == PLAIN


def test_a_point_of_decimals_is_no_number_of_a_column_with_decimal_commas():
    found, notations = decided(NumberNotations, ["1.234,50", "7,5", "12.5"])
    assert (found, dict(notations.counts[found].words)) == ("1.234,5", {"12.5": 1})


@pytest.mark.parametrize(
    ("slices", "written"),
    [
        ([["01/02/2024"] * 500, ["13/02/2024"]], "%d/%m/%Y"),
        ([["01/02/2024"] * 500, ["02/13/2024"]], "%m/%d/%Y"),
        ([[f"01-{month:02}-2022" for month in range(1, 13)]], "%d-%m-%Y"),
        ([[f"{month:02}/01/2022" for month in range(1, 13)]], "%m/%d/%Y"),
        ([[f"01/{month:02}/2022" for month in range(1, 13)]], "%d/%m/%Y"),
        ([[f"{day:02}/{month:02}/2022" for month in (3, 4) for day in range(1, 12)]], "%d/%m/%Y"),  # sorted
        ([[f"24/{month:02}/2{day}" for month in (1, 2) for day in range(1, 9)]], "%y/%m/%d"),  # sorted
        ([["05/06/2024", "06/05/2024"]], "%m/%d/%Y"),
    ],
)
def test_any_cell_or_the_steps_between_rows_show_where_the_day_stands(slices, written):
    assert decided(DateNotations, *slices)[0] == written


def test_dates_that_show_nothing_follow_the_other_columns_and_are_ambiguous():
    for day_first, written in ((None, "%m/%d/%Y"), (True, "%d/%m/%Y"), (False, "%m/%d/%Y")):
        found, notations = decided(DateNotations, ["05/06/2024", "06/05/2024"], day_first=day_first)
        assert (found, notations.is_ambiguous) == (written, True)
