"""Checkpoints: torch.distributed.checkpoint under the plain model's names, saved aside, marked complete, renamed.

    checkpoints/
      epoch=1-step=120.ckpt/   DCP's files, state.json, manifest.json (names and sizes: the mark of completeness)
      last.ckpt, best.ckpt     the name of the newest and of the best folder

The pointers are small text files, not links: the sync of a checkpoint folder to S3 keeps files and loses links.
"""

import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

logger = logging.getLogger(__name__)

# Flat optimizer names are what lets a checkpoint resume under another strategy.
_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
_ASIDE = ".saving-"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk: its folder and state.json."""

    folder: Path
    content: dict[str, Any]

    @property
    def step(self) -> int:
        return self.content["step"]


class CheckpointStore:
    """The checkpoints of a job; every method but `read` is called by all ranks together.

    Args:
        folder: checkpoints/.
        keep: newest checkpoints kept; the best is kept beside them.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def save(
        self, module: nn.Module, optimizer: Optimizer, *, name: str, content: dict[str, Any], best_step: int | None
    ) -> None:
        """Save under `name`; `content` is JSON with at least "step". A failed save leaves the earlier ones intact."""
        aside = self._folder / f"{_ASIDE}{name}"
        first = dist.get_rank() == 0
        try:
            if first:
                shutil.rmtree(aside, ignore_errors=True)
                aside.mkdir(parents=True)
            dist.barrier()
            dcp.save(_states(module, optimizer), checkpoint_id=aside)
            if first:
                self._complete(aside, name, content)
                self._prune(best_step)
        except BaseException:
            if first:
                shutil.rmtree(aside, ignore_errors=True)
            raise

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint, as rank 0 sees it; None where there is none."""
        return self._agreed(lambda found: found[-1] if found else None)

    def at_step(self, step: int) -> Checkpoint | None:
        """The complete checkpoint of `step`; None where it is gone."""
        return self._agreed(lambda found: next((one for one in found if one.step == step), None))

    def load(self, checkpoint: Checkpoint, module: nn.Module, optimizer: Optimizer | None = None) -> None:
        """Load weights, and the optimizer where given, in place."""
        states = _states(module, optimizer)
        dcp.load(states, checkpoint_id=checkpoint.folder)
        set_model_state_dict(module, states["model"], options=_OPTIONS)
        if optimizer is not None:
            set_optimizer_state_dict(module, optimizer, states["optimizer"], options=_OPTIONS)

    def clear(self) -> None:
        """Remove every checkpoint."""
        if dist.get_rank() == 0 and self._folder.is_dir():
            for path in self._folder.glob("*.ckpt"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        dist.barrier()

    def _agreed(self, choose: Any) -> Checkpoint | None:
        chosen: list[Checkpoint | None] = [None]
        if dist.get_rank() == 0:
            chosen = [choose(complete_checkpoints(self._folder))]
        dist.broadcast_object_list(chosen, src=0)
        return chosen[0]

    def _complete(self, aside: Path, name: str, content: dict[str, Any]) -> None:
        (aside / "state.json").write_text(json.dumps(content))
        files = {path.name: path.stat().st_size for path in aside.iterdir()}
        with (aside / "manifest.json").open("w") as manifest:
            json.dump(files, manifest)
            manifest.flush()
            os.fsync(manifest.fileno())
        final = self._folder / name
        replaced = self._folder / f"{_ASIDE}replaced"
        if final.exists():  # the same step, saved again
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        aside.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)
        self._point("last.ckpt", name)

    def _prune(self, best_step: int | None) -> None:
        found = complete_checkpoints(self._folder)
        best = next((one for one in found if one.step == best_step), None)
        if best is not None:
            self._point("best.ckpt", best.folder.name)
        for old in found[: -self._keep]:
            if best is None or old.folder != best.folder:
                shutil.rmtree(old.folder, ignore_errors=True)
        for stale in self._folder.glob(f"{_ASIDE}*"):
            shutil.rmtree(stale, ignore_errors=True)

    def _point(self, pointer: str, name: str) -> None:
        aside = self._folder / f".{pointer}"
        aside.write_text(name + "\n")
        os.replace(aside, self._folder / pointer)


def complete_checkpoints(folder: Path) -> list[Checkpoint]:
    """All complete checkpoints, oldest first; an incomplete or damaged one is named in the log and passed over."""
    found = []
    for path in folder.glob("*.ckpt"):
        if not path.is_dir():
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
            found.append(Checkpoint(path, content))
        except (OSError, ValueError) as error:
            logger.warning("checkpoint %s is incomplete (%s): passed over", path.name, error)
    return sorted(found, key=lambda one: one.step)


def _states(module: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
    states: dict[str, Any] = {"model": get_model_state_dict(module, options=_OPTIONS)}
    if optimizer is not None:
        states["optimizer"] = get_optimizer_state_dict(module, optimizer, options=_OPTIONS)
    return states
