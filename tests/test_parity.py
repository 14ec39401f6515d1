"""The law: for the same seed, data and global batch, any number of processes gives one process's numbers."""

import json

import pytest
import torch

from tests.jobs import NO_DROPOUT, TWO_TEXTS, run_train, write_job

pytestmark = pytest.mark.slow

# 61 records in global batches of 8: the last holds 5, so with 4 ranks some slots are uneven and none is full.
SHARED = {
    **TWO_TEXTS,
    **NO_DROPOUT,
    "optimizer": "SGD",
    "lr": 0.05,
    "class_weights": [1.0, 3.0],
    "load_ckpt": False,
    "val_check_interval": 0.5,
}


def history(paths):
    last = (paths.checkpoints / "last.ckpt").read_text().strip()
    return json.loads((paths.checkpoints / last / "state.json").read_text())["state"]["history"]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    return job(tmp_path_factory.mktemp("one"), processes=1, batch_size=8)


def job(root, *, processes, batch_size, accumulate=1):
    overrides = {
        **SHARED,
        "nproc_per_node": processes,
        "batch_size": batch_size,
        "accumulate_grad_batches": accumulate,
    }
    paths = write_job(root, overrides=overrides, rows=(61, 21, 21))
    run_train(paths)
    return paths


@pytest.mark.parametrize(("processes", "batch_size", "accumulate"), [(2, 4, 1), (4, 2, 1), (1, 2, 4)])
def test_any_split_of_the_global_batch_gives_the_same_losses_and_weights(
    one_process, tmp_path, processes, batch_size, accumulate
):
    paths = job(tmp_path, processes=processes, batch_size=batch_size, accumulate=accumulate)
    for ours, single in zip(history(paths), history(one_process), strict=True):
        for name in ("train/loss", "val/loss", "val/auroc"):
            if name in single:
                assert ours[name] == pytest.approx(single[name], rel=1e-5), (name, single["step"])
    state = torch.load(paths.model / "model.pth", weights_only=True)
    expected = torch.load(one_process.model / "model.pth", weights_only=True)
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
