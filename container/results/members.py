"""Predict with the trained networks of an ensemble, and combine them into the job's model; chosen on val alone."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from container.decision.softmax import log_mean_probabilities, softmax
from container.evaluation.metrics import classification_metrics
from container.job.job import Job, Member
from container.models.classifier import Classifier
from container.models.ensemble import Ensemble, Network
from container.models.lora import merge_lora
from container.parallel.mesh import RankMesh
from container.preprocessing.prepared import PreparedData
from container.training.checkpoint import CheckpointStore, load_weights
from container.training.checkpoint_files import Checkpoint
from container.training.job_data import JobData, positions_in_fold
from container.training.predict import predict_split, weighted_log_loss
from container.training.state import TrainingState
from container.training.stop import StopFlag
from container.training.train import Trained, build_model, choose_weights, float32_execution, train_and_predict
from container.training.training_run import forget_missing_best
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

AVERAGE, DISTILL = "average", "distill"


@dataclass(frozen=True)
class Predicted:
    """The predictions of the members of an ensemble. n members.

    Attributes:
        logits: by split. n x [N, K] each
        of_train: probabilities of the rows of train: of the members that did not train on a row, or else the average of
            all; None if they are not wanted. [len(train), K]
        values: early_stop_metric on val of each member and of their average, by name.
        best: the member that is best on val.
        checkpoints: those that hold the chosen weights of each.
    """

    logits: Mapping[str, Sequence[np.ndarray]]
    of_train: np.ndarray | None
    values: Mapping[str, float | None]
    best: "_Network"
    checkpoints: tuple[Checkpoint, ...]


def predict_members(job: Job, ranks: RankMesh, *, data: JobData, stop: StopFlag) -> Trained:
    """Predict val with each member, then val and test with their average.

    Raises:
        StopAgreed: the ranks agreed to stop.
        ContractError: the checkpoint with the weights of a member is missing.
    """
    found = predict_each(job, ranks, "val", "test", data=data, stop=stop, train=bool(job.hp.cross_fit))
    combined = {name: log_mean_probabilities(each).astype(np.float32) for name, each in found.logits.items()}
    best = found.best.member.name
    weights = f"the average of the probabilities of {len(job.members)} networks, of which {best} is best"
    logger.info("%s; the model is %s", job.hp.monitored_metric.describe(found.values), weights)
    job.timeline.mark("evaluate")
    of_train = found.of_train
    return Trained(found.best.state, found.checkpoints, weights, combined, values=found.values, out_of_fold=of_train)


def distill(job: Job, ranks: RankMesh, *, data: JobData, stop: StopFlag) -> Trained:
    """Predict train with the members, then train the job's network on the labels and these probabilities.

    Source: Hinton et al., 2015, Distilling the Knowledge in a Neural Network.

    The predictions are computed again when a stopped job goes on: they take less time than an epoch for each member.

    Raises:
        StopAgreed, ContractError: as `train_and_predict`, and if the checkpoint of a member is missing.
    """
    hp, metric = job.hp, job.hp.monitored_metric
    found = predict_each(job, ranks, "val", data=data, stop=stop, train=True)
    assert found.of_train is not None
    logger.info("%s; one more network learns from them", metric.describe(found.values))
    job.timeline.mark("predict with networks")
    student = train_and_predict(job, ranks, data=data.with_targets(found.of_train), stop=stop)
    value, _ = on_val(hp, data, student.logits["val"])
    values, best = {**found.values, DISTILL: value}, found.best.member.name
    logger.info("%s", metric.describe(values))
    if metric.rank(value) > metric.rank(values[best]):
        logger.warning("distill: the network is worse on val than %s, one of those it learned from", best)
    return replace(
        student,
        weights=f"one network, trained on the probabilities of {len(job.members)}: {student.weights}",
        values=values,
        out_of_fold=found.of_train if hp.cross_fit else None,
    )


@dataclass(frozen=True)
class _Network:
    """A member with the checkpoint that holds its chosen weights."""

    member: Member
    store: CheckpointStore
    state: TrainingState
    checkpoint: Checkpoint
    weights: str

    @classmethod
    def of(cls, member: Member, job: Job, ranks: RankMesh) -> "_Network":
        store = CheckpointStore(member.checkpoints, keep=1, device=ranks.device)
        newest = store.newest()
        assert newest is not None, "the network is trained"
        state = TrainingState(**newest.content["state"])
        forget_missing_best(state, store, name=member.name)
        checkpoint, weights = choose_weights(job.hp, store, state)
        logger.info("%s: evaluating the weights: %s", member.name, weights)
        return cls(member, store, state, checkpoint, weights)


def predict_each(job: Job, ranks: RankMesh, *splits: str, data: JobData, stop: StopFlag, train: bool) -> Predicted:
    """Predict `splits`, val among them, and if wanted train, with each member; collective."""
    networks = [_Network.of(member, job, ranks) for member in job.members]
    execution, rows = float32_execution(job.hp, ranks, data), data.splits["train"]
    logits: dict[str, list[np.ndarray]] = {name: [] for name in splits}
    of_train = np.zeros((len(rows), job.hp.num_classes)) if train else None
    for network in networks:
        network.store.load_weights(network.checkpoint, execution.module)
        for name, predicted in logits.items():
            predicted.append(predict_split(execution, data.splits[name], hp=job.hp, stop=stop))
        if of_train is not None:
            fold = network.member.fold
            positions = np.arange(len(rows)) if fold is None else positions_in_fold(rows, fold)
            share = 1 / len(networks) if fold is None else 1
            of_train[positions] += share * softmax(predict_split(execution, rows.part(positions), hp=job.hp, stop=stop))
    found = [on_val(job.hp, data, each) for each in logits["val"]]
    ranked = [job.hp.monitored_metric.rank(*each) for each in found]
    values = {network.member.name: value for network, (value, _) in zip(networks, found, strict=True)}
    values[AVERAGE], _ = on_val(job.hp, data, log_mean_probabilities(logits["val"]).astype(np.float32))
    best, checkpoints = networks[ranked.index(min(ranked))], tuple(network.checkpoint for network in networks)
    return Predicted(logits, of_train, values, best, checkpoints)


def on_val(hp: Hyperparameters, data: JobData, logits: np.ndarray) -> tuple[float | None, float | None]:
    """Return early_stop_metric and the loss on val; None if they are undefined. [N, K] -> scalars"""
    labels, metric = data.splits["val"].column("label").to_numpy(), hp.monitored_metric
    loss = weighted_log_loss(logits, labels, data.class_weights, data.splits["val"].weights())
    if metric.minimizes:
        return loss, loss
    name = metric.name.removeprefix("val/")
    return classification_metrics(labels, softmax(logits), [name]).values[name], loss


def trained_model(hp: Hyperparameters, data: PreparedData, trained: Trained) -> Network:
    """Build the model of a finished job on the CPU, with its weights."""
    networks = [_network(hp, data, checkpoint) for checkpoint in trained.checkpoints]
    return networks[0] if len(networks) == 1 else Ensemble(networks)


def _network(hp: Hyperparameters, data: PreparedData, checkpoint: Checkpoint) -> Classifier:
    model = build_model(hp, data, pretrained=False)
    load_weights(model, checkpoint)
    merge_lora(model)
    return model
