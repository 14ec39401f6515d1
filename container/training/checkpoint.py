"""Save and load checkpoints with torch.distributed.checkpoint (DCP), under the plain model's parameter names.

Hosts need not share a disk: each gets the complete checkpoint, including the files that other hosts' ranks wrote.

A checkpoint does not depend on the parallelism: a rank writes its shards under the names and offsets that they have in
the plain model, and reads the parts that it needs.
"""

import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from container.data.batch import use_side_stream
from container.errors import PeerFailed
from container.training.checkpoint_files import (
    BEST,
    LAST,
    Checkpoint,
    complete_checkpoints,
    remove_old_checkpoints,
    unfinished_save,
)
from container.training.host_folders import HostFolders
from contracts.atomic_files import write_text_atomically
from contracts.file_systems import megabytes, move, naming_full_disk, sync_folder
from contracts.other_programs import remove_folder, remove_in_place

logger = logging.getLogger(__name__)

# Flat optimizer names let a checkpoint resume under another strategy.
_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
_WRITE_TIMEOUT = timedelta(minutes=30)  # one rank's disk may be slow; a rank that dies is noticed at once
_LONG_WAIT = 5.0  # seconds of waiting for the previous save after which a line is logged


class CheckpointStore:
    """The checkpoints of a job. Every method is collective: all ranks call it together.

    A save copies the state and returns; a thread writes the copy. The thread's collectives use a separate process
    group, because they would interleave with those of training.

    Args:
        folder: checkpoints/.
        keep: number of the newest checkpoints to keep, in addition to the best.
        device: of this rank. DCP synchronizes the current stream even when it writes host memory.
    """

    def __init__(self, folder: Path, *, keep: int, device: torch.device) -> None:
        self._folder = folder
        self._keep = keep
        self._rank = dist.get_rank()
        group = dist.new_group(backend="gloo", timeout=_WRITE_TIMEOUT)
        assert isinstance(group, dist.ProcessGroup), "every rank is a member"
        self._group = group
        self._hosts = HostFolders(timeout=_WRITE_TIMEOUT)
        self._writer = ThreadPoolExecutor(1, "checkpoint", initializer=use_side_stream, initargs=(device,))
        self._pending: Future[None] | None = None

    def save(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        *,
        name: str,
        content: dict[str, Any],
        best_step: int | None,
        average: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Save the current state under `name`, in the background; first wait for the previous save.

        A failed save leaves the earlier checkpoints intact, and raises from the next `save` or `wait`.

        Args:
            content: JSON with at least "step".
            best_step: step of the checkpoint to keep as the best, possibly this one.
            average: moving averages by the names of the weights, distributed as the weights are.
        """
        waited = time.perf_counter()
        self.wait()
        waited = time.perf_counter() - waited
        if waited > _LONG_WAIT:
            logger.info("waited %.1f s for the previous checkpoint: save less often to lose less time", waited)
        states = _model_state(module)
        if optimizer.state:  # before the first step, torch would take that step to create the state
            states |= _optimizer_state(module, optimizer)
        states |= _average_state(average)
        self._pending = self._writer.submit(
            self._write, _copied(states), name=name, content=json.dumps(content), best_step=best_step
        )

    def wait(self) -> None:
        """Wait until the last save is complete.

        Raises:
            PeerFailed: another rank could not write its part; that rank raises the original exception.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is complete on every host; None if there is none."""
        return self._agreed(lambda checkpoints: checkpoints[-1] if checkpoints else None)

    def at_step(self, step: int) -> Checkpoint | None:
        """Return the complete checkpoint of `step`; None if there is none."""
        return self._agreed(lambda checkpoints: next((each for each in checkpoints if each.step == step), None))

    def load(
        self,
        checkpoint: Checkpoint,
        module: nn.Module,
        optimizer: Optimizer,
        *,
        average: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Load the state of training in place, however it was distributed when saved."""
        self.wait()
        model, wanted = _model_state(module), _optimizer_state(module, optimizer)
        # A parameter that has had no gradient yet has no optimizer state, also in the checkpoint.
        saved = _saved_names(checkpoint)
        states = model | _average_state(average) | {name: value for name, value in wanted.items() if name in saved}
        self._read(states, checkpoint)
        set_model_state_dict(module, {name.removeprefix(_MODEL): states[name] for name in model}, options=_OPTIONS)
        if wanted:
            _set_optimizer_state(module, optimizer, states, fresh=wanted.keys() - states.keys())

    def load_weights(self, checkpoint: Checkpoint, module: nn.Module) -> None:
        """Load the weights to predict with, in place: the averages where the checkpoint has them."""
        self.wait()
        states = _served_state(module, checkpoint)
        self._read(states, checkpoint)
        _set_served_state(module, states)

    def _read(self, states: dict[str, Any], checkpoint: Checkpoint) -> None:
        with _raising_own_failure(self._rank):
            load(states, checkpoint_id=checkpoint.folder, process_group=self._group)

    def _agreed(self, choose: Callable[[list[Checkpoint]], Checkpoint | None]) -> Checkpoint | None:
        self.wait()
        complete = complete_checkpoints(self._folder) if self._hosts.is_first else []
        on_every_host = self._hosts.common({each.folder.name for each in complete})
        chosen: list[Checkpoint | None] = [None]
        if self._rank == 0:
            chosen = [choose([each for each in complete if each.folder.name in on_every_host])]
        dist.broadcast_object_list(chosen, src=0, group=self._group)
        return replace(chosen[0], folder=self._folder / chosen[0].folder.name) if chosen[0] else None

    def _write(self, states: dict[str, Any], *, name: str, content: str, best_step: int | None) -> None:
        """Write the checkpoint; runs in the thread."""
        temporary = unfinished_save(self._folder, name)
        size = sum(value.nbytes for value in states.values() if isinstance(value, torch.Tensor))
        needs = f"A checkpoint needs {megabytes(size)}, and keep_checkpoints={self._keep} keeps up to {self._keep + 2}."
        try:
            with naming_full_disk(self._folder, needs=needs):
                self._on_each_host(lambda: self._begin(temporary, content))
                with _raising_own_failure(self._rank):
                    save(states, checkpoint_id=temporary, process_group=self._group)
                self._on_each_host(lambda: self._hosts.share(temporary, _own_files(temporary)))
                self._on_each_host(lambda: self._complete(temporary, best_step=best_step))
        except BaseException:
            if self._hosts.is_first:
                remove_in_place(temporary.parent)
            raise

    def _on_each_host(self, act: Callable[[], None]) -> None:
        """Call `act` on the first rank of each host; raise the failure of one of them on every rank."""
        failure: Exception | None = None
        if self._hosts.is_first:
            try:
                act()
            except Exception as error:
                failure = error
        messages: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(messages, failure and _message(failure), group=self._group)
        if failure is not None:
            raise failure
        for rank, message in enumerate(messages):
            if message is not None:
                raise PeerFailed(f"rank {rank}: {message}")

    def _begin(self, temporary: Path, content: str) -> None:
        """Make the folder of a checkpoint; that of rank 0 gets its state, because rates differ between ranks."""
        remove_in_place(temporary)
        temporary.mkdir(parents=True, exist_ok=True)
        if self._rank == 0:
            _write_synced(temporary / "state.json", content)

    def _complete(self, temporary: Path, *, best_step: int | None) -> None:
        # DCP's save returns metadata without files in torch 2.11.
        written = {info.relative_path for info in _metadata(temporary).storage_data.values()}
        sizes = {name: (temporary / name).stat().st_size for name in sorted({*written, *_OTHER_FILES})}
        _write_synced(temporary / "manifest.json", json.dumps(sizes))
        sync_folder(temporary)
        final = self._folder / temporary.name
        remove_folder(final)  # the same step, saved again
        move(temporary, final)
        sync_folder(self._folder)
        write_text_atomically(self._folder / LAST, f"{final.name}\n")
        best = next((each for each in complete_checkpoints(self._folder) if each.step == best_step), None)
        if best is not None:
            write_text_atomically(self._folder / BEST, f"{best.folder.name}\n")
        remove_old_checkpoints(self._folder, keep=self._keep, newest=final.name)


def load_weights(module: nn.Module, checkpoint: Checkpoint) -> None:
    """Load weights as CheckpointStore.load_weights does, in this process only, into a plain model."""
    states = _served_state(module, checkpoint)
    with warnings.catch_warnings(action="ignore"):  # DCP warns that it runs in one process
        load(states, checkpoint_id=checkpoint.folder, no_dist=True)
    _set_served_state(module, states)


_MODEL, _OPTIMIZER, _AVERAGE = "model.", "optimizer.", "average."
_OTHER_FILES = (".metadata", "state.json")  # of a checkpoint, besides those that the metadata names


def _own_files(folder: Path) -> list[str]:
    """Return the names of the checkpoint's files that this host has; another program may have files there too."""
    return sorted([*(path.name for path in folder.glob("__*.distcp")), *_OTHER_FILES])


def _model_state(module: nn.Module) -> dict[str, Any]:
    return {f"{_MODEL}{name}": value for name, value in get_model_state_dict(module, options=_OPTIONS).items()}


def _average_state(average: Mapping[str, Tensor]) -> dict[str, Any]:
    return {f"{_AVERAGE}{name}": value for name, value in average.items()}


def _saved_names(checkpoint: Checkpoint) -> Collection[str]:
    return _metadata(checkpoint.folder).state_dict_metadata.keys()


def _metadata(folder: Path) -> Metadata:
    return FileSystemReader(folder).read_metadata()


def _served_state(module: nn.Module, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the state of `module`, each tensor under the name that its served values have in `checkpoint`."""
    saved = _saved_names(checkpoint)
    states = get_model_state_dict(module, options=_OPTIONS)
    return {f"{_AVERAGE if f'{_AVERAGE}{name}' in saved else _MODEL}{name}": value for name, value in states.items()}


def _set_served_state(module: nn.Module, states: Mapping[str, Any]) -> None:
    set_model_state_dict(module, {name.partition(".")[2]: value for name, value in states.items()}, options=_OPTIONS)


def _optimizer_state(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's state, initialised if it has none, without the learning rates and weight decay."""
    if not any(group["params"] for group in optimizer.param_groups):
        return {}  # this rank has only frozen parameters
    flat = get_optimizer_state_dict(module, optimizer, options=_OPTIONS)
    return {f"{_OPTIMIZER}{name}": value for name, value in flat.items() if name.startswith("state.")}


def _set_optimizer_state(module: nn.Module, optimizer: Optimizer, states: dict[str, Any], *, fresh: set[str]) -> None:
    """Set the loaded `states`; remove the state of the parameters named in `fresh`, which never took a step."""
    initial = get_optimizer_state_dict(module, optimizer, options=_OPTIONS)
    loaded = {name.removeprefix(_OPTIMIZER): value for name, value in states.items() if name.startswith(_OPTIMIZER)}
    set_optimizer_state_dict(module, optimizer, {**initial, **loaded}, options=_OPTIONS)
    untouched = {name.removeprefix(f"{_OPTIMIZER}state.").rpartition(".")[0] for name in fresh}
    for name, parameter in module.named_parameters():
        if name in untouched:
            optimizer.state.pop(parameter, None)


@torch.no_grad()
def _copied(states: dict[str, Any]) -> dict[str, Any]:
    """Return a copy in host memory, which training does not change."""
    tensors = {name: value for name, value in states.items() if isinstance(value, torch.Tensor)}
    copies = {name: value.detach().to("cpu", copy=True, non_blocking=True) for name, value in tensors.items()}
    if any(value.is_cuda for value in tensors.values()):
        torch.cuda.synchronize()
    return {**states, **copies}


@contextmanager
def _raising_own_failure(rank: int) -> Iterator[None]:
    """Raise a rank's own failure on that rank, and PeerFailed on the others; DCP raises all failures on all ranks."""
    try:
        yield
    except CheckpointException as error:
        if rank in error.failures:
            raise error.failures[rank][0] from error
        other = min(error.failures)
        raise PeerFailed(f"rank {other}: {_message(error.failures[other][0])}") from None


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _write_synced(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
