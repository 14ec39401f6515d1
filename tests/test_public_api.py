"""The examples in the docstrings of the public API give what they show."""

import doctest
import json
from typing import Any

import pytest

from container.models import classifier
from container.models.build import build_classifier
from container.serving import handler, predictor
from container.steps import program
from contracts import hyperparameter_files, paths
from testing.encoder_families import hyperparameters, packed_batch, standard_transform, write_config


def failures(module: Any, **names: Any) -> int:
    found = doctest.testmod(module, extraglobs={"json": json, **names})
    assert found.attempted
    return found.failed


@pytest.mark.parametrize("module", [predictor, handler])
@pytest.mark.slow
def test_an_example_with_a_trained_model_gives_what_it_shows(module, trained_job):
    assert failures(module, model_folder=trained_job.model) == 0


@pytest.mark.parametrize("module", [hyperparameter_files, paths])
def test_an_example_of_the_contracts_gives_what_it_shows(module, tmp_path):
    assert failures(module, root=tmp_path) == 0


def test_the_example_of_a_step_program_gives_what_it_shows(monkeypatch, tmp_path):
    for owner, name in ((program, "set_up_logging"), (program.os, "umask")):
        monkeypatch.setattr(owner, name, lambda *_: None)  # a program changes its process
    assert failures(program, root=tmp_path) == 0


def test_the_example_of_the_classifier_gives_what_it_shows(tmp_path):
    hp = hyperparameters(model_class="multimodal_bert", tab_field_list=["a", "b", "c"])
    files = write_config(tmp_path, "bert")
    model = build_classifier(hp, [files], tabular_dim=3, numeric_transform=standard_transform(3))
    assert failures(classifier, classifier=model, packed_batch=packed_batch) == 0
