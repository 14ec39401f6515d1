"""The examples run as they are."""

import json

import nbformat
import pytest
from nbclient import NotebookClient

from contracts import artifacts
from pipeline.aws.definition import definition
from pipeline.config_file import load_config
from testing.jobs import REPOSITORY

EXAMPLES = REPOSITORY / "examples"


def test_the_aws_pipeline_has_a_definition_with_every_section_filled_in():
    config = load_config(EXAMPLES / "pipeline_aws.yaml")
    steps = [step["Name"] for step in json.loads(definition(config))["Steps"]]
    assert steps[:3] == ["DataLoading", "TabularPreprocessing", "PyTorchTraining"]
    assert config.aws is not None
    assert config.aws.spot.enabled


@pytest.mark.long
def test_the_notebook_leads_from_a_table_to_a_report_and_predictions(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTEBOOK_JOB", str(tmp_path / "job"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    notebook = nbformat.read(EXAMPLES / "train_in_studio.ipynb", as_version=4)
    notebook.cells = [cell for cell in notebook.cells if "aws" not in cell.metadata.get("tags", ())]
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert (tmp_path / "job" / "output" / "data" / artifacts.REPORT).is_file()
    table = notebook.cells[-1].outputs[0].data["text/plain"]
    assert "prob_1" in table
    assert len(table.splitlines()) == 6  # five records below the head
