"""A pipeline's section tuning becomes the hyperparameter with which the training job searches."""

import json

import pytest

from contracts.errors import ContractError
from contracts.steps import PYTORCH_TRAINING
from contracts.tuning import Tuning
from pipeline.plan import make_plan
from testing.pipelines import AWS, configuration

SEARCH = {"trials": 5, "space": {"lr": {"low": 1e-4, "high": 1e-2, "scale": "log"}, "max_epochs": [1, 2]}}

GIVEN = configuration().hyperparameters
TWO_HOSTS = {**AWS, "steps": {PYTORCH_TRAINING.name: {"instance_count": 2}}}
GROUPS = {"gpu": {"instance_type": "ml.g5.xlarge", "instance_count": 2}}
GROUP_OF_TWO = {**AWS, "training": {"instance_groups": GROUPS, "training_group": "gpu"}}


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
        ({"tuning": SEARCH, "aws": TWO_HOSTS}, "tuning: the job has 2 hosts, but a search runs on one"),
        ({"hyperparameters": {**GIVEN, "tuning": SEARCH}, "aws": TWO_HOSTS}, "tuning: the job has 2 hosts"),
        ({"hyperparameters": {**GIVEN, "ensemble": 3}, "aws": TWO_HOSTS}, "ensemble: is 3, and the job has 2 hosts"),
        ({"hyperparameters": {**GIVEN, "cross_fit": 5}, "aws": GROUP_OF_TWO}, "cross_fit: is 5, and the job has 2"),
        (
            {"tuning": SEARCH, "hyperparameters": {**GIVEN, "tuning": SEARCH}},
            "tuning: is set, and hyperparameters.tuning is set too",
        ),
    ],
)
def test_a_training_that_cannot_run_is_refused_before_anything_starts(changes, cause):
    with pytest.raises(ContractError) as refused:
        planned(**changes)
    assert refused.value.cause.startswith(cause)


def test_trials_of_the_services_tuner_may_have_several_hosts():
    space = {"metric": "val/auroc", "space": {"lr": [1e-3, 2e-3]}}
    assert planned(tuning={"engine": "sagemaker", **space}, aws=TWO_HOSTS).step(PYTORCH_TRAINING)
