"""Steps keep their contracts, and say why when they cannot."""

import inspect
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from container.steps import program
from container.steps.program import PROGRAMS
from contracts.atomic_files import temporary_path
from contracts.errors import ContractError
from contracts.serving import RecordSettings
from contracts.step_contract import message_file
from contracts.steps import PROCESSING_STEPS
from testing.jobs import REPOSITORY
from testing.step_runs import environment, input_folder, message, orders, output_folder, run_step

BUILT = [command for command, module in PROGRAMS.items() if find_spec(module)]


def test_a_link_to_nothing_in_an_input_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "part.csv").symlink_to("gone.csv")
    with pytest.raises(ContractError, match=r"part\.csv: is a link to gone\.csv, which does not exist"):
        program._files(tmp_path)


@pytest.mark.parametrize("command", BUILT)
def test_a_program_reads_every_input_and_setting_of_its_contract_and_writes_every_output(command: str) -> None:
    contract, module = PROCESSING_STEPS[command], import_module(PROGRAMS[command])
    others = {getattr(value, "__module__", None) for value in vars(module).values()}  # of which it uses functions
    ours = [name for name in others if str(name).startswith(("container.steps.", "container.monitoring."))]
    parts = [module, program, *map(import_module, ours)]
    source = "".join(map(inspect.getsource, parts))
    for folder in contract.inputs:
        assert f'input("{folder.name}")' in source, folder.name
    for folder in contract.outputs:
        assert f'output("{folder.name}")' in source, folder.name
    for field in contract.settings.model_fields:
        together = field in RecordSettings.model_fields and "RecordSettings.model_fields" in source
        assert f"settings.{field}" in source or together, field
    for argument in contract.arguments:
        assert f'arguments["{argument.name}"]' in source, argument.name


@pytest.mark.parametrize("generator", ["generate_steps.py", "generate_pipeline.py"])
def test_the_generated_parts_of_the_pipelines_page_are_current(generator: str) -> None:
    command = [sys.executable, f"docs/{generator}", "--check"]
    assert subprocess.run(command, cwd=REPOSITORY, env={**environment(), "PYTHONPATH": str(REPOSITORY)}).returncode == 0


@pytest.mark.parametrize(
    ("command", "name", "settings"),
    [
        ("preprocess", "DATA", {"LABEL_FIELD": "label"}),
        ("metrics", "eval_output", {"ID_FIELD": "id", "LABEL_FIELD": "label"}),
    ],
)
def test_an_input_that_is_missing_or_empty_or_of_another_kind_is_named(
    tmp_path: Path, command: str, name: str, settings: dict[str, str]
) -> None:
    step = PROCESSING_STEPS[command]
    where = step.input(name).path(tmp_path)
    run_step(tmp_path, command, expect=1, **settings)
    assert message(tmp_path) == f"{step.name}: input {name} is missing: the folder {where} does not exist"
    folder = input_folder(tmp_path, command, name)
    run_step(tmp_path, command, expect=1, **settings)
    assert message(tmp_path) == f"{step.name}: input {name} is missing: the folder {where} is empty"
    (folder / "notes.md").write_text("hello")
    run_step(tmp_path, command, expect=1, **settings)
    assert message(tmp_path).startswith(f"{step.name}: input {name} has no file that is named *.csv or *.csv.gz")
    assert message(tmp_path).endswith("contains notes.md")
    (folder / "part-0.csv").touch()
    run_step(tmp_path, command, expect=1, **settings)
    assert message(tmp_path) == f"{step.name}: input {name} is empty: {where}/part-0.csv has 0 bytes"


def test_a_setting_that_is_missing_or_refused_is_named(tmp_path: Path) -> None:
    run_step(tmp_path, "preprocess", expect=1)
    assert message(tmp_path) == "environment variable LABEL_FIELD: is not set"
    run_step(tmp_path, "preprocess", expect=1, LABEL_FIELD="label", TRAIN_RATIO="1.5")
    assert message(tmp_path).startswith("environment variable TRAIN_RATIO: '1.5' is invalid")


def test_an_error_of_ours_is_told_with_its_traceback(tmp_path: Path) -> None:
    """A folder where the profile should be written: nobody's input is to blame."""
    orders(50).to_csv(input_folder(tmp_path, "preprocess", "DATA") / "part-0.csv", index=False)
    folder = output_folder(tmp_path, "preprocess", "processed_data") / "train"
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    run_step(tmp_path, "preprocess", expect=1, LABEL_FIELD="label")
    assert "Traceback" in message_file(tmp_path).read_text()
    assert message(tmp_path).startswith(("FileExistsError", "NotADirectoryError"))


def test_a_run_removes_the_outputs_and_the_message_of_an_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    folder = output_folder(tmp_path, "load-data", "DATA")
    run_step(tmp_path, "load-data", GENERATE_ROWS=40, ROWS_PER_FILE=10)
    assert len(list(folder.iterdir())) == 4
    (folder / "mine.txt").write_text("kept")
    run_step(tmp_path, "load-data", expect=1)
    assert message_file(tmp_path).is_file()
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    run_step(tmp_path, "load-data", GENERATE_ROWS=20, ROWS_PER_FILE=10)
    assert not message_file(tmp_path).exists()
    assert len(list(folder.glob("part-*"))) == 2


def test_a_failed_run_leaves_no_output(tmp_path: Path) -> None:
    frame = orders(40)
    frame.loc[39, "label"] = 7
    frame.to_csv(input_folder(tmp_path, "preprocess", "DATA") / "part-0.csv", index=False)
    run_step(tmp_path, "preprocess", expect=1, LABEL_FIELD="label", LABEL_MAP={"0": "no", "1": "yes"})
    assert message(tmp_path).endswith("row 40, column 'label': '7' is not one of the labels ['0', '1'] of LABEL_MAP")
    assert [path for path in tmp_path.rglob("*processed_data*") if path.is_file()] == []
    run_step(tmp_path, "preprocess", expect=1, LABEL_FIELD="label", TRAIN_RATIO=0.999)  # train was complete by then
    assert message(tmp_path).startswith("split val has no rows")
    assert [path for path in tmp_path.rglob("*processed_data*") if path.is_file()] == []


def test_a_program_that_does_not_write_a_required_output_fails(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from container.steps import load_data, program\n"
        "load_data.run = lambda step: (step.output('DATA') / 'part-00000.csv').write_text('id')\n"
        "sys.exit(program.run_step('load-data', pathlib.Path(sys.argv[1]), {}, os.environ))\n"
    )
    variables = {**environment(GENERATE_ROWS=20), "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=variables).returncode == 1
    assert message(tmp_path) == "AssertionError: DataLoading wrote no signature.json into SIGNATURE"
    assert list(output_folder(tmp_path, "load-data", "DATA").iterdir()) == []


def test_a_run_removes_what_a_killed_one_left_unfinished(tmp_path: Path) -> None:
    folder = output_folder(tmp_path, "load-data", "DATA")
    folder.mkdir(parents=True)
    temporary_path(folder / "part-00007.csv").write_text("order_id,ch")
    run_step(tmp_path, "load-data", GENERATE_ROWS=20)
    assert [path.name for path in folder.iterdir()] == ["part-00000.csv"]


def test_no_scratch_is_left_behind(tmp_path: Path) -> None:
    run_step(tmp_path, "load-data", GENERATE_ROWS=40)
    assert list(tmp_path.rglob(".scratch*")) == []
