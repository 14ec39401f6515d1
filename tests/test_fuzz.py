"""The campaign of generated inputs: a small fixed part of it, and what its oracle notices."""

import json
import time
from random import Random

import pytest
from pydantic import ValidationError

from contracts.hyperparameter_files import cast_value
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from testing.fuzz import oracle, strict_csv
from testing.fuzz.campaign import Plan, run_kind
from testing.fuzz.child import KINDS
from testing.fuzz.outcome import rng_of, signature
from testing.fuzz.requests import REPORTS, REQUESTS, Request, generate
from testing.fuzz.server import answer_problems, run_requests
from testing.fuzz.settings import value_of
from testing.fuzz.tables import write_folder

SEEDS = {
    "tables": 5, "hyperparameters": 5, "packages": 25, "steps": 25, "carriers": 1, "requests": 53, "reports": 53,
    "checkpoints": 3, "weights": 1,
}  # fmt: skip
FAILURE = "data.csv: row 3, column 'price': 'x' is not a number\nWhat to change: Write a number.\n\nTraceback ...\n"


def plan(kind, model, folder, *, inputs=24, timeout=120.0):
    return Plan(
        seed=SEEDS[kind], indices=range(inputs), deadline=time.monotonic() + 600, jobs=2, timeout=timeout, model=model,
        work=folder / "work", out=folder / "out", whole_every=0,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_generated_inputs_are_accepted_with_every_row_or_refused_with_a_message(kind, trained_job, tmp_path):
    tally = run_kind(kind, plan(kind, trained_job.model, tmp_path))
    assert [finding.problem for finding in tally.findings.values()] == []
    assert tally.inputs == 24
    assert tally.accepted > 2, "an oracle of accepted inputs sees some"
    assert tally.refused > 2 or kind == "carriers"  # of which every input is valid


@pytest.mark.slow
@pytest.mark.parametrize("kind", [REQUESTS, REPORTS])
def test_generated_requests_get_an_answer_each_and_the_server_stays_alive(kind, trained_job, tmp_path):
    (tmp_path / "work").mkdir()
    tally = run_requests(plan(kind, trained_job.model, tmp_path, inputs=30), ping_limit=5, kind=kind)
    assert [finding.problem for finding in tally.findings.values()] == []
    assert tally.accepted > 5
    assert tally.refused > 5


@pytest.mark.slow
def test_an_input_that_does_not_end_is_a_finding_with_its_reproduction(trained_job, tmp_path):
    tally = run_kind("tables", plan("tables", trained_job.model, tmp_path, inputs=1, timeout=0.0))
    (finding,) = tally.findings.values()
    assert finding.problem.startswith("no end after")
    saved = json.loads(next((tmp_path / "out").rglob("finding.json")).read_text())
    assert saved["index"] == 0


@pytest.fixture
def failed_job(tmp_path):
    """A job that ended as it should: two failure files, and nothing in model/."""
    paths = JobPaths(tmp_path)
    for path in paths.failure_files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FAILURE)
    assert oracle.refused_job_problems(paths) == []
    return paths


def test_the_oracle_notices_a_missing_failure_file(failed_job):
    failed_job.failure_files[1].unlink()
    assert oracle.refused_job_problems(failed_job) == ["output/data/failure is missing after exit 1"]


def test_the_oracle_notices_failure_files_that_differ(failed_job):
    failed_job.failure_files[1].write_text(FAILURE + "more")
    assert oracle.refused_job_problems(failed_job) == ["the two failure files differ"]


def test_the_oracle_notices_what_is_left_of_a_model(failed_job):
    failed_job.model.mkdir()
    (failed_job.model / "model.pth").touch()
    assert oracle.refused_job_problems(failed_job) == ["model/ holds ['model.pth'] after exit 1"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Traceback (most recent call last):\nWhat to change: x", "not foreseen"),
        ("KeyError: 'price'\n\nTraceback", "not foreseen"),
        ("ArrowInvalid: Could not open\nWhat to change: x", "not foreseen"),
        ("data.csv: is bad\n\nTraceback", "does not say what to change"),
        ("data.csv: is bad\nWhat to change: \n", "does not say what to change"),
        (f"data.csv: {'x' * 1100}\nWhat to change: y\n", "beyond the first 1024 characters"),
        ("something went wrong\nWhat to change: y\n", "names no file, column, row or key"),
        ("out of memory: std::bad_alloc\nWhat to change: y\n", "too much memory"),
        ("worker rank 0 (pid 7) was ended by SIGSEGV: a crash\nWhat to change: y\n", "without a cause"),
        ("\n", "first line is empty"),
    ],
)
def test_the_oracle_notices_a_message_that_does_not_help(text, problem):
    assert [found for found in oracle.message_problems(text) if problem in found]


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (["1", "2"], "2 rows instead of 3"),
        (["1", "2", "3", "3"], "4 rows instead of 3"),
        (["1", "2", "03"], "1 ids changed"),
        (["2", "1", "3"], "2 ids changed"),
    ],
)
def test_the_oracle_notices_lost_invented_changed_and_moved_rows(found, problem):
    assert problem in oracle.id_problems("test", found, ["1", "2", "3"])[0]


def test_the_oracle_compares_ids_without_their_types_and_without_order_where_it_is_unknown():
    assert oracle.id_problems("test", ["1", "", "x"], [1, None, b"x"]) == []
    assert oracle.id_problems("test", ["2", "1"], ["1", "2"], ordered=False) == []
    assert oracle.id_problems("test", ["2", "2"], ["1", "2"], ordered=False)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 500 X\r\n\r\n{}", "status 500"),
        (b"HTTP/1.1 400 X\r\n\r\noops", "no error in JSON"),
        (b'HTTP/1.1 400 X\r\n\r\n{"error": {"status": 400, "message": "KeyError: 1", "hint": "x"}}', "not foreseen"),
        (b'HTTP/1.1 200 X\r\nContent-Type: text/csv\r\n\r\n1,0.5,0.5\n', "1 predictions for 2 records"),
        (b'HTTP/1.1 200 X\r\nContent-Type: text/csv\r\n\r\n1,0.5,0.5\n1,nan,0.5\n', "probabilities of row 1"),
        (b"\x15\x03\x01", "is not HTTP"),
    ],
)  # fmt: skip
def test_the_oracle_notices_a_wrong_answer_of_the_server(answer, problem):
    request = Request(b"POST /invocations HTTP/1.1", records=2, recipe=["json"])
    _, problems = answer_problems(answer, request)
    assert problem in problems[0]


@pytest.mark.parametrize(
    ("body", "reported", "problem"),
    [
        (b'{"predicted_label": 1, "probabilities": [0.5, 0.5]}\n{"error": "record 2, x"}\n', True, None),
        (b'{"predicted_label": 1, "probabilities": [0.5, 0.5]}\n{"error": "record 2, x"}\n', False, "with the error"),
        (b'{"error": "record 1, x"}\n', True, "1 predictions for 2 records"),
        (b'{"error": "record 1, x"}\n{"error": "KeyError: 7"}\n', True, "not foreseen"),
    ],
)
def test_the_oracle_expects_an_error_in_the_place_of_an_invalid_record_where_errors_are_reported(
    body, reported, problem
):
    request = Request(b"POST /invocations HTTP/1.1", records=2, recipe=["lines"])
    answer = b"HTTP/1.1 200 X\r\nContent-Type: application/jsonlines\r\n\r\n" + body
    _, problems = answer_problems(answer, request, reported=reported)
    assert problem in problems[0] if problem else not problems


@pytest.mark.parametrize(
    ("text", "rows", "malformed"),
    [
        ('a,b\n1,"x\ny"\n', [["a", "b"], ["1", "x\ny"]], False),
        ('a,b\r\n\r\n1,"x""y"\r2,', [["a", "b"], ["1", 'x"y'], ["2", ""]], False),
        ("a\n,\n", [["a"], ["", ""]], False),
        ('a,b\n1,"x\n2,y\n', [["a", "b"], ["1", "x\n2,y\n"]], True),
        ('a,b\n1,"x"y\n', [["a", "b"], ["1", "xy"]], True),
        ('a,b\n1,x"y\n', [["a", "b"], ["1", 'x"y']], True),
    ],
)
def test_the_strict_reader_of_csv_follows_rfc_4180_and_says_where_a_text_does_not(text, rows, malformed):
    parsed = strict_csv.parse(text, ",")
    assert (parsed.rows, parsed.malformed) == (rows, malformed)


def test_an_input_depends_on_seed_kind_and_index_alone(tmp_path):
    def files(folder):
        recipe = []
        expected = write_folder(folder, "train", rng_of(1, "tables", 17), "csv", changed=True, recipe=recipe)
        return recipe, expected, [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]

    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert generate(rng_of(1, "requests", 3)) == generate(rng_of(1, "requests", 3))
    assert generate(rng_of(1, "requests", 3)) != generate(rng_of(1, "requests", 4))


@pytest.mark.parametrize("name", Hyperparameters.model_fields)
def test_a_value_that_is_said_to_be_valid_or_invalid_is_so_by_the_declaration(name):
    field, rng = Hyperparameters.model_fields[name], Random(name)
    base = {"id_name": "i", "label_name": "l", "model_class": "bert", "text_name": "t"}
    for _ in range(40):
        value = value_of(field, rng)
        if value.valid is None:
            continue
        try:
            Hyperparameters(**{**base, name: cast_value(name, value.content)})
            accepted = True
        except ValidationError:
            accepted = False
        assert accepted == value.valid, value


def test_findings_with_one_cause_have_one_signature():
    first = signature("tables", "prepared val: 7 rows instead of 10, 'a' became 'b' of /tmp/x/y.csv")
    assert first == signature("tables", "prepared val: 21 rows instead of 24, 'c' became '' of /work/z.csv")
    assert first != signature("tables", "prepared test: 7 rows instead of 10")
    place = "the cause is an exception that was not foreseen in container/tables/values.py, keys"
    first = signature("tables", f"{place}: ArrowInvalid: 'x' at 7")
    assert first == signature("tables", f"{place}: ArrowInvalid: another message")
    assert first != signature("tables", f"{place}: KeyError: 'x' at 7")
