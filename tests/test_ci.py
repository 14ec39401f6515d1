"""What CI runs: .ci/run."""

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


def test_the_suites_name_exactly_the_files_with_long_tests():
    script = (REPOSITORY / ".ci" / "run").read_text()
    marks = ("pytest.mark.long", "long_except(")
    files = [path for path in (REPOSITORY / "tests").rglob("test_*.py") if path.name != "test_ci.py"]
    long = {str(path.relative_to(REPOSITORY)) for path in files if any(mark in path.read_text() for mark in marks)}
    assert len(long) > 10
    assert set(re.findall(r"tests/[\w/]+\.py", script)) == long


@pytest.mark.parametrize(
    ("suite", "code", "said"),
    [
        ("5 bash -c 'exit 0'", 0, ""),
        ("5 bash -c 'exit 3'", 3, ""),
        ("5 bash -c 'exit 124'", 0, "cut off: bash -c exit 124"),  # as timeout ends where the time is over
        ("6 bash -c 'exit 3'", 0, "not begun: bash -c exit 3"),
        ("5 bash -c '[ \"$PYTEST_ADDOPTS\" = -x ]'", 0, ""),
        ("5 bash -c 'exit 0'; suite 5 bash -c 'exit 3'", 0, "not its turn: bash -c exit 3"),
    ],
)
def test_a_suite_that_fails_fails_ci_and_one_without_time_is_named(suite, code, said):
    function = re.search(r"^suite\(\) \{.*?^\}", (REPOSITORY / ".ci" / "run").read_text(), re.M | re.S).group()
    lines = [
        "set -euo pipefail",
        "left_out=()",
        "number=0 TURNS=3 TURN=1",
        "left() { echo 5; }",
        function,
        f"suite {suite}",
    ]
    script = "\n".join([*lines, 'printf "%s\\n" "${left_out[@]}" >&2'])
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (code, said)
