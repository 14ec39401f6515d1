"""Train over the mesh, choose the weights, and predict val and test."""

import logging
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch

from container.decision.deciding_rows import chosen_on, with_val_out_of_fold
from container.job.job import InitialModel, Job
from container.models.build import build_classifier
from container.models.carry_over import carry_over
from container.models.classifier import Classifier
from container.models.encoder import TextEncoder
from container.models.families import FAMILIES
from container.models.lora import add_lora
from container.parallel.execution import Execution
from container.parallel.mesh import RankMesh
from container.parallel.parallelize import parallelize
from container.preprocessing.prepared import EncoderFiles, PreparedData
from container.training.checkpoint import CheckpointStore
from container.training.checkpoint_files import Checkpoint, checkpoint_folders
from container.training.identity import identity
from container.training.job_data import JobData
from container.training.loop import Trainer
from container.training.precision import float32_products, precision_of
from container.training.predict import predict_split
from container.training.profiling import step_profiler
from container.training.progress import Progress
from container.training.state import TrainingState, ValidationSchedule
from container.training.step_graph import capture_stream, step_graphs
from container.training.stop import StopFlag
from container.training.training_run import TrainingRun
from contracts import artifacts
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trained:
    """The result of training.

    Attributes:
        state: the last state; of the best network of several.
        checkpoints: of each network of the model, with the weights to evaluate and save.
        weights: which weights they are and why, for the log and the report.
        logits: of val and test; with choose_on=out_of_fold, also of OUT_OF_FOLD. [N, K] each
        values: early_stop_metric on val of each member of an ensemble and of the model made of them, by name.
        out_of_fold: probabilities of the rows of train by the network that did not train on them. [len(train), K]
    """

    state: TrainingState
    checkpoints: tuple[Checkpoint, ...]
    weights: str
    logits: dict[str, np.ndarray]
    values: Mapping[str, float | None] = field(default_factory=dict)
    out_of_fold: np.ndarray | None = None

    @property
    def chooses(self) -> str:
        """Return the split whose predictions choose the companion's factors, the calibration and the threshold."""
        return chosen_on(self.logits)

    @property
    def honest_logits(self) -> dict[str, np.ndarray]:
        """Return the logits of each split by networks that did not train on it: of val, the last of OUT_OF_FOLD."""
        return with_val_out_of_fold(self.logits)


def train_only(job: Job, ranks: RankMesh, *, data: JobData, stop: StopFlag) -> None:
    """Train and validate over the mesh, as a trial of a search does; the checkpoints are the result.

    Raises:
        StopAgreed, ContractError: as `train_and_predict`.
    """
    store = CheckpointStore(job.paths.checkpoints, keep=job.hp.keep_checkpoints, device=ranks.device)
    _train(job, ranks, store, data=data, stop=stop)
    store.wait()


def train_and_predict(job: Job, ranks: RankMesh, *, data: JobData, stop: StopFlag) -> Trained:
    """Train over the mesh, then predict val and test with the chosen weights, in float32 as serving does.

    The predictions of a validation in float32 are used again.

    Raises:
        StopAgreed: the ranks agreed to stop; a complete checkpoint is saved.
        ContractError: the loss stays non-finite, or the checkpoint to evaluate is missing.
    """
    store = CheckpointStore(job.paths.checkpoints, keep=job.hp.keep_checkpoints, device=ranks.device)
    state, val_logits = _train(job, ranks, store, data=data, stop=stop)
    checkpoint, weights = choose_weights(job.hp, store, state)
    logger.info("evaluating and saving the weights: %s", weights)
    execution = float32_execution(job.hp, ranks, data)
    store.load_weights(checkpoint, execution.module)
    exact = precision_of(job.hp, ranks.device) == torch.float32 and not job.hp.tf32
    known = val_logits.get(checkpoint.step) if exact else None
    logits = {} if known is None else {"val": known}
    for name in ("val", "test"):
        if name not in logits:
            logits[name] = predict_split(execution, data.splits[name], hp=job.hp, stop=stop)
    job.timeline.mark("evaluate")
    return Trained(state, (checkpoint,), weights, logits)


def build_model(
    hp: Hyperparameters, data: PreparedData, *, pretrained: bool = True, initial: InitialModel | None = None
) -> Classifier:
    """Build the plain model on the CPU, with adapters if lora_rank is set.

    Args:
        pretrained: False: random weights, to be replaced by those of a checkpoint.
        initial: the model whose weights replace them as far as they mean the same.
    """
    encoders = [data.encoders[field.role] for field in hp.text_fields]
    model = build_classifier(
        hp,
        encoders if pretrained else [EncoderFiles(files.config_folder) for files in encoders],
        tabular_dim=data.tabular_dim,
        numeric_transform=data.fitted.numeric_transform,
        num_codes=data.fitted.num_codes,
    )
    if initial is not None:
        carry_over(model, data.fitted, data.folder, initial=initial.folder)
    add_lora(model, hp)
    return model


def float32_execution(hp: Hyperparameters, ranks: RankMesh, data: JobData) -> Execution:
    """Return a parallelized model with random weights, which computes in float32."""
    model = build_model(hp, data.prepared, pretrained=False)
    return parallelize(model, ranks, hp, precision=torch.float32, tokens_per_record=data.tokens_per_record)


def _train(
    job: Job, ranks: RankMesh, store: CheckpointStore, *, data: JobData, stop: StopFlag
) -> tuple[TrainingState, dict[int, np.ndarray]]:
    """Train; return the last state and what `Trainer.train` returns."""
    hp, train = job.hp, data.splits["train"]
    model = build_model(hp, data.prepared, initial=job.initial if store.newest() is None else None)
    _log_parameters(hp, ranks, model)
    if ranks.is_first and _is_untested(model) and not checkpoint_folders(job.paths.checkpoints):
        from container.export.rehearsal import rehearse_export  # few jobs need its imports

        val = data.splits["val"]
        rehearse_export(hp, data.prepared, val.pack(np.arange(min(4, len(val)))))
    precision = precision_of(hp, ranks.device)
    execution = parallelize(model, ranks, hp, precision=precision, tokens_per_record=data.tokens_per_record)
    settings_and_data = identity(hp, data.prepared.fitted.fingerprint, data.prepared.digests)
    graphs = step_graphs(hp, execution)
    run = TrainingRun(hp, execution, store, identity=settings_and_data)
    run.resume()
    schedule = ValidationSchedule(len(train), run.batch_plan.steps(len(train)), hp.max_epochs, hp.val_check_interval)
    progress = Progress(
        reports=ranks.is_first,
        total_steps=schedule.total_steps,
        max_epochs=hp.max_epochs,
        step=run.state.step,
        tensorboard=job.paths.tensorboard,
        ends_job=job.kind != "trial",
    )
    steps, folder = schedule.total_steps - run.state.step, job.paths.output_data / artifacts.PROFILE
    profiler = step_profiler(ranks, steps=steps, folder=folder) if hp.profile and steps > 0 else None
    job.timeline.mark("build model")
    trainer = Trainer(
        job,
        run,
        data=data,
        schedule=schedule,
        progress=progress,
        profiler=profiler,
        stop=stop,
        graphs=graphs,
    )
    stream = nullcontext() if graphs is None else capture_stream(ranks.device)
    with closing(progress), float32_products(hp, ranks.device), stream:
        val_logits = trainer.train()
    return run.state, val_logits


def _log_parameters(hp: Hyperparameters, ranks: RankMesh, model: Classifier) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    device = "the CPU" if ranks.device.type == "cpu" else "GPUs"
    logger.info(
        f"{hp.architecture.name}: {parameters:,} parameters on {device}, {ranks.degrees.in_words}, matrix products in "
        f"{str(precision_of(hp, ranks.device)).removeprefix('torch.')}"
    )
    if hp.lora_rank:
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        logger.info("lora_rank %d: %s of them are trained", hp.lora_rank, f"{trained:,}")


def _is_untested(model: Classifier) -> bool:
    """Return whether an encoder is of a family that our tests do not export."""
    encoders = [branch.encoder for branch in model.branches.values()]
    return any(isinstance(encoder, TextEncoder) and encoder.kind not in FAMILIES for encoder in encoders)


def choose_weights(hp: Hyperparameters, store: CheckpointStore, state: TrainingState) -> tuple[Checkpoint, str]:
    """Return the checkpoint to evaluate and save, and a description of it."""
    step = state.step
    if not hp.load_ckpt or hp.pools_val:
        cause = "choose_on is out_of_fold" if hp.pools_val else "load_ckpt is false"
        chosen = f"the last (step {state.step}), because {cause}"
    elif state.best_step is None:
        chosen = f"the last (step {state.step}), because no kept validation has a defined {hp.early_stop_metric}"
    elif state.best_step == state.step:
        chosen = f"the best by {hp.early_stop_metric} ({state.best_value:.6g}), those of the last step ({state.step})"
    else:
        step = state.best_step
        chosen = f"the best by {hp.early_stop_metric} ({state.best_value:.6g}, step {state.best_step} of {state.step})"
    checkpoint = store.at_step(step)
    if checkpoint is None:
        raise ContractError(
            f"checkpoints: the checkpoint of step {step}, which is to be evaluated and saved, is missing or damaged",
            "Set load_ckpt=false to save the last weights, or resume=false to train again.",
        )
    if hp.load_ckpt and state.best_value == 0 and hp.early_stop_metric.endswith("f1_score"):
        logger.warning(
            "val/f1_score was 0 at every validation: no record of class 1 was decided correctly. Consider "
            "early_stop_metric=val/auroc or class_weights=balanced."
        )
    if hp.ema_decay:
        chosen += f", averaged over steps (ema_decay {hp.ema_decay:g})"
    return checkpoint, chosen
