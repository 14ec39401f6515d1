"""Predict with the trained networks of an ensemble, and combine them into the job's model."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from container.data.split import PreparedSplit
from container.decision.deciding_rows import OUT_OF_FOLD, in_words
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
from container.training.job_data import JobData, folds_of
from container.training.predict import predict_split, weighted_log_loss
from container.training.state import TrainingState
from container.training.stop import StopFlag
from container.training.train import Trained, build_model, choose_weights, float32_execution, train_and_predict
from container.training.training_run import forget_missing_best
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

AVERAGE, DISTILL = "average", "distill"
_TINY = 1e-12


@dataclass(frozen=True)
class Predicted:
    """The predictions of the members of an ensemble. n members.

    Attributes:
        logits: by split. n x [N, K] each
        of_train: probabilities of the rows of train: the average of the members that did not train on a row, or else of
            all; None if they are not wanted. [len(train), K]
        values: early_stop_metric on val of each member and of their average, by name; with choose_on=out_of_fold, on
            the rows that a member did not train on, and on all rows out of fold, also of each division into folds.
        best: the member that is best there.
        checkpoints: those that hold the chosen weights of each.
    """

    logits: Mapping[str, Sequence[np.ndarray]]
    of_train: np.ndarray | None
    values: Mapping[str, float | None]
    best: "_Network"
    checkpoints: tuple[Checkpoint, ...]

    def described(self, hp: Hyperparameters) -> str:
        """Return the values for the log."""
        return hp.monitored_metric.describe(self.values, where=in_words(OUT_OF_FOLD if hp.pools_val else "val"))

    def out_of_fold(self, hp: Hyperparameters) -> dict[str, np.ndarray]:
        """Return the logits of the rows of train by networks that did not train on them, if they decide."""
        if not hp.pools_val:
            return {}
        assert self.of_train is not None
        return {OUT_OF_FOLD: _log(self.of_train).astype(np.float32)}


def predict_members(job: Job, ranks: RankMesh, *, data: JobData, stop: StopFlag) -> Trained:
    """Predict val with each member, then val and test with their average.

    Raises:
        StopAgreed: the ranks agreed to stop.
        ContractError: the checkpoint with the weights of a member is missing.
    """
    predicted = predict_each(job, ranks, "val", "test", data=data, stop=stop, train=bool(job.hp.cross_fit))
    combined = {name: log_mean_probabilities(each).astype(np.float32) for name, each in predicted.logits.items()}
    combined |= predicted.out_of_fold(job.hp)
    weights = f"the average of the probabilities of {len(job.members)} networks"
    if not job.hp.pools_val:  # else each has a fold of its own
        weights += f", of which {predicted.best.member.name} is best"
    logger.info("%s; the model is %s", predicted.described(job.hp), weights)
    job.timeline.mark("evaluate")
    of_train = predicted.of_train
    return Trained(
        predicted.best.state, predicted.checkpoints, weights, combined, values=predicted.values, out_of_fold=of_train
    )


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
    logger.info("%s; one more network learns from them", found.described(hp))
    job.timeline.mark("predict with networks")
    student = train_and_predict(job, ranks, data=data.with_targets(found.of_train), stop=stop)
    if not hp.pools_val:  # else it has trained on val
        value, _ = on_val(hp, data.splits["val"], student.logits["val"], class_weights=data.class_weights)
        found, best = replace(found, values={**found.values, DISTILL: value}), found.best.member.name
        logger.info("%s", found.described(hp))
        if metric.rank(value) > metric.rank(found.values[best]):
            logger.warning("distill: the network is worse on val than %s, one of those it learned from", best)
    return replace(
        student,
        logits=student.logits | found.out_of_fold(hp),
        weights=f"one network, trained on the probabilities of {len(job.members)}: {student.weights}",
        values=found.values,
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
    execution, rows, hp = float32_execution(job.hp, ranks, data), data.splits["train"], job.hp
    logits: dict[str, list[np.ndarray]] = {name: [] for name in splits}
    repeats = hp.cross_fit_repeats if hp.cross_fit else 1
    divisions = np.zeros((repeats, len(rows) if train else 0, hp.num_classes))
    of_each: list[tuple[PreparedSplit, np.ndarray]] = []  # the rows that value a network, with its logits of them
    for i, network in enumerate(networks):
        network.store.load_weights(network.checkpoint, execution.module)
        for name, predicted in logits.items():
            predicted.append(predict_split(execution, data.splits[name], hp=hp, stop=stop))
        of_each.append((data.splits["val"], logits["val"][-1]))
        if train:
            fold = network.member.fold
            positions = np.arange(len(rows)) if fold is None else np.flatnonzero(folds_of(rows, fold) == fold.number)
            held_out = rows.part(positions)
            found = predict_split(execution, held_out, hp=hp, stop=stop)
            division, share = (0, 1 / len(networks)) if fold is None else (i // fold.of, 1)
            divisions[division, positions] += share * softmax(found)
            of_each[-1] = (held_out, found) if hp.pools_val else of_each[-1]
    of_train = divisions.mean(axis=0)
    valued = dict(zip([network.member.name for network in networks], of_each, strict=True))
    if hp.pools_val:
        valued |= {f"division-{i}": (rows, _log(found)) for i, found in enumerate(divisions) if repeats > 1}
    average = (rows, _log(of_train)) if hp.pools_val else (data.splits["val"], log_mean_probabilities(logits["val"]))
    valued[AVERAGE] = average[0], average[1].astype(np.float32)
    measured = {name: on_val(hp, *each, class_weights=data.class_weights) for name, each in valued.items()}
    best = min(networks, key=lambda network: hp.monitored_metric.rank(*measured[network.member.name]))
    checkpoints = tuple(network.checkpoint for network in networks)
    values = {name: value for name, (value, _) in measured.items()}
    return Predicted(logits, of_train if train else None, values, best, checkpoints)


def _log(probabilities: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(probabilities, _TINY))


def on_val(
    hp: Hyperparameters, rows: PreparedSplit, logits: np.ndarray, *, class_weights: list[float]
) -> tuple[float | None, float | None]:
    """Return early_stop_metric and the loss on rows of val; None if they are undefined. [N, K] -> scalars"""
    labels, metric = rows.column("label").to_numpy(), hp.monitored_metric
    loss = weighted_log_loss(logits, labels, class_weights, rows.weights())
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
