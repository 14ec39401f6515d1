"""How the local pipeline knows that a step's inputs are the same."""

import os
from pathlib import Path

import pytest

from contracts.errors import ContractError
from contracts.fingerprint import ContentDigests
from pipeline.local.cache import code_digest
from testing.jobs import REPOSITORY


def test_what_was_read_before_is_not_read_again_unless_the_memory_is_damaged(tmp_path, monkeypatch):
    table, memory = tmp_path / "table.csv", tmp_path / "memory.json"
    table.write_text("1,2")
    digests = ContentDigests(memory)
    before = digests.of(table)
    digests.save()
    with monkeypatch.context() as unable:
        unable.setattr("hashlib.file_digest", None)
        assert ContentDigests(memory).of(table) == before
    memory.write_text('{"cut')
    assert ContentDigests(memory).of(table) == before


def test_the_code_digest_covers_every_file_of_the_code_with_content(monkeypatch):
    read, read_file = set(), Path.open
    monkeypatch.setattr(Path, "open", lambda path, *given, **named: read.add(path) or read_file(path, *given, **named))
    code_digest()
    for package in ("contracts", "container"):
        files = {path for path in (REPOSITORY / package).rglob("*") if path.is_file() and path.stat().st_size}
        assert {path for path in files if "__pycache__" not in path.parts} <= read


def test_a_pipe_in_an_input_is_an_error_and_never_opened(tmp_path):
    (tmp_path / "input").mkdir()
    os.mkfifo(tmp_path / "input" / "rows.csv")
    with pytest.raises(ContractError, match=r"rows\.csv: is a named pipe, not a file"):
        ContentDigests(tmp_path / "digests.json").of(tmp_path / "input")
