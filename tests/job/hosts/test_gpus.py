"""How many GPUs a host has, and what a worker does with them."""

import os
from pathlib import Path

import pytest
import torch

from container.job.hosts.gpus import count_gpus, cuda_compat
from container.job.launch import workers
from container.job.launch.worker import stay_near
from container.parallel import mesh
from contracts.errors import ContractError

GPU = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("visible", "number"),
    [
        (None, 2), ("", 0), ("-1", 0), ("0,1,2", 3), ("0,-1,1", 1), ("GPU-3f,GPU-4a", 2), ("MIG-3f", 1),
        ("MIG-3f,MIG-4a", 1),
    ],
)  # fmt: skip
def test_gpus_are_counted_as_cuda_shows_them_to_a_process(tmp_path, visible, number):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_gpus(environment, tmp_path) == number


PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Jan  1 00:00:00 UTC 2025\nGCC version:  12.2.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (builder)\n"


@pytest.mark.parametrize("module", [PROPRIETARY, OPEN])
@pytest.mark.parametrize(
    ("host", "used"), [("535.161.08", True), ("580.9.1", True), ("580.65.06", False), ("595.1", False), (None, False)]
)
def test_cuda_libraries_of_the_image_are_used_with_an_older_driver_only(tmp_path, module, host, used):
    driver, folder = tmp_path / "version", tmp_path / "compat"
    folder.mkdir()
    for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.580.65.06", "libnvidia-ptxjitcompiler.so.580.65.06"):
        (folder / name).touch()
    if host is not None:
        driver.write_text(module.format(host))
    assert cuda_compat(folder, driver) == (folder if used else None)
    assert cuda_compat(tmp_path / "absent", driver) is None


def test_workers_find_the_cuda_libraries_of_the_image_first(monkeypatch):
    monkeypatch.setattr(workers, "cuda_compat", lambda: Path("/compat"))
    assert workers._cuda_libraries({"LD_LIBRARY_PATH": "/own"}) == {"LD_LIBRARY_PATH": "/compat:/own"}
    monkeypatch.setattr(workers, "cuda_compat", lambda: None)
    assert workers._cuda_libraries({"LD_LIBRARY_PATH": "/own"}) == {}


def test_gpus_that_pytorch_cannot_use_are_an_error_with_the_reason(monkeypatch):
    def driver_is_too_old():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", driver_is_too_old)
    with pytest.raises(ContractError, match=r"has 2 \(CUDA_VISIBLE_DEVICES=0,1\), but PyTorch .* driver .* too old"):
        mesh.init_distributed(timeout_minutes=1)


@pytest.mark.parametrize("visible", ["0,1,2,3", None])
def test_more_processes_than_gpus_that_pytorch_finds_are_an_error_with_both_numbers(monkeypatch, visible):
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(mesh, "count_gpus", lambda: 4)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    source = "/dev/nvidia*" if visible is None else "CUDA_VISIBLE_DEVICES=0,1,2,3"
    with pytest.raises(ContractError) as error:
        mesh.init_distributed(timeout_minutes=1)
    assert "process 3 of 4 on this host has no GPU: PyTorch finds 2." in error.value.cause
    assert f"a process for each GPU in {source}: 4" in error.value.cause
    assert "at most 2" in error.value.fix


class Gpus:
    """GPUs as PyTorch finds them; records the one that a process chooses and the allocator's settings."""

    def __init__(self, monkeypatch, number: int, *, errors: tuple[Exception, ...] = ()) -> None:
        self.chosen: list[int] = []
        self.settings: list[str] = []
        answers = iter([*errors, None])
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
        monkeypatch.setattr(torch.cuda, "set_device", self.chosen.append)
        monkeypatch.setattr(torch, "empty", lambda *_, **__: self._allocate(next(answers)))
        monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", self.settings.append)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(number))))
        monkeypatch.setenv("LOCAL_RANK", "1")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    @staticmethod
    def _allocate(error: Exception | None) -> None:
        if error is not None:
            raise error


def test_each_process_has_the_gpu_of_its_local_rank_and_nccl(monkeypatch):
    gpus = Gpus(monkeypatch, 2)
    assert mesh.choose_device() == "cpu:gloo,cuda:nccl"
    assert gpus.chosen == [1]


def test_in_a_test_all_processes_of_a_host_can_share_its_first_gpu_over_gloo(monkeypatch):
    gpus = Gpus(monkeypatch, 1)
    monkeypatch.setenv("TEXT_TABLE_SHARE_GPU", "1")
    assert mesh.choose_device() == "cpu:gloo,cuda:gloo"
    assert gpus.chosen == [0]


def test_gpus_that_pytorch_finds_and_the_default_number_of_processes_leaves_out_are_named(monkeypatch, caplog):
    Gpus(monkeypatch, 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(mesh, "count_gpus", lambda: 0)
    mesh.choose_device()
    (message,) = caplog.messages
    assert "/dev/nvidia*: 0, but PyTorch finds 4 GPUs. To use all of them, set nproc_per_node to 4." in message


def test_expandable_segments_that_a_sandbox_refuses_are_turned_off_with_one_line(monkeypatch, caplog):
    caplog.set_level("INFO")
    gpus = Gpus(monkeypatch, 2, errors=(RuntimeError("CUDA driver error: operation not supported"),))
    mesh.choose_device()
    assert gpus.settings == ["expandable_segments:False"]
    (message,) = caplog.messages
    assert "expandable segments of GPU memory are off" in message
    assert "operation not supported" in message


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError("broken GPU")])
def test_a_gpu_without_memory_or_with_another_error_fails_with_it(monkeypatch, error):
    Gpus(monkeypatch, 2, errors=(error, error))
    with pytest.raises(type(error), match=str(error)):
        mesh.choose_device()


@pytest.fixture
def bound(monkeypatch, tmp_path):
    """The cores that a process with cores 0 to 7 and a GPU at 0000:9a:00.0 binds itself to; None if it does not."""
    place = type("Properties", (), {"pci_domain_id": 0, "pci_bus_id": 0x9A, "pci_device_id": 0})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: place)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

    def stay(near: str | None) -> set[int] | None:
        chosen = [None]
        monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: chosen.append(cores))
        if near is not None:
            (tmp_path / "0000:9a:00.0").mkdir()
            (tmp_path / "0000:9a:00.0" / "local_cpulist").write_text(f"{near}\n")
        stay_near(GPU, tmp_path)
        return chosen[-1]

    return stay


@pytest.mark.parametrize(
    ("near", "cores"),
    [("4-7,12-15", {4, 5, 6, 7}), ("3", {3}), ("0-63", None), ("64-127", None), ("", None), (None, None)],
)
def test_a_worker_stays_on_those_of_its_cores_that_are_near_its_gpu(bound, near, cores):
    assert bound(near) == cores
