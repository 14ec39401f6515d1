"""torchrun, through its own API: starts this host's workers and writes down how they ended.

As a separate process it keeps torch out of the supervisor, and as API calls it keeps what the command line loses: which
rank ended first, with which exit code.
"""

import json
import os
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from container.job import Job
from container.processes import die_with_parent, set_up_logging


def main(job_file: Path, num_workers: int) -> int:
    """Run `num_workers` of container.training.worker; returns 0 when all ended well, 1 otherwise."""
    die_with_parent()
    set_up_logging()
    job = Job.read(job_file)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_workers,
        run_id="job",
        rdzv_backend="c10d",
        # Loopback by number: no name has to resolve.
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.5,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "container.training.worker", str(job_file))
    except ChildFailedError as error:
        failures = [
            {"rank": rank, "pid": failure.pid, "exitcode": failure.exitcode, "at": failure.timestamp}
            for rank, failure in error.failures.items()
        ]
        job.launch_file.write_text(json.dumps(failures))
        return 1
    return 0


if __name__ == "__main__":
    # The agent and its workers talk over loopback; a proxy or another interface must not come between.
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
