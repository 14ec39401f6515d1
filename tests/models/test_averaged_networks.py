"""An ensemble of classifiers computes the mean of their probabilities, with the methods of one classifier."""

import numpy as np
import pytest
import torch

from container.decision.softmax import log_mean_probabilities
from container.models.ensemble import Ensemble
from tests.models.test_models import batch_for, build

TABLE = {"model_class": "trimodal_cross_attn", "tabular_dim": 3}


@pytest.fixture
def networks(tmp_path):
    return [build(tmp_path, seed=seed, **TABLE).eval() for seed in (1, 2, 3)]


@pytest.fixture
def batch(networks):
    return batch_for(networks[0], tabular_dim=3)


@torch.no_grad()
def mean_of(networks, batch):
    return torch.stack([member(batch).softmax(-1) for member in networks]).mean(0)


def test_its_probabilities_are_the_mean_of_those_of_its_members(networks, batch):
    with torch.no_grad():
        torch.testing.assert_close(Ensemble(networks)(batch).softmax(-1), mean_of(networks, batch))


def test_the_features_that_it_encodes_give_its_head_the_same_logits(networks, batch):
    ensemble = Ensemble(networks)
    with torch.no_grad():
        features = ensemble.encode(batch)
        assert len(features) == len(ensemble.branches)
        torch.testing.assert_close(ensemble.head(features, batch), ensemble(batch))


def test_numpy_computes_the_same_mean(networks, batch):
    with torch.no_grad():
        logits = [member(batch).numpy() for member in networks]
    np.testing.assert_allclose(np.exp(log_mean_probabilities(logits)), mean_of(networks, batch).numpy(), atol=1e-6)


def test_the_names_of_its_weights_begin_with_the_number_of_the_member(networks):
    names = set(Ensemble(networks).state_dict())
    assert names == {f"members.{i}.{name}" for i in range(3) for name in networks[i].state_dict()}
