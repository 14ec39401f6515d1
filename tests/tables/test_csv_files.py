"""CSV and TSV text: the number of records is certain, and errors name the place."""

import csv
import gzip
import io
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.serving.errors import RequestError
from container.tables import csv_blocks, csv_files
from container.tables.channel_files import column_names, iter_tables
from container.tables.csv_blocks import Block, CsvText
from container.tables.csv_files import csv_batches
from container.tables.part_files import find_part_files
from contracts.errors import ContractError
from contracts.serving import CSV
from testing.serving import read_records

BLOCK_BYTES = 64  # in the tests of random texts; larger than their rows
BEGINS = "the cell begins with a quote"
FOLLOWED = f"{BEGINS}, and a later quote in it is followed by"
NO_QUOTE = "the cell does not begin with a quote"


def read(path: Path) -> list[list[str]]:
    names = column_names(path)
    return [
        list(row.values()) for part in iter_tables([path], names, rows_per_batch=50) for row in part.table.to_pylist()
    ]


def refusal(path: Path) -> ContractError:
    with pytest.raises(ContractError) as caught:
        read(path)
    assert caught.value.cause.startswith(f"{path}: ")
    assert caught.value.fix
    return caught.value


def write(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    data = content.encode() if isinstance(content, str) else content
    path = folder / name
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def cells(text: str, columns: int) -> list[list[str]] | None:
    """Read a text with Python's csv module; None where it or a row's length is invalid."""
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return None
    rows = [row or [""] for row in rows if row or columns == 1]
    return rows if all(len(row) == columns for row in rows) else None


def blocks_cells(text: str, columns: int) -> list[list[str]] | None:
    """Read a text in small blocks; None where it is refused."""
    names = tuple(map(str, range(columns)))
    layout = CsvText("text", ",", has_header=False, columns=names)
    with mock.patch.object(csv_files, "BLOCK_BYTES", BLOCK_BYTES):
        try:
            batches = list(csv_batches(io.BytesIO(text.encode()), layout, columns=names))
        except ContractError:
            return None
    return [list(row.values()) for batch in batches for row in batch.to_pylist()]


@st.composite
def valid_csv(draw: st.DrawFn) -> tuple[str, int]:
    """Draw a valid text and its number of columns."""
    columns = draw(st.integers(1, 3))
    row = st.lists(st.text('ab",\n\ré ', max_size=4), min_size=columns, max_size=columns)
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    always = draw(st.booleans())
    lines = [
        ",".join(
            f'"{cell.replace(chr(34), 2 * chr(34))}"' if always or set(cell) & set('",\n\r') else cell for cell in line
        )
        for line in draw(st.lists(row, max_size=20))
    ]
    return end.join(lines) + draw(st.sampled_from([end, ""])), columns


@given(valid_csv())
def test_records_and_cells_of_a_valid_text_are_those_of_pythons_csv_module(text_and_columns: tuple[str, int]) -> None:
    text, columns = text_and_columns
    assert blocks_cells(text, columns) == cells(text, columns) is not None


@given(valid_csv(), st.data())
def test_a_quote_too_many_or_too_few_never_changes_the_number_of_records(text_and_columns, data):
    text, columns = text_and_columns
    at = data.draw(st.integers(0, len(text)))
    changed = text[:at] + (text[at + 1 :] if text[at : at + 1] == '"' and data.draw(st.booleans()) else f'"{text[at:]}')
    found = blocks_cells(changed, columns)
    if found is not None:
        assert found == cells(changed, columns)
        if at < len(text):  # at its end it may begin a record
            assert len(found) == len(blocks_cells(text, columns) or [])


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("rows_after", [0, 30, 600_000])
def test_a_quote_that_is_never_closed_is_named_with_its_row(tmp_path: Path, name: str, rows_after: int) -> None:
    path = write(
        tmp_path, "id,text\n" + '1,"a\n""b"""\n' * 500 + '501,"open\n' + "502,an ordinary row\n" * rows_after, name
    )
    too_long = ", or the row is too long" if rows_after > 30 else ""
    assert refusal(path).cause == f"{path}: row 501, column 'text': {BEGINS} that is never closed{too_long}"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('id,text\n1,a\n2,"b\n3,c\n4,"d\n', f"row 2, column 'text': {FOLLOWED} 'd'"),
        ('id,text\n1,a\n"2,b\n3,c\n', f"row 2, column 'id': {BEGINS} that is never closed"),
        ('id,text\n1,"a"b\n', f"row 1, column 'text': {FOLLOWED} 'b'"),
        ('id,text\n1,"a\\"é"\n', f"row 1, column 'text': {FOLLOWED} 'é'"),
        ('id,text\n1,a"\n', f"row 1, column 'text': {NO_QUOTE}"),
        ('id,text\n1,a""b\n', f"row 1, column 'text': {NO_QUOTE}"),
        ('id,text\n1, "a"\n', f"row 1, column 'text': {NO_QUOTE}"),
        ('id,"text\n1,a\n', f"the header, column 2: {BEGINS} that is never closed"),
        ('id,text\n1\n2,"a\n', "row 1: has 1 columns instead of 2: '1'"),
    ],
)
def test_the_first_misplaced_quote_is_named_with_its_cell(tmp_path: Path, text: str, place: str) -> None:
    path = write(tmp_path, text)
    assert refusal(path).cause.startswith(f"{path}: {place}")


def test_a_quote_inside_an_unquoted_cell_is_text(tmp_path: Path) -> None:
    text = 'id,text\n1,5" pipe and 3" pipe\n2,"a, 5"" pipe"\n'
    assert read(write(tmp_path, text)) == [["1", '5" pipe and 3" pipe'], ["2", 'a, 5" pipe']]


def test_a_quoted_cell_may_contain_line_ends_and_delimiters(tmp_path: Path) -> None:
    text = '\ufeff"i\nd"\ttext\r\n1\t"a\r\n\r\nb\tc"\r\n2\t""\r\n'
    path = write(tmp_path, text, "a.tsv")
    assert column_names(path) == ["i\nd", "text"]
    assert read(path) == [["1", "a\r\n\r\nb\tc"], ["2", ""]]


def test_lines_may_end_with_carriage_returns(tmp_path: Path) -> None:
    path = write(tmp_path, "id,text\r" + '1,"a\nb"\r' * 300_000)
    assert read(path) == [["1", "a\nb"]] * 300_000


def test_a_cell_may_be_larger_than_a_block(tmp_path: Path) -> None:
    long = 'a,"\n' * 1_000_000  # with its quotes doubled, 5 MB
    path = write(tmp_path, f'id,text\n1,"{long.replace(chr(34), 2 * chr(34))}"\n2,b\n')
    assert read(path) == [["1", long], ["2", "b"]]


@pytest.mark.parametrize("cell", ["a" * (9 << 20), f'"{"a" * (9 << 20)}"'])
def test_a_row_that_is_too_long_is_named(tmp_path: Path, cell: str) -> None:
    path = write(tmp_path, f"id,text\n1,a\n2,{cell}\n")
    error = refusal(path)
    assert error.cause.startswith(f"{path}: row 2")
    assert error.fix.endswith("Parquet.")


def test_a_column_name_may_be_long(tmp_path: Path) -> None:
    assert column_names(write(tmp_path, f"id,{'a' * 300_000}\n")) == ["id", "a" * 300_000]
    path = write(tmp_path, "a" * (5 << 20))
    assert refusal(path).cause == f"{path}: the header: exceeds 4 MiB"


def test_an_empty_line_is_a_record_only_in_a_table_of_one_column(tmp_path: Path) -> None:
    assert read(write(tmp_path, "\n\nid,text\n1,a\n\n\n2,b\n\n")) == [["1", "a"], ["2", "b"]]
    assert read(write(tmp_path, "\n\ntext\na\n\nb\n\n")) == [["a"], [""], ["b"], [""]]
    assert read(write(tmp_path, "id,text\n,\n,\n")) == [["", ""]] * 2


@pytest.mark.parametrize(
    ("line", "found"), [("3", "has 1 columns instead of 2: '3'"), ("3,é,\\", "has 3 columns instead of 2: '3,??,"),
                        ("\x1a", "has 1 columns"), ("  ", "has 1 columns"), ("3, \"a,b\"c", "has 3 columns")]
)  # fmt: skip
def test_a_row_of_another_length_is_named_with_both_lengths(tmp_path: Path, line: str, found: str) -> None:
    path = write(tmp_path, f"id,text\n1,a\n\n2,b\n{line}\n")
    error = refusal(path)
    assert error.cause.startswith(f"{path}: row 3: {found}")
    assert "'id', 'text'" in error.fix


def test_a_row_of_another_length_is_named_in_a_later_block(tmp_path: Path) -> None:
    path = write(tmp_path, "id,text\n" + '1,"some text"\n' * 700_000 + "3\n")
    assert refusal(path).cause == f"{path}: row 700001: has 1 columns instead of 2: '3'"


def test_text_in_another_encoding_is_named_with_its_first_byte(tmp_path: Path) -> None:
    path = write(tmp_path, "id,text\n1,a\n2,café au lait\n3,é\n".encode("latin-1"))
    error = refusal(path)
    assert error.cause == f"{path}: row 2, column 'text': byte 0xE9 after 'caf' is not UTF-8"
    assert "iconv -f WINDOWS-1252 -t UTF-8" in error.fix
    path = write(tmp_path, "id,é\n".encode("latin-1"))
    assert refusal(path).cause == f"{path}: the header, column '2': byte 0xE9 after '' is not UTF-8"


@pytest.mark.parametrize(
    ("codec", "name"),
    [("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-32", "UTF-32")],
)
def test_utf_16_is_recognised_with_and_without_a_mark(tmp_path: Path, codec: str, name: str) -> None:
    path = write(tmp_path, "id,text\n1,a\n".encode(codec))
    error = refusal(path)
    assert error.cause == f"{path}: the text is {name}, not UTF-8"
    assert f"iconv -f {name} -t UTF-8" in error.fix


def test_a_nul_byte_is_named_with_its_cell(tmp_path: Path) -> None:
    path = write(tmp_path, 'id,text\n1,a\n2,"b,\n\0"\n')
    assert refusal(path).cause == f"{path}: row 2, column 'text': the cell contains a NUL byte"


@pytest.mark.parametrize(("name", "header"), [("a.csv", "id;text"), ("a.csv", "id\ttext"), ("a.tsv", "id,text")])
def test_another_delimiter_is_named(tmp_path: Path, name: str, header: str) -> None:
    path = write(tmp_path, f"{header}\n", name)
    with pytest.raises(ContractError, match="the only column is") as caught:
        list(iter_tables([path], ["id"], rows_per_batch=1))
    assert "by commas in CSV files and requests, by tabs in TSV files" in caught.value.fix


@pytest.mark.parametrize(("delimiter", "is_named"), [(";", True), ("|", True), ("x", False)])
def test_another_delimiter_between_quoted_cells_is_named(tmp_path: Path, delimiter: str, is_named: bool) -> None:
    path = write(tmp_path, f'"id"{delimiter}"text"\n"1"{delimiter}"a"\n')
    with pytest.raises(ContractError, match="is followed by") as caught:
        list(iter_tables([path], ["id"], rows_per_batch=1))
    assert ("Separate the cells by commas in CSV, by tabs in TSV." in caught.value.fix) == is_named


def test_rows_of_part_files_without_a_header_count_from_the_first_line(tmp_path: Path) -> None:
    path = write(tmp_path, '1,a\n2,"b\n')
    parts = find_part_files(tmp_path, signature=["id", "text"], scratch=tmp_path)
    with pytest.raises(ContractError) as caught:
        list(parts.iter_tables())
    assert caught.value.cause == f"{path}: row 2, column 'text': {BEGINS} that is never closed"


@pytest.mark.parametrize(
    ("body", "content_type", "place"),
    [
        ('a,1\n"b,2\nc,3\n', CSV, "row 2, column 'id'"),
        ('a,1\nb,"2\nc,"3\n', CSV, "row 2, column 'text'"),
        ('id,text\n1,a\n2,"b\n3,c\n', f"{CSV}; header=present", "row 2, column 'text'"),
        ("1,a\n2,b\0\n", f"{CSV}; header=absent", "row 2, column 'text'"),
        ("id,text\n1,é\n2,ô\n".encode("utf-16"), CSV, "the text is UTF-16"),
        ("\ufeff", CSV, "the request is empty"),
    ],
)
def test_a_csv_request_that_is_damaged_is_refused_with_its_place(body, content_type, place):
    with pytest.raises(RequestError, match=place) as caught:
        read_records(body, content_type, ["id", "text"])
    assert caught.value.status == 400


def test_a_block_may_end_inside_a_line_end() -> None:
    assert blocks_cells("x\r\n" * 200, 1) == [["x"]] * 200


def test_a_byte_order_mark_in_the_first_cell_of_a_block_is_part_of_the_cell(tmp_path: Path) -> None:
    rows = [["\ufeffabc", str(number)] for number in range(40)]
    path = tmp_path / "a.csv"
    path.write_text("\ufeffa,b\n" + "".join(f"{a},{b}\n" for a, b in rows), encoding="utf-8")
    with mock.patch.object(csv_files, "BLOCK_BYTES", BLOCK_BYTES):
        assert read(path) == rows


def test_no_thread_of_arrow_frees_memory_of_python() -> None:
    """While the interpreter ends, such a thread cannot free it, and the process aborts."""
    data = np.frombuffer(b"a,1\nb,2\n", np.uint8)
    with mock.patch.object(csv_blocks.pa_csv, "open_csv", wraps=csv_blocks.pa_csv.open_csv) as opened:
        Block(data, CsvText("x", ",", has_header=False, columns=("a", "b"))).parse()
    (source,) = opened.call_args.args
    source.seek(0)
    assert not np.shares_memory(np.frombuffer(source.read_buffer(), np.uint8), data)
