"""The JSON and YAML of the pages for newcomers is accepted as it is, or beside the settings that every job needs."""

import json
import re
from typing import Any

import pytest
import yaml

from contracts.hyperparameter_files import parse_hyperparameters
from pipeline.aws.definition import definition
from pipeline.config_file import load_config
from testing.jobs import REPOSITORY

PAGES = ("README.md", "docs/tutorial.md", "docs/aws.md", "docs/faq.md", "docs/init.md", "docs/presets.md")
JOB = {"label_name": "label", "text_name": "chat", "model_class": "multimodal_bert", "preset": "recommended"}


def _blocks(language: str) -> list[Any]:
    return [
        pytest.param(block, id=f"{page}-{number}")
        for page in PAGES
        for number, block in enumerate(blocks_of(page, language), start=1)
    ]


def blocks_of(page: str, language: str) -> list[str]:
    """Return the code blocks of a page that are in `language`."""
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", (REPOSITORY / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", _blocks("json"))
def test_a_json_example_has_valid_hyperparameters_or_is_a_policy(block):
    values = json.loads(block)
    if "Statement" in values:
        assert {"Effect", "Action"} <= set(values["Statement"][0])
    else:
        parse_hyperparameters(values if "label_name" in values else {**JOB, **values})


@pytest.mark.parametrize("block", _blocks("yaml"))
def test_a_yaml_example_is_a_pipeline_or_a_part_of_one(block, tmp_path):
    values = yaml.safe_load(block)
    if "name" not in values:
        whole = yaml.safe_load((REPOSITORY / "examples/pipeline_aws.yaml").read_text())
        values = {**whole, **values, "aws": {**whole["aws"], **values.get("aws", {})}}
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(values))
    assert json.loads(definition(load_config(path)))["Steps"]


def test_the_examples_are_found():
    assert len(blocks_of("docs/faq.md", "yaml")) == 2
    assert len(blocks_of("docs/aws.md", "json")) == 2


def test_the_notebook_runs_the_python_of_the_aws_page():
    cells = json.loads((REPOSITORY / "examples/train_in_studio.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code" and "aws" in cell["metadata"].get("tags", ())]
    first, *shared = blocks_of("docs/aws.md", "python")  # the first names the folder, as the notebook does above
    assert "JOB" in first
    assert ["".join(cell["source"]) + "\n" for cell in code] == shared


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_to_a_file_and_a_heading(page):
    path = REPOSITORY / page
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", path.read_text()):
        linked = path.parent / target if target else path
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, target
