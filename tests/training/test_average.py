"""The moving average of the weights: what it is, that it resumes, and that it is what is validated and saved."""

import json
from typing import Any

import pytest
import torch

from container.training.average import WeightAverage
from container.training.checkpoint import CheckpointStore, load_weights
from container.training.checkpoint_files import complete_checkpoints
from testing.encoder_families import packed_batch, write_config
from testing.jobs import write_job
from tests.contracts.test_every_hyperparameter import auroc_of_val, train
from tests.parallel.test_data_parallel import execution_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def group(one_rank):
    torch.set_num_threads(1)


class Alone:
    """An execution that counts its calls of reshard."""

    changes = 0

    def reshard(self):
        self.changes += 1


def start(seed=0):
    torch.manual_seed(seed)
    module = torch.nn.ModuleDict({"open": torch.nn.Linear(3, 2), "frozen": torch.nn.Linear(2, 2)})
    module["frozen"].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.1)
    return module, optimizer, WeightAverage(module, decay=0.9)


def take_steps(module, optimizer, average, steps):
    seen = []
    for step in steps:
        optimizer.zero_grad()
        torch.manual_seed(100 + step)
        module["frozen"](module["open"](torch.randn(5, 3))).square().mean().backward()
        optimizer.step()
        average.update(step)
        seen.append(module["open"].weight.detach().clone())
    return seen


def test_it_is_the_exponential_mean_of_the_weights_that_forgets_the_first_ones_faster():
    module, optimizer, average = start()
    expected = module["open"].weight.detach().clone()
    for t, weight in enumerate(take_steps(module, optimizer, average, range(100))):
        decay = min(0.9, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * weight
    torch.testing.assert_close(average.state["open.weight"], expected)
    assert not torch.allclose(expected, module["open"].weight, atol=1e-4)


def test_frozen_weights_have_none_and_no_decay_keeps_nothing():
    module, _, average = start()
    assert sorted(average.state) == ["open.bias", "open.weight"]
    assert WeightAverage(module, decay=0.0).state == {}


def test_half_precision_weights_are_averaged_in_float32():
    module = torch.nn.Linear(2, 2).bfloat16()
    average = WeightAverage(module, decay=0.999)
    assert {tensor.dtype for tensor in average.state.values()} == {torch.float32}


def test_within_the_block_the_weights_are_the_averages_and_after_it_themselves_even_after_an_error():
    module, optimizer, average = start()
    take_steps(module, optimizer, average, range(5))
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    averages = {name: value.clone() for name, value in average.state.items()}
    execution = Alone()

    def fail_within() -> None:
        with average.in_place_of_weights(execution):
            for name, value in averages.items():
                assert torch.equal(module.state_dict()[name], value)
            assert execution.changes == 1
            raise KeyError

    with pytest.raises(KeyError):
        fail_within()
    assert execution.changes == 2
    for name, value in weights.items():
        assert torch.equal(module.state_dict()[name], value)
    for name, value in averages.items():
        assert torch.equal(average.state[name], value)


def test_a_checkpoint_continues_the_average_to_the_bit(tmp_path):
    module, optimizer, average = start()
    take_steps(module, optimizer, average, range(4))
    store = CheckpointStore(tmp_path, keep=1, device=CPU)
    save(store, module, optimizer, average)
    take_steps(module, optimizer, average, range(4, 8))
    other, its_optimizer, its_average = start(1)
    store.load(store.newest(), other, its_optimizer, average=its_average.state)
    take_steps(other, its_optimizer, its_average, range(4, 8))
    for name, value in average.state.items():
        assert torch.equal(its_average.state[name], value)
        assert torch.equal(other.state_dict()[name], module.state_dict()[name])


def test_what_is_served_from_a_checkpoint_are_the_averages_and_the_frozen_weights(tmp_path):
    module, optimizer, average = start()
    take_steps(module, optimizer, average, range(4))
    store = CheckpointStore(tmp_path, keep=1, device=CPU)
    save(store, module, optimizer, average)
    expected = {**module.state_dict(), **average.state}
    (checkpoint,) = complete_checkpoints(tmp_path)
    for load in (store.load_weights, lambda checkpoint, module: load_weights(module, checkpoint)):
        other, *_ = start(1)
        load(checkpoint, other)
        for name, value in expected.items():
            assert torch.equal(other.state_dict()[name], value), name


def save(store, module, optimizer, average):
    store.save(
        module, optimizer, name="epoch=0-step=4.ckpt", content={"step": 4}, best_step=None, average=average.state
    )
    store.wait()


SETTINGS = {"max_epochs": 4, "ema_decay": 0.97, "lr": 0.02, "run_scheduler": False, "early_stop_patience": 9}


def test_the_best_validation_is_that_of_the_averages_and_they_are_evaluated(tmp_path):
    paths = write_job(tmp_path, overrides={**SETTINGS, "early_stop_metric": "val/loss"})
    job, done = train(paths)
    best = next(entry for entry in done.state.history if entry["step"] == done.state.best_step and "val/auroc" in entry)
    assert auroc_of_val(job, done) == best["val/auroc"]
    assert "averaged over steps (ema_decay 0.97)" in done.weights
    state = json.loads((done.checkpoints[0].folder / "state.json").read_text())
    assert state["step"] == done.state.best_step


def test_validating_an_average_changes_nothing_of_the_training(tmp_path):
    often, seldom = (
        train(write_job(tmp_path / name, overrides={**SETTINGS, "val_check_interval": interval}))[1]
        for name, interval in (("often", 0.25), ("seldom", 1.0))
    )
    losses = [
        {entry["step"]: entry["train/loss"] for entry in done.state.history if "train/loss" in entry}
        for done in (often, seldom)
    ]
    assert losses[0] == losses[1]


def differences_of_predictions(encoder: str, **settings: Any) -> tuple[float, float]:
    """How far predictions are from those of one process: with the averages, and with the weights after them."""
    execution = execution_of(encoder, **settings)
    plain = execution_of(encoder, strategy="auto", dp_replicate_size=2).module.eval()
    average = WeightAverage(execution.module, decay=0.5)
    for value in average.state.values():
        value.mul_(1.5)
    batch = packed_batch([[5], [9, 3]], seed=execution.ranks.rank)
    with torch.no_grad():
        weights = plain(batch)
        for parameter in plain.parameters():
            parameter.mul_(1.5)
        averages = plain(batch)
    execution.module.eval()
    execution.predict([batch])
    with average.in_place_of_weights(execution):
        (within,) = execution.predict([batch])
    (after,) = execution.predict([batch])
    assert not torch.allclose(weights, averages, atol=1e-3)
    return (within - averages).abs().max().item(), (after - weights).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_gathered_weights_are_not_used_after_they_changed(rank_pool, tmp_path, sharding):
    write_config(tmp_path, "bert", num_hidden_layers=2)
    settings = {"strategy": "fsdp", "sharding_strategy": sharding}
    for within, after in rank_pool.run(differences_of_predictions, str(tmp_path), world_size=2, **settings):
        assert within < 1e-5
        assert after < 1e-5
