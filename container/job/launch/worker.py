"""Run one worker process: join the mesh, train, and on rank 0 finish the job."""

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist

from container.cores import available_cores, given_threads
from container.errors import StopAgreed
from container.job.failure import Failure
from container.job.job import Job, Scratch, write_json
from container.job.launch.run_queue import show_curves
from container.job.processes import log_to_file, set_up_logging
from container.job.time_limit import limited, seconds_to_train
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import RankMesh, build_mesh, init_distributed
from container.results.members import distill, predict_members
from container.training.cpu_products import choose_matrix_products
from container.training.finished import describe_finished, is_finished
from container.training.job_data import JobData
from container.training.precision import forbid_tf32
from container.training.stop import StopFlag
from container.training.train import train_and_predict, train_only
from contracts import artifacts
from contracts.file_systems import naming_full_disk
from contracts.program import die_with_parent

logger = logging.getLogger(__name__)

_PCI_DEVICES = Path("/sys/bus/pci/devices")


def run(job: Job, stop: StopFlag) -> None:
    """Train with the other ranks, or use trained networks; rank 0 then writes the artifacts and the result.

    A trial writes no artifacts.

    Raises:
        StopAgreed: the ranks agreed to stop; a complete checkpoint is saved.
    """
    job.timeline.mark("start workers")
    forbid_tf32()
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(job.paths.output_data / artifacts.COLLECTIVES))
    timeout, per_host = job.hp.process_group_timeout_minutes, int(os.environ["LOCAL_WORLD_SIZE"])
    init_distributed(timeout_minutes=timeout)
    degrees = ParallelDegrees.resolve(job.hp, dist.get_world_size(), per_host=per_host)
    ranks = build_mesh(degrees, timeout_minutes=timeout)
    stay_near(ranks.device)
    fixed = given_threads(os.environ) if job.hp.num_threads == "auto" else job.hp.num_threads
    ranks = ranks.with_threads(cores=available_cores(), fixed=fixed)
    choose_matrix_products(ranks.device)
    data = JobData.open(job)
    if job.kind == "trial":
        train_only(job, ranks, data=data, stop=stop)
        if ranks.is_first:
            write_json(job.scratch.result_file, {"status": "completed"})
        return
    if job.members:
        train_missing(job, ranks, stop=stop)
    train = train_and_predict if not job.members else distill if job.trains else predict_members
    trained = train(job, ranks, data=data, stop=stop)
    dist.destroy_process_group()  # no other rank waits while rank 0 finishes the job
    if ranks.is_first:
        from container.results.finish import finish  # its imports take a second, which the first step need not wait

        torch.set_num_threads(ranks.threads.prediction.number)
        finish(job, ranks, trained, data=data, stop=stop)


def train_missing(job: Job, ranks: RankMesh, *, stop: StopFlag) -> None:
    """Train the members that are not finished, one after the other; collective.

    Raises:
        StopAgreed, ContractError: as `train_only`.
    """
    missing = [member for member in job.members if not is_finished(member)]
    if missing:
        logger.info("%s", describe_finished(job.members))
    for number, member in enumerate(missing):
        share = seconds_to_train(job.hp, job.timeline) / (len(missing) - number + job.trains)
        own = job.of_member(member)
        own = replace(own, hp=limited(own.hp, job.timeline.elapsed() + share))
        logger.info("%s: training begins; its checkpoints are in %s", member.name, member.checkpoints)
        train_only(own, ranks, data=JobData.open(own), stop=stop)
    if ranks.is_first:
        show_curves(job.paths, [member.folder for member in job.members])


def main(arguments: Sequence[str]) -> int:
    """Entry point under torchrun; the only argument is the scratch folder."""
    die_with_parent()
    rank = int(os.environ["RANK"])
    scratch = Scratch(Path(arguments[0]))
    stop = StopFlag()
    stop.listen(scratch.stop_file)
    write_json(scratch.pid_file(rank), os.getpid())  # SIGTERM is handled from here on
    job = Job.read(scratch)
    set_up_logging(rank=rank, all_ranks=job.hp.log_all_ranks)
    if rank == 0 and job.kind != "trial":
        log_to_file(job.paths.output_data / artifacts.LOG)
    try:
        with naming_full_disk(*job.paths.written, scratch.folder):
            run(job, stop)
    except StopAgreed:
        if rank == 0:
            write_json(scratch.result_file, {"status": "stopped"})
    except BaseException as error:
        try:
            failure = Failure.from_exception(error, rank=rank)
            try:
                write_json(scratch.error_file(rank), asdict(failure))
            except OSError:  # the disk may be full
                print(f"[rank {rank}] {failure.cause}", flush=True)
            logging.shutdown()
        finally:
            os._exit(1)  # does not wait for a collective
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


def stay_near(device: torch.device, pci_devices: Path = _PCI_DEVICES) -> None:
    """Let this thread, and those that it starts, run on the cores of the GPU's NUMA node only.

    Without NUMA nodes, or where the process may use none of these cores, nothing changes.
    """
    if device.type != "cuda":
        return
    gpu = torch.cuda.get_device_properties(device)
    address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
    try:
        near = _cores((pci_devices / address / "local_cpulist").read_text())
    except OSError:  # a virtual machine or container may hide it
        return
    allowed = os.sched_getaffinity(0)
    if near & allowed and not allowed <= near:
        os.sched_setaffinity(0, near & allowed)
        logger.info("GPU %s: using its %d near cores of %d", address, len(near & allowed), len(allowed))


def _cores(ranges: str) -> set[int]:
    """Return the cores of a list such as 0-3,8."""
    bounds = [part.split("-") for part in ranges.strip().split(",") if part]
    return {core for bound in bounds for core in range(int(bound[0]), int(bound[-1]) + 1)}
