"""Ask a process for the memory of a job, warn before its model is loaded, and explain that memory ran out."""

import json
import logging
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from container.job.failure import Failure, is_out_of_memory
from container.job.start import start_command
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

_TIMEOUT = 90.0  # seconds; the estimate of a failed job delays its end


def warn_if_too_large(hp: Hyperparameters, prepared: Path, *, hosts: int, per_host: int) -> threading.Thread:
    """Warn in a thread, beside the start of the workers, if the job does not fit into this machine's GPUs."""

    def warn() -> None:
        answer = _ask(hp, prepared, hosts=hosts, per_host=per_host, explain=False)
        if answer is None or answer["gpu_gib"] is None:
            return
        total, has = answer["memory_gib"]["total"], answer["gpu_gib"]
        if total > has:
            logger.warning(
                f"the model will probably not fit: a step needs about {total:.1f} GiB, and the GPU has {has:.1f} GiB: "
                f"{_parts(answer)}. {_advice(answer)}"
            )

    thread = threading.Thread(target=warn, name="estimate", daemon=True)
    thread.start()
    return thread


def with_estimate(failure: Failure, hp: Hyperparameters, prepared: Path, *, hosts: int, per_host: int) -> Failure:
    """Return a failure for lack of memory with the largest part and the settings that help most; others unchanged."""
    if not is_out_of_memory(failure):
        return failure
    answer = _ask(hp, prepared, hosts=hosts, per_host=per_host, explain=True)
    if answer is None:
        return failure
    return replace(failure, fix=f"A step needs about {_parts(answer)}; most are {answer['largest']}. {_advice(answer)}")


def _parts(answer: dict[str, Any]) -> str:
    parts = dict(answer["memory_gib"])
    total = parts.pop("total")
    return f"{total:.2f} GiB ({', '.join(f'{name} {size:.2f}' for name, size in parts.items())})"


def _advice(answer: dict[str, Any]) -> str:
    settings = [f"{given} needs about {total:.2f} GiB" for given, total in answer["suggestions"]]
    return f"Set one of these: {'; '.join(settings)}." if settings else "Take a larger machine."


def _ask(hp: Hyperparameters, prepared: Path, *, hosts: int, per_host: int, explain: bool) -> dict[str, Any] | None:
    """Return the answer of container/planning/check.py; None if it fails, because an estimate must not fail a job."""
    settings = hp.model_dump(mode="json", exclude_unset=True)
    question = {
        "settings": settings,
        "prepared": str(prepared),
        "hosts": hosts,
        "per_host": per_host,
        "explain": explain,
    }
    command = [sys.executable, *start_command("container.planning.check", json.dumps(question))]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
        return json.loads(ended.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:  # OSError: no memory for a process
        logger.debug("no estimate of memory: %s", error)
        return None
