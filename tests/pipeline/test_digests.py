"""How the local pipeline knows that a step's inputs are the same."""

import os

from pipeline.local.digests import ContentDigests


def test_other_content_under_an_old_time_is_seen(tmp_path):
    """As cp -p, rsync -t and archives write it."""
    table = tmp_path / "table.csv"
    table.write_text("1,2")
    digests = ContentDigests(tmp_path / "memory.json")
    before, times = digests.of(table), table.stat()
    digests.save()
    table.write_text("1,9")
    os.utime(table, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert ContentDigests(tmp_path / "memory.json").of(table) != before


def test_what_was_read_before_is_not_read_again(tmp_path, monkeypatch):
    table = tmp_path / "table.csv"
    table.write_text("1,2")
    digests = ContentDigests(tmp_path / "memory.json")
    before = digests.of(table)
    digests.save()
    monkeypatch.setattr("hashlib.file_digest", None)
    assert ContentDigests(tmp_path / "memory.json").of(table) == before
