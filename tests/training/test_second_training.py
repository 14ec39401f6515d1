"""A finished job with another setting: what the user reads, and what stays."""

import pytest

from container.commands import main
from testing.jobs import NO_DROPOUT, run_train, write_hyperparameters, write_job

pytestmark = pytest.mark.slow


def contents(*folders):
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_another_setting_is_refused_at_once_and_a_fresh_start_keeps_the_results_until_the_new_are_complete(
    tmp_path, capfd
):
    paths = write_job(tmp_path, overrides={**NO_DROPOUT, "max_epochs": 1, "explain": 0})
    run_train(paths)
    results = contents(paths.model, paths.output_data)
    del results[paths.output_data / "log.txt"]  # of every run
    write_hyperparameters(paths, {**NO_DROPOUT, "lr": 1e3, "optimizer": "SGD", "gradient_clip_val": 0})
    train = ["train", "--root", str(tmp_path)]

    assert main(train) == 1
    printed = capfd.readouterr()
    assert printed.err.startswith("lr: the checkpoint in ")
    assert "train --fresh" in printed.err
    assert (printed.out + printed.err).count("(also changed: optimizer, gradient_clip_val)") == 1
    assert "Traceback" not in printed.out + printed.err
    assert "Traceback" in paths.failure_files[0].read_text()

    assert main([*train, "--fresh"]) == 1  # an error of a worker: the loss is not finite
    printed = capfd.readouterr()
    assert "found prepared" not in printed.out
    assert (printed.out + printed.err).count("lr: the loss or its gradient was not finite for 5 optimizer steps") == 1
    assert "Traceback" not in printed.out + printed.err
    assert not list(paths.checkpoints.glob("*.ckpt"))
    now = contents(paths.model, paths.output_data)
    assert {path: content for path, content in now.items() if path.name not in ("failure", "log.txt")} == results
