"""A pipeline's section tuning becomes the hyperparameter with which the training job searches."""

import json

import pytest

from contracts.errors import ContractError
from contracts.steps import PYTORCH_TRAINING
from contracts.tuning import Tuning
from pipeline.plan import make_plan
from testing.pipelines import AWS, configuration

SEARCH = {"trials": 5, "space": {"lr": {"low": 1e-4, "high": 1e-2, "scale": "log"}, "max_epochs": [1, 2]}}


def planned(**changes):
    return make_plan(configuration(**changes), {})


def test_the_training_step_gets_the_search_as_a_hyperparameter():
    plan = planned(tuning={"engine": "container", **SEARCH})
    assert Tuning.model_validate(json.loads(plan.hyperparameters["tuning"])) == Tuning.model_validate(SEARCH)
    assert "tuning" not in planned().hyperparameters


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"tuning": {"space": {"lrr": [1]}}}, "tuning.space: 'lrr' is not a hyperparameter"),
        (
            {"tuning": SEARCH, "aws": {**AWS, "steps": {PYTORCH_TRAINING.name: {"instance_count": 2}}}},
            "aws.steps.PyTorchTraining.instance_count: is 2, but a search runs on one",
        ),
    ],
)
def test_a_search_that_cannot_run_is_refused_before_anything_starts(changes, cause):
    with pytest.raises(ContractError) as refused:
        planned(**changes)
    assert refused.value.cause.startswith(cause)


def test_a_search_is_set_once():
    hyperparameters = {**configuration().hyperparameters, "tuning": SEARCH}
    with pytest.raises(ContractError, match="is set, and hyperparameters.tuning is set too"):
        planned(tuning=SEARCH, hyperparameters=hyperparameters)
