"""Run the workers of this host with torchrun's API.

Unlike torchrun's command line, it returns which rank failed and how.
"""

import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from container.job.job import Attempt
from container.job.launch.ended import Ended, Signalled
from container.job.processes import log_level
from contracts.ports import LOOPBACK

_RENDEZVOUS_TIMEOUT = 300  # seconds; the supervisors notice a lost host sooner


def run_with_torchrun(
    arguments: Sequence[str], num_workers: int, *, attempt: Attempt, logs: Path | None
) -> list[Ended]:
    """See launcher.run_workers."""
    if attempt.hosts == 1:
        settings: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": f"{LOOPBACK}:0", "local_addr": LOOPBACK}
    else:  # static: the job chooses the ranks of the hosts
        settings = {
            "rdzv_backend": "static",
            "rdzv_endpoint": f"{attempt.address}:{attempt.port}",
            "rdzv_configs": {"rank": attempt.host_rank, "timeout": _RENDEZVOUS_TIMEOUT},
        }
    try:
        # torch does not remove its default folder.
        with (
            tempfile.TemporaryDirectory(prefix="torchelastic_", dir=logs) as log_dir,
            log_level("torch.distributed.elastic", logging.CRITICAL),  # `failure_of` says what failed
        ):
            config = LaunchConfig(
                min_nodes=attempt.hosts,
                max_nodes=attempt.hosts,
                nproc_per_node=num_workers,
                run_id=f"attempt{attempt.number}",
                max_restarts=0,
                monitor_interval=0.1,
                logs_specs=DefaultLogsSpecs(log_dir=log_dir),
                **settings,
            )
            elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        return [Ended(rank, end.pid, end.exitcode, end.timestamp) for rank, end in error.failures.items()]
    except SignalException as error:
        raise Signalled(error.sigval) from error
    return []
