"""Predict with the trained networks of an ensemble, and combine them into the job's model; chosen on val alone."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from container.decision.softmax import log_mean_probabilities, softmax
from container.evaluation.metrics import classification_metrics
from container.job import Job, Member
from container.models.classifier import Classifier
from container.models.ensemble import Ensemble, Network
from container.models.lora import merge_lora
from container.parallel.mesh import RankMesh
from container.preprocessing.prepared import PreparedData
from container.training.checkpoint import CheckpointStore, load_weights
from container.training.checkpoint_files import Checkpoint
from container.training.final_predictions import FinalPredictions
from container.training.job_data import JobData, positions_in_fold
from container.training.predict import weighted_log_loss
from container.training.state import TrainingState
from container.training.stop import StopFlag
from container.training.train import Trained, build_model, choose_weights
from container.training.training_run import forget_missing_best
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

AVERAGE, DISTILL = "average", "distill"


def predict_members(job: Job, ranks: RankMesh, *, data: JobData, stop: StopFlag) -> Trained:
    """Predict val with each member, then val and test with their average; see FinalPredictions.

    Raises:
        StopAgreed: the ranks agreed to stop.
        ContractError: the checkpoint with the weights of a member is missing.
    """
    trained = Members(job, ranks, data=data, stop=stop).average()
    logger.info("%s; the model is %s", job.hp.monitored_metric.describe(trained.values), trained.weights)
    job.timeline.mark("evaluate")
    return trained


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


@dataclass(frozen=True)
class Teacher:
    """The predictions of several networks, for the network that learns from them.

    Attributes:
        targets: probabilities of the rows of train: of the networks that did not train on a row, or else their average.
            [len(train), K]
        values: early_stop_metric on val of each network and of their average, by name.
        best: the name of the network that is best on val.
    """

    targets: np.ndarray
    values: Mapping[str, float | None]
    best: str


class Members:
    """The members on this job's ranks; every method is collective."""

    def __init__(self, job: Job, ranks: RankMesh, *, data: JobData, stop: StopFlag) -> None:
        self._job, self._ranks, self._data, self._stop = job, ranks, data, stop
        self._networks = [_Network.of(member, job, ranks) for member in job.members]
        model = build_model(job.hp, data.prepared, pretrained=False)
        self._predictions = FinalPredictions(model, job.hp, ranks, data=data, stop=stop)

    def average(self) -> Trained:
        """Return the average of the members' probabilities, with those of the rows that a member left out."""
        logits, out_of_fold = self._predict_each("val", "test", train=False)
        combined = {name: log_mean_probabilities(each).astype(np.float32) for name, each in logits.items()}
        values, best = self._compare(logits["val"])
        return Trained(
            best.state,
            tuple(network.checkpoint for network in self._networks),
            f"the average of the probabilities of {len(self._networks)} networks, of which {best.member.name} is best",
            combined,
            values={**values, AVERAGE: self._on_val(combined["val"])[0]},
            out_of_fold=out_of_fold,
        )

    def teacher(self) -> Teacher:
        """Return the members' predictions of train, and the values on val."""
        logits, of_train = self._predict_each("val", train=True)
        assert of_train is not None
        values, best = self._compare(logits["val"])
        average, _ = self._on_val(log_mean_probabilities(logits["val"]))
        return Teacher(of_train, {**values, AVERAGE: average}, best.member.name)

    def _predict_each(self, *splits: str, train: bool) -> tuple[dict[str, list[np.ndarray]], np.ndarray | None]:
        """Return the logits of each member by split, and probabilities of train.

        The probabilities of a row are those of the member that left it out, or the average if no member did.

        Args:
            train: return the probabilities also without cross_fit.

        Returns:
            n x [N, K] for each split; [len(train), K] or None.
        """
        rows = self._data.splits["train"]
        logits: dict[str, list[np.ndarray]] = {name: [] for name in splits}
        wanted = train or self._job.hp.cross_fit
        of_train = np.zeros((len(rows), self._job.hp.num_classes)) if wanted else None
        for network in self._networks:
            self._load(network)
            for name, predicted in logits.items():
                predicted.append(self._predictions.of(self._data.splits[name]))
            if of_train is not None:
                fold = network.member.fold
                positions = np.arange(len(rows)) if fold is None else positions_in_fold(rows, fold)
                share = 1 / len(self._networks) if fold is None else 1
                of_train[positions] += share * softmax(self._predictions.of(rows.part(positions)))
        return logits, of_train

    def _load(self, network: _Network) -> None:
        self._predictions.load(network.store, network.checkpoint)

    def _compare(self, logits: Sequence[np.ndarray]) -> tuple[dict[str, float | None], _Network]:
        """Return the metric on val of each member by name, and the best member. n x [N, K]"""
        values = [self._on_val(each) for each in logits]
        ranks = [self._job.hp.monitored_metric.rank(*each) for each in values]
        named = {network.member.name: value for network, (value, _) in zip(self._networks, values, strict=True)}
        return named, self._networks[ranks.index(min(ranks))]

    def _on_val(self, logits: np.ndarray) -> tuple[float | None, float | None]:
        return on_val(self._job.hp, self._data, logits)


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
