"""What a resumed run may change, and how it keeps the global batch."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from container.data.sampler import BatchPlan
from container.preprocessing.fingerprint import ENCODER
from container.preprocessing.prepare import prepare_data
from container.training.identity import check_identity, check_resumable, identity, resume_batch_plan
from container.training.training_run import TrainingRun
from container.tuning import ensemble
from container.tuning.ensemble import plan_members
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from testing import table_jobs
from testing.jobs import CONFIGURATION, write_checkpoint

ROWS = {"train": "1", "val": "2", "test": "9"}


def hyperparameters(**overrides):
    return parse_hyperparameters({**CONFIGURATION, **overrides})


@pytest.mark.parametrize(
    ("global_batch", "planned", "per_pass", "resumed"),
    [
        (64, BatchPlan(32, 2), 1, BatchPlan(32, 2)),
        (64, BatchPlan(32, 1), 1, BatchPlan(32, 1, 2)),  # half the ranks: twice the accumulation
        (64, BatchPlan(32, 4), 1, BatchPlan(16, 4, 1)),  # twice the ranks: half the batch
        (64, BatchPlan(8, 2, 4), 4, BatchPlan(8, 2, 4)),  # a pipeline takes four microbatches at once
        (64, BatchPlan(4, 2, 4), 4, BatchPlan(4, 2, 8)),
        (64, BatchPlan(24, 3), 1, BatchPlan(22, 3, 1)),  # 22, 21 and 21 records
        (14, BatchPlan(4, 1), 1, BatchPlan(4, 1, 4)),
        (7, BatchPlan(2, 7), 1, BatchPlan(1, 7)),
    ],
)
def test_a_resumed_run_keeps_its_global_batch_whatever_the_ranks(global_batch, planned, per_pass, resumed):
    batch_plan = resume_batch_plan(global_batch, replace(planned, per_pass=per_pass))
    assert batch_plan.global_batch == global_batch
    for name in ("microbatch_size", "data_parallel_size", "num_microbatches"):
        assert getattr(batch_plan, name) == getattr(resumed, name)


@given(
    global_batch=st.integers(1, 300),
    batch_size=st.integers(1, 40),
    data_size=st.sampled_from([1, 2, 3, 8]),
    per_pass=st.sampled_from([1, 4]),
    passes=st.integers(1, 3),
)
def test_a_resumed_batch_never_exceeds_what_was_asked_for(global_batch, batch_size, data_size, per_pass, passes):
    planned = BatchPlan(batch_size, data_size, passes * per_pass, per_pass=per_pass)
    if global_batch < data_size * per_pass:
        with pytest.raises(ContractError, match=f"global batch of {global_batch}"):
            resume_batch_plan(global_batch, planned)
        return
    batch_plan = resume_batch_plan(global_batch, planned)
    assert batch_plan.microbatch_size <= batch_size
    assert batch_plan.num_microbatches % per_pass == 0
    assert batch_plan.global_batch == global_batch


def test_more_ranks_than_a_step_has_records_are_refused_with_the_number_that_fits():
    with pytest.raises(ContractError, match="at most 6 data-parallel ranks"):
        resume_batch_plan(6, BatchPlan(8, 8))
    with pytest.raises(ContractError, match=r"8 microbatches \(num_microbatches\)\n.*at most 6"):
        resume_batch_plan(6, BatchPlan(8, 2, 8, per_pass=8))


def test_the_log_says_how_the_global_batch_was_kept(caplog):
    caplog.set_level("INFO")
    resume_batch_plan(64, BatchPlan(32, 1))
    assert "the global batch stays 64" in caplog.text
    assert "accumulate_grad_batches is 2" in caplog.text


def test_the_microbatches_of_a_run_follow_from_its_settings_and_ranks():
    hp = hyperparameters(batch_size=8, accumulate_grad_batches=3, max_tokens_per_batch=1000)
    ranks = SimpleNamespace(data_size=2)
    pipeline = SimpleNamespace(module=torch.nn.Linear(1, 1), ranks=ranks, num_microbatches=4)
    run = TrainingRun(hp, pipeline, None, identity=identity(hp, "", ROWS))
    assert run.batch_plan == BatchPlan(2, 2, 12, max_tokens=250, per_pass=4)
    assert run.batch_plan.global_batch == 48


def test_a_resumed_run_keeps_its_limit_of_tokens(caplog):
    caplog.set_level("INFO")
    planned = BatchPlan(32, 1, max_tokens=100)
    assert resume_batch_plan(64, planned) == BatchPlan(32, 1, 2, records=64, max_tokens=100)
    assert "a microbatch has up to 100 tokens" in caplog.text


@pytest.mark.parametrize(
    "changed",
    [
        {"strategy": "fsdp"},
        {"pp_size": 2},
        {"batch_size": 3},
        {"accumulate_grad_batches": 5},
        {"max_tokens_per_batch": 9},
    ],
)
def test_parallelism_may_change_between_runs(changed):
    first, second = (hyperparameters(**more) for more in ({}, changed))
    check_identity(identity(first, "abc", ROWS).parts, identity(second, "abc", ROWS), folder=Path("c"))


def test_a_checkpoint_from_before_a_setting_existed_resumes_while_it_is_off():
    saved = dict(identity(parse_hyperparameters(CONFIGURATION), "abc", ROWS).parts)
    del saved["ema_decay"]
    check_identity(saved, identity(parse_hyperparameters(CONFIGURATION), "abc", ROWS), folder=Path("c"))
    averaging = identity(hyperparameters(ema_decay=0.9), "abc", ROWS)
    with pytest.raises(ContractError, match=r"ema_decay: .* trained with 0\.0, this run has 0\.9"):
        check_identity(saved, averaging, folder=Path("c"))


def test_the_networks_of_an_earlier_version_do_not_resume_because_their_folds_have_other_rows(tmp_path):
    hp = hyperparameters(cross_fit=3)
    saved = {name: value for name, value in identity(hp, "abc", ROWS).parts.items() if name != "cross_fit_repeats"}
    with pytest.raises(ContractError, match=r"cross_fit_repeats: .* trained with 'the folds of an earlier version'"):
        check_identity(saved, identity(hp, "abc", ROWS), folder=tmp_path)


def test_a_setting_that_no_longer_exists_is_ignored_at_its_default_only():
    hp = parse_hyperparameters({**CONFIGURATION, "modality_dropout": "0.0", "prediction_dtype": "float32"})
    current = identity(hp, "abc", ROWS)
    check_identity({**current.parts, "modality_dropout": 0.0}, current, folder=Path("c"))
    with pytest.raises(ContractError, match=r"modality_dropout: .* trained with 0\.2"):
        check_identity({**current.parts, "modality_dropout": 0.2}, current, folder=Path("c"))
    with pytest.raises(ContractError, match=r"modality_dropout: unknown hyperparameter; it was removed"):
        parse_hyperparameters({**CONFIGURATION, "modality_dropout": 0.2})


def test_a_resumed_run_may_train_longer_but_not_differently():
    saved = identity(hyperparameters(), "abc", ROWS).parts
    check_identity(saved, identity(hyperparameters(max_epochs=9, nproc_per_node=4), "abc", ROWS), folder=Path("c"))
    with pytest.raises(ContractError, match=r"lr: .* trained with 0\.002, this run has 0\.5"):
        check_identity(saved, identity(hyperparameters(lr=0.5), "abc", ROWS), folder=Path("c"))
    with pytest.raises(ContractError, match=r"preprocessing .* trained with 'abc', this run has 'xyz'"):
        check_identity(saved, identity(hyperparameters(), "xyz", ROWS), folder=Path("c"))
    with pytest.raises(ContractError, match="the prepared rows of train: .* trained with '1', this run has '3'"):
        check_identity(saved, identity(hyperparameters(), "abc", {**ROWS, "train": "3"}), folder=Path("c"))


def test_a_checkpoint_of_a_version_without_digests_of_encoders_resumes():
    hp = hyperparameters()
    check_identity(identity(hp, "abc", ROWS).parts, identity(hp, "abc", {**ROWS, ENCODER: ["1"]}), folder=Path("c"))


DISTILLED = {"ensemble": 2, "ensemble_model": "distill"}


@pytest.mark.parametrize(
    ("settings", "network"),
    [({}, None), ({"lora_rank": 2}, None), ({"ensemble": 2}, 0), (DISTILLED, 0), (DISTILLED, None)],
)
def test_other_weights_of_an_encoder_under_the_same_path_are_refused(tmp_path, settings, network):
    paths, hp = table_jobs.write_job(tmp_path), table_jobs.settings(tokenizer="tiny", reinit_layers=0, **settings)

    def prepared(note):
        header = json.dumps({"__metadata__": {"note": note}}).encode()
        (paths.pretrained / "tiny" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        return prepare_data(paths, hp)

    first, run = prepared("1"), SimpleNamespace(hp=hp, checkpoints=paths.checkpoints)
    if network is not None:
        run = ensemble._planned(paths, hp, network)
    parts = identity(run.hp, first.fitted.fingerprint, first.digests).parts
    write_checkpoint(run.checkpoints, {"step": 3, "identity": dict(parts)})
    resume = partial(check_resumable, hp, paths.checkpoints, given=())
    if hp.ensemble > 1:
        resume = partial(plan_members, paths, hp)
    with pytest.raises(ContractError, match="the encoder tiny: the checkpoint in"):
        resume(prepared=prepared("2"))


def write_checkpoint_of(hp, folder):
    write_checkpoint(folder, {"step": 3, "identity": dict(identity(hp, "abc", ROWS).parts)})


def test_a_changed_setting_is_found_before_the_data_is_prepared(tmp_path):
    check_resumable(hyperparameters(lr=0.5), tmp_path, given=["lr"])
    write_checkpoint_of(hyperparameters(), tmp_path)
    check_resumable(hyperparameters(max_epochs=9), tmp_path, given=["max_epochs"])
    with pytest.raises(ContractError, match=r"lr: .* trained with 0\.002, this run has 0\.5"):
        check_resumable(hyperparameters(lr=0.5), tmp_path, given=["lr"])


def test_before_the_data_is_prepared_a_preset_may_still_choose_what_the_user_did_not_set(tmp_path):
    saved = identity(hyperparameters(preset="recommended", batch_size=16, weight_decay=0.01), "abc", ROWS).parts
    earlier = {name: value for name, value in saved.items() if name != "choose_on"}  # of a version without this setting
    write_checkpoint(tmp_path, {"step": 3, "identity": earlier})
    check_resumable(hyperparameters(preset="recommended", batch_size=8), tmp_path, given=["preset"])
    for names in (["preset", "weight_decay"], ["weight_decay"]):
        with pytest.raises(ContractError, match=r"weight_decay: .* trained with 0\.01, this run has 0\.2"):
            check_resumable(hyperparameters(preset="recommended", weight_decay=0.2), tmp_path, given=names)
    with pytest.raises(ContractError, match=r"weight_decay: .* trained with 0\.01, this run has 0\.0"):
        check_resumable(hyperparameters(), tmp_path, given=[])
