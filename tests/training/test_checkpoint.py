import json
import os
import re
import shutil
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.distributed.checkpoint import FileSystemWriter

from container.training import checkpoint
from container.training.checkpoint import CheckpointStore, _copied, load_weights
from container.training.checkpoint_files import (
    clear_checkpoints,
    clear_unfinished,
    complete_checkpoints,
    remove_old_checkpoints,
    unfinished_save,
)
from container.training.host_folders import HostFolders
from container.training.identity import identity
from container.training.state import TrainingState
from container.training.training_run import TrainingRun, forget_missing_best
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.other_programs import MARKERS
from testing.jobs import CONFIGURATION

pytestmark = pytest.mark.usefixtures("one_rank")
CPU = torch.device("cpu")


def trained(seed, steps=3, kind=torch.optim.AdamW):
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    optimizer = kind(module.parameters(), lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    take_steps(module, optimizer, range(steps))
    return module, optimizer


def take_steps(module, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        torch.manual_seed(1000 + step)
        module(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()


def save(store, module, optimizer, step, best_step=None):
    store.save(module, optimizer, name=f"epoch=0-step={step}.ckpt", content={"step": step}, best_step=best_step)
    store.wait()


def saved(folder, *steps, keep=2, kind=torch.optim.AdamW):
    """A store that has saved a module and its optimizer after each of these steps; the three of them."""
    module, optimizer = trained(0, kind=kind)
    store = CheckpointStore(folder, keep=keep, device=CPU)
    for step in steps:
        save(store, module, optimizer, step)
    return store, module, optimizer


def assert_same_weights(module, other):
    for name, value in module.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def not_renamed(folder, name):
    """Give a checkpoint the state before the last step of its save."""
    unfinished_save(folder, name).parent.mkdir(exist_ok=True)
    (folder / name).rename(unfinished_save(folder, name))


@pytest.fixture
def slow_disk(monkeypatch):
    """Every write waits until the event is set."""
    goes_on, write = threading.Event(), FileSystemWriter.write_data
    monkeypatch.setattr(FileSystemWriter, "write_data", lambda *args: goes_on.wait(30) and write(*args))
    yield goes_on
    goes_on.set()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_a_loaded_checkpoint_continues_exactly(tmp_path, kind):
    store, module, optimizer = saved(tmp_path, 3, kind=kind)
    take_steps(module, optimizer, range(3, 6))
    other, its_optimizer = trained(1, steps=0, kind=kind)
    store.load(store.newest(), other, its_optimizer)
    take_steps(other, its_optimizer, range(3, 6))
    assert_same_weights(module, other)


def test_weights_load_into_a_plain_model(tmp_path, recwarn):
    _, module, _ = saved(tmp_path, 3)
    other, _ = trained(1)
    recwarn.clear()
    load_weights(other, complete_checkpoints(tmp_path)[0])
    assert not recwarn
    assert_same_weights(module, other)


def test_the_newest_n_are_kept_and_the_best_beside_them(tmp_path):
    store, module, optimizer = saved(tmp_path)
    for step in (1, 2, 3, 4, 5):
        save(store, module, optimizer, step, best_step=2 if step >= 2 else None)
    assert [one.step for one in complete_checkpoints(tmp_path)] == [2, 4, 5]
    assert (tmp_path / "last.ckpt").read_text().strip() == "epoch=0-step=5.ckpt"
    assert (tmp_path / "best.ckpt").read_text().strip() == "epoch=0-step=2.ckpt"


def test_a_truncated_checkpoint_is_passed_over_and_named(tmp_path, caplog):
    store, *_ = saved(tmp_path, 1, 2)
    largest = max((tmp_path / "epoch=0-step=2.ckpt").iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-10])
    assert store.newest().step == 1
    assert "epoch=0-step=2.ckpt is incomplete" in caplog.text


def test_a_kill_while_a_save_replaces_one_of_the_same_step_loses_no_checkpoint(tmp_path, monkeypatch):
    store, module, optimizer = saved(tmp_path, 1, keep=1)
    rename = Path.rename

    def killed(path, target):
        rename(path, target)
        if path.suffix == ".ckpt":
            raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)  # after the first of two
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process removes nothing
        with pytest.raises(SystemExit):
            save(store, module, optimizer, 1)
    assert not (tmp_path / "epoch=0-step=1.ckpt").exists()
    assert steps_in(tmp_path) == [1]


def test_the_removal_of_unfinished_saves_keeps_a_complete_one_that_was_not_renamed(tmp_path):
    saved(tmp_path, 1, keep=1)
    not_renamed(tmp_path, "epoch=0-step=1.ckpt")
    clear_unfinished(tmp_path)
    assert steps_in(tmp_path) == [1]


def test_a_kill_while_a_checkpoint_is_removed_leaves_nothing_of_it(tmp_path, monkeypatch):
    store, module, optimizer = saved(tmp_path, 1, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        save(store, module, optimizer, 2)
    assert steps_in(tmp_path) == [2]
    clear_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch=0-step=2.ckpt", "last.ckpt"]


def test_only_checkpoints_are_pruned_and_cleared(tmp_path):
    store, module, optimizer = saved(tmp_path, 1, keep=1)
    shutil.copytree(tmp_path / "epoch=0-step=1.ckpt", tmp_path / "backup.ckpt")
    (tmp_path / "notes.ckpt").touch()
    save(store, module, optimizer, 2)
    assert {path.name for path in tmp_path.iterdir()} == {
        "backup.ckpt", "notes.ckpt", "last.ckpt", "epoch=0-step=2.ckpt",
    }  # fmt: skip
    clear_checkpoints(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"backup.ckpt", "notes.ckpt"}


def test_markers_that_appear_during_a_save_do_not_belong_to_the_checkpoint(tmp_path, monkeypatch):
    def marked(writer, *arguments):
        written = write(writer, *arguments)
        for path in list(unfinished_save(tmp_path, "epoch=0-step=1.ckpt").iterdir()):
            path.with_name(f"{path.name}.sagemaker-uploading").touch()
        return written

    write = FileSystemWriter.write_data
    monkeypatch.setattr(FileSystemWriter, "write_data", marked)
    saved(tmp_path, 1, keep=1)
    folder = tmp_path / "epoch=0-step=1.ckpt"
    assert list(folder.glob("*.sagemaker-uploading"))
    assert sorted(json.loads((folder / "manifest.json").read_text())) == [".metadata", "__0_0.distcp", "state.json"]
    for marker in folder.glob("*.sagemaker-uploading"):
        marker.unlink()
    assert steps_in(tmp_path) == [1]


def mark(folder, ending, names=None):
    for path in list(folder.iterdir()):
        if not path.name.endswith(MARKERS) and (names is None or path.name in names):
            path.with_name(f"{path.name}{ending}").touch()


def test_a_checkpoint_that_is_being_uploaded_and_the_last_one_that_was_are_kept_until_a_newer_one_is(tmp_path):
    store, module, optimizer = saved(tmp_path, keep=1)
    uploading, uploaded = MARKERS
    save(store, module, optimizer, 1)
    mark(tmp_path / "epoch=0-step=1.ckpt", uploading, {"state.json"})
    for step in (2, 3):
        save(store, module, optimizer, step)
    assert steps_in(tmp_path) == [1, 3], "the upload of 1 goes on"
    mark(tmp_path / "epoch=0-step=1.ckpt", uploaded)
    mark(tmp_path / "epoch=0-step=3.ckpt", uploading)
    for step in (4, 5):
        save(store, module, optimizer, step)
    assert steps_in(tmp_path) == [1, 3, 5], "1 is uploaded, and 3 is not yet"
    mark(tmp_path / "epoch=0-step=3.ckpt", uploaded)
    save(store, module, optimizer, 6)
    assert steps_in(tmp_path) == [3, 6]
    remove_old_checkpoints(tmp_path, keep=1, uploads=False)
    assert steps_in(tmp_path) == [6]


def test_names_that_begin_with_a_dot_are_no_checkpoints(tmp_path, caplog):
    saved(tmp_path, 1, keep=1)
    folder = tmp_path / "epoch=0-step=1.ckpt"
    shutil.copytree(folder, tmp_path / "._epoch=0-step=2.ckpt")
    for path in (tmp_path, folder):
        (path / ".DS_Store").touch()
    for path in [*folder.iterdir(), tmp_path / "last.ckpt"]:
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")
    assert steps_in(tmp_path) == [1]
    assert not caplog.records
    clear_checkpoints(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".DS_Store", "._epoch=0-step=2.ckpt", "._last.ckpt"]


def test_a_job_that_starts_over_does_not_resume_from_a_save_that_was_not_renamed(tmp_path):
    saved(tmp_path, 1, keep=1)
    not_renamed(tmp_path, "epoch=0-step=1.ckpt")
    clear_checkpoints(tmp_path)
    assert list(tmp_path.iterdir()) == []


def run_of(folder):
    """A run without a parallelized model, that keeps its newest checkpoint and the best one."""
    module, optimizer = trained(0)
    hp = parse_hyperparameters(CONFIGURATION)
    execution = SimpleNamespace(module=module, ranks=SimpleNamespace(data_size=1), num_microbatches=1)
    store = CheckpointStore(folder, keep=1, device=CPU)
    run = TrainingRun(hp, execution, store, identity=identity(hp, "", {"train": "", "val": ""}))
    run.optimizer = optimizer
    return run


def save_steps(run, *steps, best_step=None):
    for run.state.step in steps:
        run.state.best_step = best_step
        run.save()
        run.store.wait()


def steps_in(folder):
    return [each.step for each in complete_checkpoints(folder)]


@pytest.mark.parametrize("best", [100, None])
def test_checkpoints_that_another_host_has_lost_do_not_displace_those_after_a_rollback(tmp_path, monkeypatch, best):
    save_steps(run_of(tmp_path), 100, 200, best_step=best)
    common = [100] if best else []
    lost = {f"epoch=0-step={step}.ckpt" for step in (100, 200) if step not in common}
    monkeypatch.setattr(HostFolders, "common", lambda _, names: names - lost)
    resumed = run_of(tmp_path)
    resumed.resume()
    assert steps_in(tmp_path) == [*common, 200], "nothing is removed before the first save"
    assert resumed.state.step == max(common, default=0)
    save_steps(resumed, 150, 175, best_step=best)
    assert steps_in(tmp_path) == [*common, 175]


def test_a_best_validation_whose_checkpoint_is_lost_is_forgotten(tmp_path, caplog):
    run = run_of(tmp_path)
    run.state.best_value = 0.9
    save_steps(run, 100, 200, best_step=100)
    resumed = run_of(tmp_path)
    resumed.resume()
    assert (resumed.state.best_step, resumed.state.best_value) == (100, 0.9)
    (tmp_path / "epoch=0-step=100.ckpt" / "manifest.json").unlink()
    resumed = run_of(tmp_path)
    resumed.resume()
    assert (resumed.state.step, resumed.state.best_step, resumed.state.best_value) == (200, None, None)
    assert "the best checkpoint, of step 100, is missing or damaged" in caplog.text


@pytest.mark.parametrize("manifest", ["[]", "{}", "not json", '{"state.json": 2, ".metadata": 2}'])
def test_garbage_is_no_checkpoint(tmp_path, manifest):
    store, *_ = saved(tmp_path, 1)
    garbage = tmp_path / "epoch=9-step=9.ckpt"
    garbage.mkdir()
    for name, content in (("manifest.json", manifest), ("state.json", "{}"), (".metadata", "{}")):
        (garbage / name).write_text(content)
    assert store.newest().step == 1


def test_a_failed_save_leaves_the_earlier_checkpoint_and_nothing_half_written(tmp_path, monkeypatch):
    store, module, optimizer = saved(tmp_path, 1)
    unwritable = {"step": 2, "state": object()}
    with pytest.raises(TypeError):
        store.save(module, optimizer, name="epoch=0-step=2.ckpt", content=unwritable, best_step=None)
    assert store.newest().step == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch=0-step=1.ckpt", "last.ckpt"]


def test_the_manifest_lists_every_file_with_its_size(tmp_path):
    saved(tmp_path, 1, keep=1)
    folder = tmp_path / "epoch=0-step=1.ckpt"
    listed = json.loads((folder / "manifest.json").read_text())
    assert listed == {path.name: path.stat().st_size for path in folder.iterdir() if path.name != "manifest.json"}
    assert ".metadata" in listed


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_save_writes_the_state_at_its_call_while_training_continues(tmp_path, slow_disk, kind):
    store, module, optimizer = saved(tmp_path, kind=kind)
    content = {"step": 3, "history": [1]}
    store.save(module, optimizer, name="epoch=0-step=3.ckpt", content=content, best_step=None)
    assert complete_checkpoints(tmp_path) == []
    content["history"].append(2)
    take_steps(module, optimizer, range(3, 6))
    slow_disk.set()
    checkpoint = store.newest()
    assert checkpoint.content["history"] == [1]
    other, its_optimizer = trained(1, steps=0, kind=kind)
    store.load(checkpoint, other, its_optimizer)
    take_steps(other, its_optimizer, range(3, 6))
    assert_same_weights(module, other)


def test_a_checkpoint_is_nowhere_named_before_it_is_complete(tmp_path, slow_disk):
    store, module, optimizer = saved(tmp_path)
    store.save(module, optimizer, name="epoch=0-step=3.ckpt", content={"step": 3}, best_step=3)
    assert complete_checkpoints(tmp_path) == []
    assert not (tmp_path / "last.ckpt").exists()
    slow_disk.set()
    store.wait()
    assert [one.step for one in complete_checkpoints(tmp_path)] == [3]
    assert (tmp_path / "last.ckpt").read_text() == (tmp_path / "best.ckpt").read_text() == "epoch=0-step=3.ckpt\n"


def test_a_save_waits_for_the_one_before_it(tmp_path, slow_disk):
    store, module, optimizer = saved(tmp_path)
    store.save(module, optimizer, name="epoch=0-step=1.ckpt", content={"step": 1}, best_step=None)
    threading.Timer(0.3, slow_disk.set).start()
    store.save(module, optimizer, name="epoch=0-step=2.ckpt", content={"step": 2}, best_step=None)
    assert (tmp_path / "epoch=0-step=1.ckpt" / "manifest.json").is_file()
    store.wait()
    assert [one.step for one in complete_checkpoints(tmp_path)] == [1, 2]


def test_a_write_that_fails_in_the_background_is_raised_by_the_next_wait(tmp_path, monkeypatch):
    store, module, optimizer = saved(tmp_path, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FileSystemWriter, "write_data", full)
    store.save(module, optimizer, name="epoch=0-step=2.ckpt", content={"step": 2}, best_step=None)
    with pytest.raises(ContractError, match=f"^{tmp_path}: the disk is full: .* and keep_checkpoints="):
        store.wait()
    assert store.newest().step == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch=0-step=1.ckpt", "last.ckpt"]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_saving_before_the_first_update_changes_neither_run(tmp_path, kind):
    (module, optimizer), (untouched, its_optimizer) = trained(0, steps=0, kind=kind), trained(0, steps=0, kind=kind)
    store = CheckpointStore(tmp_path, keep=1, device=CPU)
    save(store, module, optimizer, 1)  # a step was skipped: nothing was learnt
    resumed, resumed_optimizer = trained(1, steps=0, kind=kind)
    store.load(store.newest(), resumed, resumed_optimizer)
    for one, its in ((module, optimizer), (untouched, its_optimizer), (resumed, resumed_optimizer)):
        take_steps(one, its, range(3))
    assert_same_weights(untouched, module)
    assert_same_weights(untouched, resumed)


def test_a_parameter_without_a_gradient_so_far_and_a_frozen_one_resume_too(tmp_path):
    def unused_and_frozen(seed):
        torch.manual_seed(seed)
        module = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in ("used", "later", "frozen")})
        module["frozen"].requires_grad_(False)
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return module, torch.optim.AdamW(trainable, lr=0.1, fused=True)

    def train(module, optimizer, steps, *, later):
        for step in steps:
            optimizer.zero_grad()
            torch.manual_seed(step)
            hidden = module["frozen"](module["used"](torch.randn(3, 4)))
            (module["later"](hidden) if later else hidden).square().mean().backward()
            optimizer.step()

    module, optimizer = unused_and_frozen(0)
    train(module, optimizer, range(3), later=False)
    store = CheckpointStore(tmp_path, keep=1, device=CPU)
    save(store, module, optimizer, 3)
    other, its_optimizer = unused_and_frozen(1)
    store.load(store.newest(), other, its_optimizer)
    for one, its in ((module, optimizer), (other, its_optimizer)):
        train(one, its, range(3, 6), later=True)
    assert_same_weights(module, other)


def test_the_writer_uses_the_gpu_of_its_rank_in_a_stream_of_its_own(tmp_path, monkeypatch):
    gpu, chosen = torch.device("cuda", 3), []
    for name in ("set_device", "set_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda value: chosen.append((threading.current_thread().name, value)))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"a stream of {device}")
    store = CheckpointStore(tmp_path, keep=1, device=gpu)
    save(store, *trained(0), step=3)
    assert chosen == [("checkpoint_0", gpu), ("checkpoint_0", "a stream of cuda:3")]


@pytest.mark.parametrize(("device", "waits"), [("cuda", ["synchronize"]), ("cpu", [])])
def test_the_copy_of_a_state_on_a_gpu_is_complete_before_training_continues(monkeypatch, device, waits):
    found = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: found.append("synchronize"))
    with FakeTensorMode():
        copied = _copied({"weight": torch.empty(3, device=device), "step": 1})
    assert found == waits
    assert copied["weight"].device.type == "cpu"


def test_a_finished_network_whose_best_checkpoint_is_lost_has_no_best_validation(caplog):
    store: Any = SimpleNamespace(at_step=lambda _: None)
    state = TrainingState(best_step=4, best_value=0.7)
    forget_missing_best(state, store, name="seed-42")
    assert (state.best_step, state.best_value) == (None, None)
    assert "seed-42: the best checkpoint, of step 4, is missing or damaged" in caplog.text


def outcome_of_a_save(folder: Path, full: int) -> str:
    """Save on hosts of which host `full` cannot write state.json; return what this host raises."""
    rank = torch.distributed.get_rank()
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    checkpoint._WRITE_TIMEOUT = timedelta(seconds=5)
    write = checkpoint._write_synced

    def write_synced(path: Path, text: str) -> None:
        if rank == full and path.name == "state.json":
            raise OSError(28, "No space left on device", str(path))
        write(path, text)

    checkpoint._write_synced = write_synced
    module = torch.nn.Linear(2, 2)
    store = CheckpointStore(folder / f"host{rank}", keep=1, device=torch.device("cpu"))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    store.save(module, optimizer, name="epoch=0-step=1.ckpt", content={"step": 1}, best_step=None)
    try:
        store.wait()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.slow
def test_all_hosts_name_the_first_one_whose_disk_is_full_without_a_timeout(rank_pool, tmp_path):
    outcomes = rank_pool.run(outcome_of_a_save, tmp_path, 0, world_size=2)
    assert re.match(r"ContractError: /\S+: the disk is full: ", outcomes[0])
    assert outcomes[1].startswith("PeerFailed: rank 0: OSError: [Errno 28] No space left on device")
