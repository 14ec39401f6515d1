"""Raw files as people export them become the table that they show, or one line that says what to do."""

import gzip
import json
import re
import struct
import zipfile
from argparse import Namespace
from datetime import date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from container.commands import main
from container.tables.part_files import PartFiles, open_tables
from container.tables.reading import Reading
from container.tables.records import class_of, column_of, common_type, records_to_table
from contracts.errors import ContractError
from contracts.paths import JobPaths
from testing.jobs import REPOSITORY

RAW = REPOSITORY.parent / "shared" / "data" / "raw"
needs_raw = pytest.mark.skipif(
    not RAW.is_dir(), reason=f"the raw files are no part of the project; put them into {RAW}"
)
EXPORT = 'name;price;text\nZoë;1,5;"a;\nb"\nBjörn;2;größer\n'


def opened(path: Path, folder: Path, **facts: str) -> PartFiles:
    return open_tables([path], option="TABLE", reading=Reading(**facts), scratch=folder / "scratch").single_valued()


def rows(path: Path, folder: Path, **facts: str) -> list[dict[str, object]]:
    return pa.concat_tables([part.table for part in opened(path, folder, **facts).iter_tables()]).to_pylist()


def saved(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def workbook(path: Path, table: list[list[object]], merged: str = "") -> Path:
    """Write a workbook of one sheet; a text that begins with = is a formula without its value."""

    def cell(place: str, value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, str) and value.startswith("="):
            return f'<c r="{place}"><f>{value[1:]}</f><v></v></c>'
        if isinstance(value, str):
            return f'<c r="{place}" t="inlineStr"><is><t>{value}</t></is></c>'
        return f'<c r="{place}"><v>{value}</v></c>'

    lines = [
        f'<row r="{i}">{"".join(cell(f"{chr(65 + k)}{i}", value) for k, value in enumerate(row))}</row>'
        for i, row in enumerate(table, start=1)
    ]
    main_ns = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("[Content_Types].xml", f'<Types xmlns="{package}/content-types"></Types>')
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" Type="{relations}/officeDocument" '
            'Target="xl/workbook.xml"/></Relationships>',
        )
        archive.writestr(
            "xl/workbook.xml",
            f'<workbook {main_ns} xmlns:r="{relations}"><sheets><sheet name="Data" sheetId="1" r:id="r1"/></sheets>'
            "</workbook>",
        )
        archive.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" Type="{relations}/worksheet" '
            'Target="worksheets/sheet1.xml"/></Relationships>',
        )
        archive.writestr(
            "xl/worksheets/sheet1.xml",
            f"<worksheet {main_ns}><sheetData>{''.join(lines)}</sheetData>{merged}</worksheet>",
        )
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.csv.gz", "a.tsv"])
def test_a_delimiter_is_found_and_named_unless_it_is_the_usual_one(tmp_path, name, delimiter):
    text = EXPORT.replace('1,5;"a;', '"1,5";"a;').replace(";", delimiter)
    path = saved(tmp_path, name, gzip.compress(text.encode()) if name.endswith("gz") else text)
    assert rows(path, tmp_path)[0] == {"name": "Zoë", "price": "1,5", "text": f"a{delimiter}\nb"}
    parts = opened(path, tmp_path)
    usual = delimiter == ("\t" if name == "a.tsv" else ",")
    assert parts.notes == ([] if usual else [f"{name}: read with delimiter {delimiter!r}"])
    assert parts.found.delimiter == delimiter


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
def test_an_encoding_is_found_without_a_wrong_letter(tmp_path, encoding):
    path = saved(tmp_path, "a.csv", (EXPORT * 9).encode(encoding))
    assert rows(path, tmp_path)[1] == {"name": "Björn", "price": "2", "text": "größer"}


TEXTS = {
    "cp1252": "Très déçu par la qualité, la livraison a été très longue, où est ma commande ? Noël, ça, même être",
    "cp1250": "Bardzo zła jakość, proszę o zwrot pieniędzy, paczka przyszła uszkodzona, Łódź, źle, ćma, późno",
    "cp1251": "Очень плохое качество товара, посылка пришла повреждённой",
    "cp1253": "Πολύ κακή ποιότητα προϊόντος, το δέμα ήρθε κατεστραμμένο",
    "cp1254": "Ürün çok kötü geldi, müşteri hizmetleri cevap vermiyor, şikayetçiyim, ağır, ılık",
    "cp850": "Größe laut Tabelle gewählt, für die Straße würde ich das nicht noch einmal bestellen",
}


@pytest.mark.parametrize("encoding", TEXTS)
def test_an_encoding_of_one_byte_a_letter_is_that_of_a_language(tmp_path, encoding):
    path = saved(tmp_path, "a.csv", f'text,label\n"{TEXTS[encoding]}",1\n'.encode(encoding))
    assert rows(path, tmp_path)[0]["text"] == TEXTS[encoding]
    assert opened(path, tmp_path).notes == [f"a.csv: read with encoding {encoding}"]


def test_words_that_differ_between_two_encodings_are_named_with_the_option(tmp_path):
    path = saved(tmp_path, "a.csv", "city,n\nmañana,1\n".encode("cp1252"))
    (_, note) = opened(path, tmp_path).notes
    assert note.count("a.csv") == 1
    assert "cp1252 and cp1250 both fit: 'mañana' or 'mańana'. It is read as cp1252; --encoding changes it" in note
    assert rows(path, tmp_path, encoding="cp1250")[0]["city"] == "mańana"


def test_one_damaged_byte_of_utf_8_is_an_error_and_no_other_encoding(tmp_path):
    path = saved(tmp_path, "a.csv", "text,n\nGröße,1\nStraße,2\nfür,3\n".encode() + b"caf\xc3,4\n")
    with pytest.raises(ContractError, match=r"row 4, column 'text': byte 0xC3 after 'caf' is not UTF-8"):
        rows(path, tmp_path)


def test_an_option_does_not_turn_utf_8_into_other_letters(tmp_path):
    path = saved(tmp_path, "a.csv", EXPORT)
    assert rows(path, tmp_path, encoding="cp1252", delimiter=";")[1]["name"] == "Björn"


def test_the_delimiter_that_excel_names_in_the_first_line_is_no_row(tmp_path):
    assert rows(saved(tmp_path, "a.csv", "sep=|\na|b\n1,5|2,5\n"), tmp_path) == [{"a": "1,5", "b": "2,5"}]


def test_a_second_delimiter_that_divides_every_row_is_named(tmp_path):
    path = saved(tmp_path, "a.csv", "first, last;net, EUR;c\na, b;1, x;y\n")
    assert opened(path, tmp_path).notes == [
        "a.csv: read with delimiter ','; ';' divides every row as well: --delimiter ';'"
    ]


def test_a_null_and_the_escapes_of_a_database_are_read(tmp_path):
    path = saved(tmp_path, "a.tsv", 'id\tnote\n1\ta\\tb\\nc:\\\\d "x\n2\t\\N\n')
    assert rows(path, tmp_path) == [{"id": "1", "note": 'a\tb\nc:\\d "x'}, {"id": "2", "note": None}]
    path = saved(tmp_path, "a.csv", "id,note\n\\N,a\\tb\n")
    assert rows(path, tmp_path) == [{"id": None, "note": "a\\tb"}]


def test_files_of_one_table_have_the_same_escapes_and_an_option_names_them(tmp_path):
    saved(tmp_path, "1.tsv", "id\tnote\n1\ta\\nb\n2\t\\N\n")
    path = saved(tmp_path, "2.tsv", "id\tnote\n3\tc\\nd\n")
    assert [row["note"] for row in rows(tmp_path, tmp_path)] == ["a\nb", None, "c\nd"]
    assert rows(path, tmp_path) == [{"id": "3", "note": "c\\nd"}]
    assert rows(path, tmp_path, escapes=opened(tmp_path, tmp_path).found.escapes)[0]["note"] == "c\nd"
    assert [row["note"] for row in rows(tmp_path, tmp_path, escapes="none")] == ["a\\nb", None, "c\\nd"]


def test_a_text_file_beside_tables_is_no_table(tmp_path):
    saved(tmp_path, "README.txt", "How to read this")
    saved(tmp_path, "a.csv", "a,b\n1,2\n")
    assert len(rows(tmp_path, tmp_path)) == 1


def test_a_sheet_is_read_by_the_types_of_its_cells_without_banner_and_total(tmp_path):
    table = [
        ["Report of May"], [], ["id", "price", "code", "note"],
        [1, 12.5, "007", "a"], [2, "n/a", 7, None], [3, 1.125, "x", "b"],
        ["Total", "=SUM(B4:B6)"], ["Printed on Monday"],
    ]  # fmt: skip
    path = workbook(tmp_path / "a.xlsx", table)
    assert rows(path, tmp_path) == [
        {"id": 1, "price": 12.5, "code": "007", "note": "a"},
        {"id": 2, "price": None, "code": "7", "note": None},
        {"id": 3, "price": 1.125, "code": "x", "note": "b"},
    ]
    assert opened(path, tmp_path).notes == [
        "a.xlsx: left out above the header in row 3: 'Report of May'",
        "a.xlsx: left out below the table: 'Total', 'Printed on Monday'",
    ]


def test_rows_at_the_end_of_a_sheet_that_begin_with_total_or_have_one_cell_are_kept(tmp_path):
    reviews = [["text", "stars", "shop"], ["good", 5, "a"], ["Total waste of time", 1], ["never again"]]
    path = workbook(tmp_path / "a.xlsx", reviews)
    assert [row["text"] for row in rows(path, tmp_path)] == [row[0] for row in reviews[1:]]


def test_cells_that_are_merged_over_rows_have_their_value_in_each(tmp_path):
    table = [["region", "n"], ["North", 1], [None, 2], [None, 3]]
    places = "".join(f'<mergeCell ref="{place}"/>' for place in ("A2:A3", "A90:A95", "Z2:Z3"))  # two are outside
    path = workbook(tmp_path / "a.xlsx", table, f'<mergeCells count="3">{places}</mergeCells>')
    assert [row["region"] for row in rows(path, tmp_path)] == ["North", "North", None]
    assert "a.xlsx: 'region' has merged cells: each of their rows has the value" in opened(path, tmp_path).notes


def test_a_midnight_among_the_times_of_a_sheet_is_a_time():
    cells = [datetime(2024, 7, 1, 10, 5), date(2024, 3, 1), None]
    times = column_of(cells, common_type(map(class_of, cells)))
    assert times.to_pylist() == [cells[0], datetime(2024, 3, 1), None]


@pytest.mark.parametrize(
    ("option", "cause"),
    [
        ({"delimiter": ";;"}, "--delimiter: ';;' is not one"),
        ({"encoding": "nonsense"}, "--encoding: 'nonsense' is not"),
    ],
)
def test_an_option_of_reading_that_is_none_is_named(option, cause):
    with pytest.raises(ContractError, match=cause):
        Reading.of(Namespace(**option))


def test_a_tab_may_be_named_as_in_a_shell():
    assert Reading.of(Namespace(delimiter=r"\t")).delimiter == "\t"


@needs_raw
def test_a_workbook_with_another_sheet_is_named_and_chosen_by_an_option(tmp_path):
    parts = opened(RAW / "tickets.xlsx", tmp_path)
    assert sum(part.table.num_rows for part in parts.iter_tables()) == 1200
    assert "read the sheet 'Tickets Q1-Q4'; --sheet names another one of: 'Legend'" in parts.notes[0]
    with pytest.raises(ContractError, match="has no sheet 'Other'\nIts sheets: 'Tickets Q1-Q4', 'Legend'"):
        opened(RAW / "tickets.xlsx", tmp_path, sheet="Other")


def test_objects_become_dotted_columns_in_files_and_in_records(tmp_path, caplog):
    records = [
        {"id": 1, "user": {"plan": "pro", "at": {"city": "Rome"}}, "tags": ["a", "b"], "calls": [{"n": 1}]},
        {"id": 2, "user": None, "tags": []},
    ]
    expected = [
        {"id": 1, "user.plan": "pro", "user.at.city": "Rome", "tags": "a, b"},
        {"id": 2, "user.plan": None, "user.at.city": None, "tags": None},
    ]
    lines = saved(tmp_path, "a.jsonl", "\n".join(map(json.dumps, records)))
    assert rows(lines, tmp_path) == expected
    assert caplog.messages == ["Columns of lists or objects are left out: 'calls'."]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    assert rows(tmp_path / "a.parquet", tmp_path) == expected
    columns = list(expected[0])
    for given in (records, pa.Table.from_pylist(records)):
        assert records_to_table(given, columns).select(columns).to_pylist() == expected


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("count", [2, 40_000])
def test_the_rows_in_an_object_around_them_are_read(tmp_path, count, indent):
    content = {"status": "ok", "count": count, "data": [{"n": i, "text": "x" * 90} for i in range(count)], "next": None}
    found = rows(saved(tmp_path, "a.json", json.dumps(content, indent=indent)), tmp_path)
    assert [row["n"] for row in found] == list(range(count))


def test_folders_of_partitions_are_columns_with_types(tmp_path, caplog):
    caplog.set_level("INFO")
    for plan, month in (("pro", 2), ("__HIVE_DEFAULT_PARTITION__", 10), ("a%2Fb", 3)):
        folder = tmp_path / "t" / f"plan={plan}" / f"month={month}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [month]}), folder / "part-0.parquet")
        saved(folder, ".part-0.parquet.crc", "x")
        saved(folder, "_SUCCESS", "")
    found = rows(tmp_path / "t", tmp_path)
    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": 2, "plan": "pro", "month": 2},
        {"id": 3, "plan": "a/b", "month": 3},
        {"id": 10, "plan": None, "month": 10},
    ]
    assert rows(tmp_path / "t" / "plan=pro", tmp_path) == [{"id": 2, "plan": "pro", "month": 2}]
    assert not caplog.messages


def test_columns_come_by_name_from_several_text_files(tmp_path):
    (tmp_path / "t").mkdir()
    saved(tmp_path / "t", "a.csv", "a;b\n1;2\n")
    saved(tmp_path / "t", "b.csv", "c,b,a\n5,4,3\n")
    assert rows(tmp_path / "t", tmp_path) == [{"a": "1", "b": "2", "c": None}, {"a": "3", "b": "4", "c": "5"}]


def locked_workbook() -> bytes:
    """Return an OLE file with the stream EncryptedPackage, as a workbook with a password is."""
    header = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(16) + struct.pack("<HHHHH", 0x3E, 3, 0xFFFE, 9, 6) + bytes(6)
    header += struct.pack("<IIIIIIIII", 0, 1, 1, 0, 4096, 0xFFFFFFFE, 0, 0xFFFFFFFE, 0)
    header += struct.pack("<I", 0) + b"\xff" * 432
    sectors = struct.pack("<II", 0xFFFFFFFD, 0xFFFFFFFE) + b"".join(struct.pack("<I", i) for i in range(3, 10))
    sectors += struct.pack("<I", 0xFFFFFFFE) + b"\xff" * (512 - 40)

    def entry(name: str, kind: int, child: int, start: int, size: int) -> bytes:
        text = name.encode("utf-16-le") + b"\0\0"
        tree = struct.pack("<BBIII", kind, 1, 0xFFFFFFFF, 0xFFFFFFFF, child)
        return text.ljust(64, b"\0") + struct.pack("<H", len(text)) + tree + bytes(36) + struct.pack("<IQ", start, size)

    entries = entry("Root Entry", 5, 1, 0xFFFFFFFE, 0) + entry("EncryptedPackage", 2, 0xFFFFFFFF, 2, 4096) + bytes(256)
    return header + sectors + entries + bytes(4096)


BAD = {
    "a password": ("a.xlsx", locked_workbook(), r"is protected by a password"),
    "two delimiters": ("a.csv", "a;b;c\n" + "1;2;3\n" * 9 + "4,5,6\n", r"row 10: has 1 columns instead of 3: '4,5,6'"),
    "cut in quotes": ("a.csv", 'a,b\n1,2\n3,"cut', r"row 2, column 'b': the cell begins with a quote that is never c"),
    "one name twice": ("a.csv", "a;b;a\n1;2;3\n", r"the column 'a' occurs twice"),
    "types": ("a.jsonl", '{"u": {"a": 1}}\n{"u": 5}\n', r"'u' is an object in row 1, and a single value in row 2"),
    "one name": ("a.jsonl", '{"u.a": 1, "u": {"a": 2}}\n', r"row 1: has two values of the name 'u\.a'"),
    "lists": ("a.jsonl", '{"u": "x"}\n{"u": [{}]}\n', r"row 2, column 'u' contains a list of objects"),
    "zip": ("a.zip", b"PK\x03\x04", r"looks like a ZIP archive or an Office document, which is not read\nUnpack it"),
    "no workbook": ("a.xls", "a\tb\n", r"looks like text"),
    "pdf": ("a.pdf", b"%PDF-1.4", r"looks like a PDF"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "said"), BAD.values(), ids=BAD)
def test_a_bad_file_is_one_line_with_its_place_and_what_to_do(tmp_path, name, content, said):
    with pytest.raises(ContractError, match=rf"{re.escape(name)}.*{said}") as caught:
        rows(saved(tmp_path, name, content), tmp_path)
    assert "\n" not in caught.value.cause
    assert caught.value.fix


def test_a_formula_without_its_value_is_named_with_its_cell(tmp_path):
    with pytest.raises(ContractError, match=r"a\.xlsx: cell B3 has a formula, but not its value"):
        rows(workbook(tmp_path / "a.xlsx", [["a", "b"], [1, 2], [3, "=A3*2"], [5, 6]]), tmp_path)


def test_a_partition_that_differs_from_the_column_of_its_file_is_named_with_its_row(tmp_path):
    for year in (1, 2):
        (tmp_path / "t" / f"year={year}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2], "year": [year, 1]}), tmp_path / "t" / f"year={year}" / "a.parquet")
    with pytest.raises(ContractError, match=r"year=2/a\.parquet: row 2, column 'year': 1 is not 2, the value in the f"):
        rows(tmp_path / "t", tmp_path)


def test_facts_are_remembered_and_options_have_precedence(tmp_path):
    paths = JobPaths(tmp_path)
    paths.config.mkdir(parents=True)
    Reading(delimiter=";", encoding="cp1250").save(paths)
    assert Reading.of(Reading(delimiter="|"), paths) == Reading("|", "cp1250")
    assert Reading.of(Reading()) == Reading()


@pytest.mark.parametrize("name", ["b.parquet", "b.csv", "b.jsonl"])
def test_convert_writes_what_the_readers_read(tmp_path, name, capsys):
    path = saved(tmp_path, "a.csv", EXPORT.encode("cp1252"))
    assert main(["convert", str(path), str(tmp_path / name)]) == 0
    said = capsys.readouterr().out
    assert said == f"a.csv: read with encoding cp1252, delimiter ';'.\n{tmp_path / name}: 2 rows, 3 columns.\n"
    assert rows(tmp_path / name, tmp_path) == rows(path, tmp_path)
