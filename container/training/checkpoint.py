"""Checkpoints: torch.distributed.checkpoint under the plain model's names, saved aside, marked complete, renamed.

    checkpoints/
      epoch=1-step=120.ckpt/   DCP's files, state.json, manifest.json (names and sizes: the mark of completeness)
      last.ckpt, best.ckpt     the name of the newest and of the best folder

The pointers are small text files, not links: the sync of a checkpoint folder to S3 keeps files and loses links.

Hosts need not share a disk: each gets the complete checkpoint, what the ranks of the others wrote included. So any one
can be lost, and the place that all of them sync their folder to holds one checkpoint.

Nothing in a checkpoint says how the model was parallelised: a rank writes the shards it holds under the names and
offsets they have in the plain model, and reads whatever covers its own.
"""

import json
import logging
import os
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
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

from container.failure import PeerFailed
from container.training.host_folders import HostFolders
from contracts.atomic_files import write_text_atomically

logger = logging.getLogger(__name__)

# Flat optimizer names are what lets a checkpoint resume under another strategy.
_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
_ASIDE = ".saving-"
_WRITE_TIMEOUT = timedelta(minutes=30)  # one rank's disk may be slow; a rank that dies is noticed at once
_LONG_WAIT = 5.0  # seconds of training lost to the previous save that are worth a line


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk: its folder and state.json."""

    folder: Path
    content: dict[str, Any]

    @property
    def step(self) -> int:
        return self.content["step"]


class CheckpointStore:
    """The checkpoints of a job; every method is called by all ranks together.

    A save copies the state and returns; a thread writes the copy. Its collectives have a process group of their own,
    because they would interleave with those of training.

    Args:
        folder: checkpoints/.
        keep: newest checkpoints kept; the best is kept beside them.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._rank = dist.get_rank()
        group = dist.new_group(backend="gloo", timeout=_WRITE_TIMEOUT)
        assert isinstance(group, dist.ProcessGroup), "every rank is in it"
        self._group = group
        self._hosts = HostFolders(timeout=_WRITE_TIMEOUT)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
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
        """Save the state at this call under `name`, in the background; first waits for the save before it.

        A failed save leaves the earlier checkpoints intact and raises from the next `save` or `wait`.

        Args:
            content: JSON with at least "step".
            best_step: step of the checkpoint to keep as the best, possibly this one.
            average: moving averages of weights by their names, distributed as the weights are.
        """
        waited = time.perf_counter()
        self.wait()
        waited = time.perf_counter() - waited
        if waited > _LONG_WAIT:
            logger.info("waited %.1f s for the previous checkpoint: saving less often loses less time", waited)
        text = json.dumps(content)
        states = _copied(_model_state(module) | _taken_optimizer_state(module, optimizer) | _average_state(average))
        self._pending = self._writer.submit(self._write, states, name=name, content=text, best_step=best_step)

    def wait(self) -> None:
        """Wait until the last save is complete.

        Raises:
            PeerFailed: another rank could not write its part; on that rank its own exception.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is complete on every host; None where there is none."""
        return self._agreed(lambda checkpoints: checkpoints[-1] if checkpoints else None)

    def at_step(self, step: int) -> Checkpoint | None:
        """The complete checkpoint of `step`; None where it is gone."""
        return self._agreed(lambda checkpoints: next((one for one in checkpoints if one.step == step), None))

    def load(
        self,
        checkpoint: Checkpoint,
        module: nn.Module,
        optimizer: Optimizer,
        *,
        average: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Load what training goes on from, in place, however it was distributed when saved."""
        self.wait()
        model, wanted = _model_state(module), _optimizer_state(module, optimizer)
        # A parameter that has had no gradient yet has no state, in the checkpoint as in the optimizer that saved it.
        saved = _saved_names(checkpoint)
        states = model | _average_state(average) | {name: value for name, value in wanted.items() if name in saved}
        self._read(states, checkpoint)
        set_model_state_dict(module, {name.removeprefix(_MODEL): states[name] for name in model}, options=_OPTIONS)
        if wanted:
            _set_optimizer_state(module, optimizer, states, fresh=wanted.keys() - states.keys())

    def load_weights(self, checkpoint: Checkpoint, module: nn.Module) -> None:
        """Load the weights to predict with in place, averaged where the checkpoint has averages."""
        self.wait()
        states = _served_state(module, checkpoint)
        self._read(states, checkpoint)
        _set_served_state(module, states)

    def _read(self, states: dict[str, Any], checkpoint: Checkpoint) -> None:
        with _naming_the_rank(self._rank):
            load(states, checkpoint_id=checkpoint.folder, process_group=self._group)

    def _agreed(self, choose: Callable[[list[Checkpoint]], Checkpoint | None]) -> Checkpoint | None:
        self.wait()
        complete = complete_checkpoints(self._folder) if self._hosts.is_first else []
        everywhere = self._hosts.common({one.folder.name for one in complete})
        chosen: list[Checkpoint | None] = [None]
        if self._rank == 0:
            chosen = [choose([one for one in complete if one.folder.name in everywhere])]
        dist.broadcast_object_list(chosen, src=0, group=self._group)
        return replace(chosen[0], folder=self._folder / chosen[0].folder.name) if chosen[0] else None

    def _write(self, states: dict[str, Any], *, name: str, content: str, best_step: int | None) -> None:
        """The thread's part: write aside, and when every rank has written, complete."""
        aside = self._folder / f"{_ASIDE}{name}"
        try:
            self._on_each_host(lambda: _make_empty(aside))
            with _naming_the_rank(self._rank):
                save(states, checkpoint_id=aside, process_group=self._group)
            self._on_each_host(lambda: self._share(aside, content))
            self._on_each_host(lambda: self._complete(aside, name, best_step=best_step))
        except BaseException:
            if self._hosts.is_first:
                shutil.rmtree(aside, ignore_errors=True)
            raise

    def _on_each_host(self, act: Callable[[], None]) -> None:
        """Have the first rank of each host act; what one fails of is raised on every rank."""
        failed: Exception | None = None
        if self._hosts.is_first:
            try:
                act()
            except Exception as error:
                failed = error
        said: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(said, failed and _said(failed), group=self._group)
        if failed is not None:
            raise failed
        for rank, one in enumerate(said):
            if one is not None:
                raise PeerFailed(f"rank {rank}: {one}")

    def _share(self, aside: Path, content: str) -> None:
        """The state as rank 0 has it (rates differ from rank to rank), and what every host wrote, to every host."""
        if self._rank == 0:
            _write_synced(aside / "state.json", content)
        self._hosts.share(aside)

    def _complete(self, aside: Path, name: str, *, best_step: int | None) -> None:
        files = {path.name: path.stat().st_size for path in sorted(aside.iterdir())}
        _write_synced(aside / "manifest.json", json.dumps(files))
        _sync_folder(aside)
        final = self._folder / name
        replaced = self._folder / f"{_ASIDE}replaced"
        if final.exists():  # the same step, saved again
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        aside.rename(final)
        _sync_folder(self._folder)
        shutil.rmtree(replaced, ignore_errors=True)
        self._point("last.ckpt", name)
        self._prune(best_step)

    def _prune(self, best_step: int | None) -> None:
        complete = complete_checkpoints(self._folder)
        best = next((one for one in complete if one.step == best_step), None)
        if best is not None:
            self._point("best.ckpt", best.folder.name)
        for old in complete[: -self._keep]:
            if best is None or old.folder != best.folder:
                shutil.rmtree(old.folder, ignore_errors=True)
        clear_unfinished(self._folder)

    def _point(self, pointer: str, name: str) -> None:
        write_text_atomically(self._folder / pointer, name + "\n")


def clear_unfinished(folder: Path) -> None:
    """Remove what a save left half done."""
    for aside in folder.glob(f"{_ASIDE}*"):
        shutil.rmtree(aside, ignore_errors=True)


def clear_checkpoints(folder: Path) -> None:
    """Remove every checkpoint, and what a save left half done."""
    for path in folder.glob("*.ckpt"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def complete_checkpoints(folder: Path) -> list[Checkpoint]:
    """All complete checkpoints, oldest first; an incomplete or damaged one is named in the log and passed over."""
    complete = []
    for path in folder.glob("*.ckpt"):
        if not path.is_dir() or path.name.startswith(_ASIDE):
            continue
        try:
            files = json.loads((path / "manifest.json").read_text())
            if not isinstance(files, dict) or not {".metadata", "state.json"} <= files.keys():
                raise ValueError("manifest.json is not one of ours")
            damaged = [name for name, size in files.items() if (path / name).stat().st_size != size]
            if damaged:
                raise ValueError(f"{damaged[0]} has another size than when it was saved")
            content = json.loads((path / "state.json").read_text())
            if not isinstance(content, dict) or "step" not in content:
                raise ValueError("state.json is not one of ours")
            complete.append(Checkpoint(path, content))
        except (OSError, ValueError) as error:
            logger.warning("checkpoint %s is incomplete (%s): passed over", path.name, error)
    return sorted(complete, key=lambda one: one.step)


def load_weights(module: nn.Module, checkpoint: Checkpoint) -> None:
    """CheckpointStore.load_weights, into a plain model in this process alone, with or without a process group."""
    states = _served_state(module, checkpoint)
    with warnings.catch_warnings(action="ignore"):  # DCP says that it is on its own
        load(states, checkpoint_id=checkpoint.folder, no_dist=True)
    _set_served_state(module, states)


_MODEL, _OPTIMIZER, _AVERAGE = "model.", "optimizer.", "average."


def _model_state(module: nn.Module) -> dict[str, Any]:
    return {f"{_MODEL}{name}": value for name, value in get_model_state_dict(module, options=_OPTIONS).items()}


def _average_state(average: Mapping[str, Tensor]) -> dict[str, Any]:
    return {f"{_AVERAGE}{name}": value for name, value in average.items()}


def _saved_names(checkpoint: Checkpoint) -> Collection[str]:
    return FileSystemReader(checkpoint.folder).read_metadata().state_dict_metadata.keys()


def _served_state(module: nn.Module, checkpoint: Checkpoint) -> dict[str, Any]:
    """The state of `module`, each tensor under the name by which `checkpoint` has what is to be served of it."""
    saved = _saved_names(checkpoint)
    states = get_model_state_dict(module, options=_OPTIONS)
    return {f"{_AVERAGE if f'{_AVERAGE}{name}' in saved else _MODEL}{name}": value for name, value in states.items()}


def _set_served_state(module: nn.Module, states: Mapping[str, Any]) -> None:
    set_model_state_dict(module, {name.partition(".")[2]: value for name, value in states.items()}, options=_OPTIONS)


def _taken_optimizer_state(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    # Asked for its state before its first step, torch would take that step for it: Adam would count one too many.
    return _optimizer_state(module, optimizer) if optimizer.state else {}


def _optimizer_state(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """What the optimizer has learnt, initialised where it has not; rates and decay are settings of the run."""
    if not any(group["params"] for group in optimizer.param_groups):
        return {}  # this rank holds frozen parameters only
    flat = get_optimizer_state_dict(module, optimizer, options=_OPTIONS)
    return {f"{_OPTIMIZER}{name}": value for name, value in flat.items() if name.startswith("state.")}


def _set_optimizer_state(module: nn.Module, optimizer: Optimizer, states: dict[str, Any], *, fresh: set[str]) -> None:
    """Give the optimizer the loaded `states`; parameters of the names in `fresh` are left as never stepped."""
    own = get_optimizer_state_dict(module, optimizer, options=_OPTIONS)
    loaded = {name.removeprefix(_OPTIMIZER): value for name, value in states.items() if name.startswith(_OPTIMIZER)}
    set_optimizer_state_dict(module, optimizer, {**own, **loaded}, options=_OPTIONS)
    untouched = {name.removeprefix(f"{_OPTIMIZER}state.").rpartition(".")[0] for name in fresh}
    for name, parameter in module.named_parameters():
        if name in untouched:
            optimizer.state.pop(parameter, None)


@torch.no_grad()
def _copied(states: dict[str, Any]) -> dict[str, Any]:
    """A copy in host memory that training cannot change; from a GPU through pinned memory."""
    tensors = {name: value for name, value in states.items() if isinstance(value, torch.Tensor)}
    copies = {name: value.detach().to("cpu", copy=True, non_blocking=True) for name, value in tensors.items()}
    if any(value.is_cuda for value in tensors.values()):
        torch.cuda.synchronize()
    return {**states, **copies}


@contextmanager
def _naming_the_rank(rank: int) -> Iterator[None]:
    """DCP raises the failures of all ranks on all: leave each its own, and tell the others whose it was."""
    try:
        yield
    except CheckpointException as error:
        if rank in error.failures:
            raise error.failures[rank][0] from error
        other = min(error.failures)
        raise PeerFailed(f"rank {other}: {_said(error.failures[other][0])}") from None


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _write_synced(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make names in `folder` durable: a rename lives in the folder, not in the file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
