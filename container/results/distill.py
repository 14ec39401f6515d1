"""Train one network on the probabilities of several (Hinton et al. 2015, "Distilling the knowledge")."""

import logging
from dataclasses import replace

from container.job import Job
from container.parallel.mesh import RankMesh
from container.results.members import DISTILL, Members, on_val
from container.training.job_data import JobData
from container.training.stop import StopFlag
from container.training.train import Trained, train_and_predict

logger = logging.getLogger(__name__)


def distill(job: Job, ranks: RankMesh, *, data: JobData, stop: StopFlag) -> Trained:
    """Predict train with the members, then train the job's network on the labels and these probabilities.

    The predictions are computed again when a stopped job goes on: they take less time than an epoch for each member.

    Raises:
        StopAgreed, ContractError: as `train_and_predict`, and if the checkpoint of a member is missing.
    """
    teacher = Members(job, ranks, data=data, stop=stop).teacher()
    hp = job.hp
    metric = hp.monitored_metric
    logger.info("%s; one more network learns from them", metric.describe(teacher.values))
    job.timeline.mark("predict with networks")
    student = train_and_predict(job, ranks, data=data.with_targets(teacher.targets), stop=stop)
    value, _ = on_val(hp, data, student.logits["val"])
    values = {**teacher.values, DISTILL: value}
    logger.info("%s", metric.describe(values))
    if metric.rank(value) > metric.rank(values[teacher.best]):
        logger.warning("distill: the network is worse on val than %s, one of those it learned from", teacher.best)
    return replace(
        student,
        weights=f"one network, trained on the probabilities of {len(job.members)}: {student.weights}",
        values=values,
        out_of_fold=teacher.targets if hp.cross_fit else None,
    )
