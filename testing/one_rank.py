"""Jobs that train in the process of the tests, which is the only rank: with the fixture one_rank."""

from typing import Any

from container.job.job import Job, Scratch
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import build_mesh
from container.preprocessing.prepare import prepare_data
from container.training.job_data import JobData
from container.training.stop import StopFlag
from container.training.train import Trained, train_and_predict
from contracts.hyperparameter_files import load_hyperparameters
from contracts.paths import JobPaths


def prepared_job(paths: JobPaths, **options: Any) -> Job:
    """Prepare the data of a job, and return the job as its workers get it."""
    hp = load_hyperparameters(paths)
    return Job(paths, hp, Scratch(paths.root), prepare_data(paths, hp).folder, **options)


def train_job(job: Job, *, run: Any = train_and_predict) -> Trained:
    """Train in this process; `run` is train_and_predict or train_only."""
    return run(job, build_mesh(ParallelDegrees.resolve(job.hp, 1)), data=JobData.open(job), stop=StopFlag())
