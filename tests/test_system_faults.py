"""Commands under faults of the machine. `make faults` runs every pair; some of them run with the other tests."""

import pytest

from testing.faults import table
from testing.faults.trial import Trials
from testing.jobs import REPOSITORY

PAIRS = [
    ("fsync", "train"), ("flock", "pipeline"), ("flock-enosys", "train"), ("chmod", "pipeline"), ("rename", "train"),
    ("symlink", "pipeline"), ("clock", "train"), ("tr_TR", "init"), ("de_DE", "init"), ("ja_JP", "init"),
    ("disk-50", "init"), ("disk-50", "train"), ("disk-90", "train"), ("disk-50", "predict"), ("loopback", "train"),
]  # fmt: skip


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    return Trials(tmp_path_factory.mktemp("faults"))


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "command"), PAIRS)
def test_a_command_completes_or_names_the_fault(trials, fault, command):
    assert trials.run(fault, command).problem is None


def test_the_table_of_the_page_is_that_of_the_declarations():
    assert "\n".join(table()) in (REPOSITORY / "docs/testing.md").read_text()
