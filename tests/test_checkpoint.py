import json
import shutil

import pytest
import torch
import torch.distributed as dist

from container.training.checkpoint import CheckpointStore, complete_checkpoints


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_a_loaded_checkpoint_continues_exactly(tmp_path, kind):
    module, optimizer = trained(0, kind=kind)
    store = CheckpointStore(tmp_path, keep=2)
    save(store, module, optimizer, 3)
    take_steps(module, optimizer, range(3, 6))
    other, its_optimizer = trained(1, steps=0, kind=kind)
    store.load(store.newest(), other, its_optimizer)
    take_steps(other, its_optimizer, range(3, 6))
    for name, value in module.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_the_newest_n_are_kept_and_the_best_beside_them(tmp_path):
    module, optimizer = trained(0)
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3, 4, 5):
        save(store, module, optimizer, step, best_step=2 if step >= 2 else None)
    assert [one.step for one in complete_checkpoints(tmp_path)] == [2, 4, 5]
    assert (tmp_path / "last.ckpt").read_text().strip() == "epoch=0-step=5.ckpt"
    assert (tmp_path / "best.ckpt").read_text().strip() == "epoch=0-step=2.ckpt"


def test_a_truncated_checkpoint_is_passed_over_and_named(tmp_path, caplog):
    module, optimizer = trained(0)
    store = CheckpointStore(tmp_path, keep=2)
    save(store, module, optimizer, 1)
    save(store, module, optimizer, 2)
    largest = max((tmp_path / "epoch=0-step=2.ckpt").iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-10])
    assert store.newest().step == 1
    assert "epoch=0-step=2.ckpt is incomplete" in caplog.text


def test_a_folder_that_was_never_completed_is_no_checkpoint(tmp_path):
    module, optimizer = trained(0)
    store = CheckpointStore(tmp_path, keep=2)
    save(store, module, optimizer, 1)
    shutil.copytree(tmp_path / "epoch=0-step=1.ckpt", tmp_path / ".saving-epoch=0-step=2.ckpt")
    (tmp_path / "epoch=0-step=3.ckpt").mkdir()
    assert store.newest().step == 1


@pytest.mark.parametrize("manifest", ["[]", "{}", "not json", '{"state.json": 2, ".metadata": 2}'])
def test_garbage_is_no_checkpoint(tmp_path, manifest):
    module, optimizer = trained(0)
    store = CheckpointStore(tmp_path, keep=2)
    save(store, module, optimizer, 1)
    garbage = tmp_path / "epoch=9-step=9.ckpt"
    garbage.mkdir()
    for name, content in (("manifest.json", manifest), ("state.json", "{}"), (".metadata", "{}")):
        (garbage / name).write_text(content)
    assert store.newest().step == 1


def test_the_same_step_may_be_saved_again(tmp_path):
    module, optimizer = trained(0)
    store = CheckpointStore(tmp_path, keep=2)
    save(store, module, optimizer, 1)
    store.save(module, optimizer, name="epoch=0-step=1.ckpt", content={"step": 1, "again": True}, best_step=None)
    assert store.newest().content["again"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch=0-step=1.ckpt", "last.ckpt"]


def test_a_failed_save_leaves_the_earlier_checkpoint_and_nothing_half_written(tmp_path, monkeypatch):
    module, optimizer = trained(0)
    store = CheckpointStore(tmp_path, keep=2)
    save(store, module, optimizer, 1)
    unwritable = {"step": 2, "state": object()}
    with pytest.raises(TypeError):
        store.save(module, optimizer, name="epoch=0-step=2.ckpt", content=unwritable, best_step=None)
    assert store.newest().step == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch=0-step=1.ckpt", "last.ckpt"]


def test_the_manifest_lists_every_file_with_its_size(tmp_path):
    module, optimizer = trained(0)
    save(CheckpointStore(tmp_path, keep=1), module, optimizer, 1)
    folder = tmp_path / "epoch=0-step=1.ckpt"
    listed = json.loads((folder / "manifest.json").read_text())
    assert listed == {path.name: path.stat().st_size for path in folder.iterdir() if path.name != "manifest.json"}
    assert ".metadata" in listed
