import math

import pytest
import torch

from container.parallel.degrees import ParallelDegrees
from container.parallel.execution import Gradients
from container.parallel.mesh import RankMesh


def test_the_gradient_norm_of_a_large_weight_is_exact():
    weight = torch.nn.Parameter(torch.zeros(20_000, 768))
    weight.grad = torch.randn(20_000, 768, generator=torch.Generator().manual_seed(0)) * 1e-3
    model = torch.nn.Module()
    model.weight = weight
    alone = RankMesh(torch.device("cpu"), None, ParallelDegrees(), rank=0, world_size=1, coordinates={})
    expected = weight.grad.double().square().sum().sqrt().item()
    assert Gradients(model, alone).norm(math.inf, loss_scale=1.0).value.item() == pytest.approx(expected, rel=1e-6)
