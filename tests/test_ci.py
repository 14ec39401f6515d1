"""What CI runs: .ci/run."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def test_every_file_with_long_tests_is_in_a_suite():
    script = (REPOSITORY / ".ci" / "run").read_text()
    marks = ("pytest.mark.long", "long_except(")
    files = [path for path in (REPOSITORY / "tests").glob("test_*.py") if path.name != "test_ci.py"]
    long = [path.name for path in files if any(mark in path.read_text() for mark in marks)]
    assert len(long) > 10
    assert [name for name in long if f"tests/{name}" not in script] == []
