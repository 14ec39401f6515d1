"""The role of a column follows from its cells and its name, and the table shows why."""

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.init_tables import TABLES, expected_roles, find
from container.init.facts import ColumnFacts, facts_of
from container.init.profile import read_tables
from container.init.roles import decide_roles
from contracts.errors import ContractError

ROWS = 200
RNG = np.random.default_rng(0)


def words(count):
    return [" ".join(RNG.choice(["late", "parcel", "refund", "blue", "shoe", "size"], count)) for _ in range(ROWS)]


def role_of(name, cells):
    """Return the role and the reason of a column beside a text and a label."""
    table = pa.table({name: cells, "note": words(9), "y": ["a", "b"] * (ROWS // 2)})
    missing = {each: [table[each].null_count] * 2 for each in table.column_names}
    column = decide_roles(facts_of(table, rows=ROWS, missing=missing), label="y", given={})[name]
    return column.role, column.why


CASES = {
    "numbers": ("price", [str(i / 7) for i in range(ROWS)], "number", "numbers"),
    "thousands": ("price", [f"{i * 997:,}" for i in range(ROWS)], "number", "number_format 1,234.5"),
    "euros": ("price", [f"{i},{i % 90 + 10} €" for i in range(ROWS)], "number", "number_format 1.234,5"),
    "percent": ("share", [f"{i % 90} %" for i in range(ROWS)], "number", "number_format 1,234.5"),
    "zero and one": ("is_new", ["0", "1"] * (ROWS // 2), "category", "2 whole numbers, codes rather than amounts"),
    "booleans": ("is_new", [True, False] * (ROWS // 2), "category", "2 whole numbers, codes rather than amounts"),
    "coded categories": ("type", [str(i % 6 + 1) for i in range(ROWS)], "category", "6 whole numbers, codes"),
    "ages": ("patient age", [str(RNG.integers(18, 90)) for _ in range(ROWS)], "number", "numbers"),
    "few counts": ("n", [str(i % 4) for i in range(ROWS)], "number", "numbers"),
    "counts without a name": ("x", [str(n) for n in RNG.poisson(40, ROWS)], "number", "whole numbers, amounts"),
    "a flag or nothing": ("vip", ["X", None] * (ROWS // 2), "category", "one value, or missing"),
    "one number or nothing": ("vip", [1, None] * (ROWS // 2), "category", "one value, or missing"),
    "codes with leading zeros and points": ("c", [f"00{i % 9}.1" for i in range(ROWS)], "category", "leading zeros"),
    "periods": ("c", [f"{i % 9 + 1:02d}.2024" for i in range(ROWS)], "category", "leading zeros"),
    "versions": ("c", [f"1.{i % 11 + 1}" for i in range(ROWS)], "category", "versions"),
    "versions by name": ("Version", [f"{i % 3 + 1}.5" for i in range(ROWS)], "category", "named like a code"),
    "digits and an E": ("c", [f"{i % 9 + 11}E{i % 4}" for i in range(ROWS)], "category", "digits around an E"),
    "numbers of companies": (
        "Siren", [f"{RNG.integers(111, 999)} {i + 111} 852" for i in range(ROWS)], "ignored", "same number of digits",
    ),
    "grouped amounts": ("Siren", [f"{RNG.integers(1, 999)} 852" for _ in range(ROWS)], "number", "number_format"),
    "prices of both precisions": ("price", ["12", "9.50", "7.25", "3.00"] * (ROWS // 4), "number", "numbers"),
    "an amount of codes": ("zip count", [str(100 + i % 90) for i in range(ROWS)], "number", "numbers"),
    "e-mail addresses": ("mail", [f"jo{i}@{'ab'[i % 2]}.org" for i in range(ROWS)], "category", "category_part domain"),
    "URLs": ("web", [f"http://a{i}.{['ch', 'at'][i % 2]}/x" for i in range(ROWS)], "category", "top_level_domain"),
    "IP addresses": ("ip", [f"{10 + i % 3}.1.{i}.7" for i in range(ROWS)], "category", "category_part first_byte"),
    "phone numbers": ("Phone", [f"(21{i % 4}) 555-{i:04d}" for i in range(ROWS)], "category", "category_part first_3"),
    "persons": ("name", ["Ada Lovelace", "Max Born", "Lise Meitner"] * 66 + ["Ada Byron"] * 2, "ignored", "persons"),
    "yes and no": ("is_new", ["yes", "no"] * (ROWS // 2), "category", "2 values"),
    "zip codes": ("town", [f"{i % 50:05d}" for i in range(ROWS)], "category", "leading zeros"),
    "codes by name": ("Postal Code", [str(90000 + i % 50) for i in range(ROWS)], "category", "named like a code"),
    "an id": ("OrderID", [str(7 * i + i % 2) for i in range(ROWS)], "id", "unique"),
    "a counter": ("no", [str(i + 5) for i in range(ROWS)], "id", "like a counter"),
    "postal codes": ("zip", [f"{100 + 37 * i:05d}" for i in range(ROWS)], "category", "category_part first_2"),
    "a code as id": ("key", [f"K-{i:x}" for i in range(ROWS)], "id", "unique codes"),
    "an index of pandas": ("Unnamed: 0", [str(i) for i in range(ROWS)], "ignored", "an index that pandas saved"),
    "an index of chosen rows": ("Unnamed: 0", [str(i * i) for i in range(ROWS)], "ignored", "an index"),
    "an index of repeated rows": ("", [str(i * i % 9999) for i in [*range(ROWS - 5), *range(5)]], "ignored", "index"),
    "unique words": ("port", [chr(65 + i % 26) + chr(75 + i // 26) for i in range(ROWS)], "ignored", "hardly repeat"),
    "a constant": ("country", ["US"] * ROWS, "ignored", "constant"),
    "nothing": ("age", [None] * ROWS, "ignored", "empty"),
    "nearly nothing": ("age", ["3", "4", *[None] * (ROWS - 2)], "ignored", "nearly empty: 99%"),
    "texts": ("review", words(12), "text", "words on average"),
    "short names": ("name", [f"{a} {i}nd" for i, a in enumerate(words(1))], "text", "distinct"),
    "Japanese": ("review", ["とても良い商品です" + chr(0x4E00 + i) for i in range(ROWS)], "text", "words on average"),
    "cities": ("city", ["Oslo", "New York", "Rome", "Lima"] * (ROWS // 4), "category", "4 values"),
    "marked chats": (
        "chat", [f"[bom]hello {i}, my parcel is late[eom][bom]it will come soon[eom]" for i in range(ROWS)], "text",
        "words on average",
    ),
    "lists": ("tags", ["['a', 'b']", "['c']"] * (ROWS // 2), "category", "lists or JSON"),
    "ISO dates": ("day", [f"2026-01-{i % 28 + 1:02d}" for i in range(ROWS)], "date", "dates"),
    "German dates": ("day", [f"{i % 28 + 1:02d}.03.2026 10:00" for i in range(ROWS)], "date", "dates"),
    "written dates": ("day", [f"Mar {i % 28 + 1}, 2026" for i in range(ROWS)], "date", "dates"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_column_gets_its_role_and_the_reason(case):
    name, cells, role, why = CASES[case]
    found, reason = role_of(name, cells)
    assert (found, why in reason) == (role, True), (found, reason)


def test_of_several_ids_the_one_with_the_name_of_an_id_stays():
    table = pa.table({"no": range(ROWS), "row_id": range(ROWS), "note": words(9), "y": ["a", "b"] * (ROWS // 2)})
    columns = decide_roles(
        facts_of(table, rows=ROWS, missing=dict.fromkeys(table.column_names, (0, 0))), label="y", given={}
    )
    assert (columns["row_id"].role, columns["no"].role) == ("id", "ignored")


def test_the_roles_that_the_user_names_win():
    table = pa.table({"no": range(ROWS), "note": words(9), "y": ["a", "b"] * (ROWS // 2)})
    facts = facts_of(table, rows=ROWS, missing=dict.fromkeys(table.column_names, (0, 0)))
    columns = decide_roles(facts, label="y", given={"no": ("number", "--number"), "note": ("ignored", "--ignore")})
    assert columns["note"].role == "ignored"
    assert columns["no"].role == "number"


def test_a_number_is_never_read_as_text_and_a_table_without_inputs_is_an_error():
    table = pa.table({"glucose": [57 + i % 142 for i in range(ROWS)], "no": range(ROWS), "y": ["a", "b"] * (ROWS // 2)})
    facts = facts_of(table, rows=ROWS, missing=dict.fromkeys(table.column_names, (0, 0)))
    roles = {name: column.role for name, column in decide_roles(facts, label="y", given={}).items()}
    assert roles == {"glucose": "number", "no": "id", "y": "label"}
    with pytest.raises(ContractError, match="no column is a text, a number, a category or a date"):
        decide_roles({name: facts[name] for name in ("no", "y")}, label="y", given={})


@pytest.mark.parametrize("role", ["number", "date"])
def test_a_role_that_the_cells_contradict_is_an_error(role):
    cells = ["2026-01-01" if role == "date" else "1,234.50"] * (ROWS - 1)
    table = pa.table({"a": [*cells, "on request"], "y": words(1)})
    facts = facts_of(table, rows=ROWS, missing=dict.fromkeys(table.column_names, (0, 0)))
    with pytest.raises(ContractError, match=f"--x: column 'a': 1 of {ROWS} cells cannot be read as a {role}, e.g."):
        decide_roles(facts, label="y", given={"a": (role, "--x")})


@pytest.mark.parametrize("role", ["number", "date"])
def test_an_empty_column_is_neither_number_nor_date(role):
    facts = {"a": ColumnFacts("a", pa.nulls(2, pa.string()), rows=2, empty=(1.0, 1.0))}
    with pytest.raises(ContractError, match="--x: column 'a': every cell is empty\nLeave out --x."):
        decide_roles({**facts, "y": facts["a"]}, label="y", given={"a": (role, "--x")})


def test_a_column_with_the_name_of_a_part_of_a_date_is_ignored():
    days = [f"2026-01-{day % 28 + 1:02}" for day in range(ROWS)]
    table = pa.table({"day": days, "day_month": ["1"] * 9 + ["2"] * (ROWS - 9), "note": words(9), "y": words(1)})
    facts = facts_of(table, rows=ROWS, missing=dict.fromkeys(table.column_names, (0, 0)))
    column = decide_roles(facts, label="y", given={})["day_month"]
    assert (column.role, column.why) == ("ignored", "the date 'day' gives the model an input of this name")
    assert decide_roles(facts, label="y", given={"day_month": ("number", "--number")})["day_month"].role == "number"


def test_times_with_and_without_a_zone_are_no_dates():
    facts = {"a": ColumnFacts("a", pa.array(["2026-01-01T10:00:00", "2026-01-01T10:00:00Z"]), rows=2, empty=(0.0, 0.0))}
    with pytest.raises(ContractError, match="--date: column 'a': some times have a time zone, and others have none"):
        decide_roles({**facts, "y": facts["a"]}, label="y", given={"a": ("date", "--date")})


def test_a_column_that_the_table_lacks_is_an_error_with_the_nearest_name():
    facts = {"price": ColumnFacts("price", pa.array(["1", "2"]), rows=2, empty=(0.0, 0.0))}
    with pytest.raises(ContractError, match="no column 'prize'.*'price'"):
        decide_roles(facts, label="prize", given={})


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.source.startswith("sklearn")])
def test_real_tables_have_the_roles_that_were_written_by_hand(name, tmp_path):
    table = TABLES[name]
    path = find(table, tmp_path)
    assert path is not None
    columns = read_tables([path], label=table.label, given={}, scratch=tmp_path).columns
    expected = expected_roles(table, list(columns))
    assert {each.name for each in columns.values() if each.role != expected[each.name]} == set()
