"""Tell what a file that no reader takes looks like, and what to do with it."""

from pathlib import Path

from contracts.errors import ContractError

_UNPACK, _WRITE = "Unpack it, and name the table in it.", "Write the table as Parquet or CSV."
_KINDS = {
    b"PK\x03\x04": ("a ZIP archive or an Office document", "Unpack it; name an Excel workbook .xlsx."),
    b"\xd0\xcf\x11\xe0": ("an old Office document, or one with a password", "Save it as .xlsx without a password."),
    b"PAR1": ("Parquet", "Name it .parquet."),
    b"\x1f\x8b": ("a gzip archive", "End its name with .csv.gz if it is one CSV file, else unpack it."),
    b"BZh": ("a bzip2 archive", _UNPACK),
    b"\xfd7zXZ": ("an xz archive", _UNPACK),
    b"7z\xbc\xaf": ("a 7z archive", _UNPACK),
    b"(\xb5/\xfd": ("a zstd archive", _UNPACK),
    b"Rar!": ("a RAR archive", _UNPACK),
    b"%PDF": ("a PDF", "Export the table from where it comes from."),
    b"Obj\x01": ("Avro", _WRITE),
    b"ORC": ("ORC", _WRITE),
    b"ARROW1": ("Arrow or Feather", _WRITE),
    b"FEA1": ("Feather", _WRITE),
    b"SQLite format 3": ("an SQLite database", "Export the table as CSV."),
    b"\x89HDF": ("HDF5", _WRITE),
    b"$FL": ("SPSS", _WRITE),
    b"<stata_dta": ("Stata", _WRITE),
    b"HEADER RECORD": ("SAS", _WRITE),
    b"\x80": ("a pickle, which can run code", _WRITE),
    b"RDX": ("R data", _WRITE),
}


def not_a_table(path: Path) -> ContractError:
    """Return the error for a file that no reader takes."""
    with path.open("rb") as file:
        start = file.read(1 << 12)
    for magic, (kind, fix) in _KINDS.items():
        if start.startswith(magic):
            return ContractError(f"{path}: looks like {kind}, which is not read", fix)
    if start[257:262] == b"ustar":
        return ContractError(f"{path}: looks like a tar archive, which is not read", _UNPACK)
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith((b"{", b"[")):
        return ContractError(f"{path}: looks like JSON, but its name does not", "Name it .json or .jsonl.")
    if b"\0" in start:
        return ContractError(f"{path}: is binary data of an unknown kind", _WRITE)
    if text.startswith(b"<"):
        return ContractError(f"{path}: looks like HTML or XML, which is not read", _WRITE)
    return ContractError(f"{path}: looks like text, but its name does not show a table", "Name it .csv, if it is one.")
