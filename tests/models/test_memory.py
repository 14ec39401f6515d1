import pytest
import torch
from torch import nn

from container.models import memory
from container.models.memory import build_if_it_fits
from contracts.errors import ContractError


def test_a_module_that_does_not_fit_into_memory_is_refused_with_its_number_of_parameters():
    with pytest.raises(ContractError, match=r"num_experts: the head has 1,000,000,000,000 parameters, 4,000 GB"):
        build_if_it_fits(lambda: nn.Linear(10**6, 10**6, bias=False), part="the head", settings="num_experts")


def test_each_process_of_a_host_needs_the_memory(monkeypatch):
    monkeypatch.setattr(memory, "_memory_bytes", lambda: 40)
    assert (
        build_if_it_fits(lambda: nn.Linear(10, 1, bias=False), part="it", settings="size").weight.device.type == "cpu"
    )
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ContractError, match="size: it has 10 parameters"):
        build_if_it_fits(lambda: nn.Linear(10, 1, bias=False), part="it", settings="size")


def test_counting_parameters_leaves_the_random_weights_as_they_are():
    torch.manual_seed(0)
    counted = build_if_it_fits(lambda: nn.LSTM(4, 4), part="it", settings="size")
    torch.manual_seed(0)
    assert all(map(torch.equal, counted.parameters(), nn.LSTM(4, 4).parameters()))
