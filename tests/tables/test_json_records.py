"""A JSON record means the same in a part file of the preprocessing step and in a request."""

from pathlib import Path

import pyarrow as pa
import pytest

from container.serving.errors import RequestError
from container.tables.part_files import find_part_files
from container.tables.records import records_to_table
from container.tables.table_file import Origin
from container.tables.values import keys, numbers, texts
from contracts.errors import ContractError
from contracts.serving import JSON, JSON_LINES
from testing.serving import read_records


def of_file(record: str, folder: Path, name: str = "part-0.jsonl") -> pa.Table:
    (folder / name).write_bytes(record.encode(errors="surrogatepass"))
    return pa.concat_tables([part.table for part in find_part_files(folder, scratch=folder).iter_tables()])


def of_request(record: str, content_type: str = JSON_LINES) -> pa.Table:
    return read_records(record.encode(errors="surrogatepass"), content_type, ["c"])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("5", "5"), ("-0", "0"), ("1.10", "1.1"), ("1e-5", "1e-05"), ("1e400", "inf"), ("true", "true"),
        ("false", "false"), ("NaN", None), ("Infinity", "inf"), ("null", None), ('"007"', "007"),
        ("9" * 5000, "9" * 5000), ("9" * 400 + ".5", "inf"), (r'"a \ud83d\ude00"', "a 😀"),
        (r'"a \ud800 b"', "a \ufffd b"), ('"a \ud800 b"', "a \ufffd b"),
    ],
)  # fmt: skip
def test_a_value_has_the_same_text_in_a_file_and_in_a_request(tmp_path, written, expected):
    lines = f'{{"c": {written}}}\n{{"c": "x"}}\n'
    tables = [of_file(lines, tmp_path), of_request(lines), of_request(f'{{"c": {written}}}', JSON)]
    assert [texts(table["c"])[0] for table in tables] == [expected] * 3
    assert len({keys(table["c"])[0].as_py() for table in tables}) == 1


@pytest.mark.parametrize("value", [1e16, -1e16, 1e3, 1e-5, 1e20, 0.5])
def test_a_float_is_one_category_in_json_and_in_a_dict(value: float) -> None:
    tables = [of_request(f'{{"c": {value!r}}}'), of_request(f'{{"c": {value:e}}}'), records_to_table([{"c": value}])]
    assert len({keys(table["c"])[0].as_py() for table in tables}) == 1


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_one_text_and_one_category_in_every_form(tmp_path: Path, value: bool) -> None:
    written = str(value).lower()
    tables = [of_file(f'{{"c": {written}}}', tmp_path), of_request(f'{{"c": {written}}}')]
    tables += [records_to_table([{"c": value}]), records_to_table([{"c": value}, {"c": "x"}])]
    for table in tables:
        assert texts(table["c"])[0] == written
        assert keys(table["c"])[0].as_py() == str(int(value))
        assert numbers(table["c"].slice(0, 1), "c", origin=Origin()).tolist() == [int(value)]


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ('{"c": 1, "d": 1, "c": 2}', "the key 'c' occurs more than once"),
        ('{"c": {"d": 1, "d": 2}}', "the key 'd' occurs more than once"),
        ('{"c": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
)
@pytest.mark.parametrize("name", ["part-0.jsonl", "part-0.json"])
def test_an_ambiguous_or_deep_record_is_refused_with_its_row(tmp_path: Path, name: str, row: str, cause: str) -> None:
    whole = f'{{"c": 0}}\n{row}\n{{"c": 3}}\n' if name.endswith("l") else f'[{{"c": 0}}, {row}]'
    with pytest.raises(ContractError, match=rf"{name}: row 2: .*{cause}"):
        of_file(whole, tmp_path, name)
    with pytest.raises(RequestError, match=f"{'line 2 is not JSON' if name.endswith('l') else 'record 2'}: .*{cause}"):
        of_request(whole, JSON_LINES if name.endswith("l") else JSON)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_error_in_json_lines_counts_empty_lines(end: str) -> None:
    with pytest.raises(RequestError, match="line 4 is not JSON"):
        of_request(end.join(["", '{"c": 1}', " ", "{", ""]))


def test_a_column_name_with_a_lone_surrogate_is_refused_everywhere(tmp_path: Path) -> None:
    row = r'{"c": 1, "\ud800": 2}'
    for read in (lambda: of_file(row, tmp_path), lambda: of_request(row), lambda: records_to_table([{"\ud800": 1}])):
        with pytest.raises((ContractError, RequestError), match=r"column name '\\ud800' has a lone surrogate"):
            read()


def test_names_that_have_one_text_are_refused_in_a_caller_s_record() -> None:
    with pytest.raises(ContractError, match="record 2: the column '1' occurs twice"):
        records_to_table([{1: 5}, {1: 6, "1": 7}])


def test_an_integer_of_any_size_has_its_digits_in_a_caller_s_record() -> None:
    for records in ([{"c": 10**5000}], [{"c": "x"}, {"c": 10**5000}]):
        assert texts(records_to_table(records)["c"])[-1] == "1" + "0" * 5000


@pytest.mark.parametrize(
    "damaged", ['{"c": "x"}, {"c": "y\nz"}\n', '{"c": 1}, {"c": 2\n"d": 3}\n', '{"c": 1}\n{"c": "y\nz"}\n']
)
def test_lines_that_are_no_objects_do_not_become_other_objects_together(tmp_path: Path, damaged: str) -> None:
    with pytest.raises(ContractError, match=r"row 2 is not JSON"):
        of_file(damaged, tmp_path)


def test_a_byte_that_is_not_utf_8_is_named_with_the_row_and_the_text_before_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"c": 1}\n{"c": "M\xfcller"}\n')
    with pytest.raises(ContractError, match=r"a\.jsonl: after row 0: byte 0xFC after .*\"M' is not UTF-8"):
        find_part_files(tmp_path, scratch=tmp_path)


def test_a_file_that_ends_inside_a_character_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"c": 1}\n\xe2\x82')
    with pytest.raises(ContractError, match=r"a\.jsonl: ends inside a character, after row 1"):
        find_part_files(tmp_path, scratch=tmp_path)
