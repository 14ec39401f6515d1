"""A worker process: mesh -> model -> parallelise -> resume -> loop -> best weights -> evaluate -> export."""

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from container.data.sampler import BatchPlan
from container.data.split import PreparedSplit
from container.evaluation.fit_decision import describe, fit_decision
from container.evaluation.variant_report import VariantReport
from container.export.artifacts import export_model
from container.export.rehearsal import rehearse_export
from container.failure import Failure
from container.job import Job, write_json
from container.models.build import EncoderConfigOnly, build_classifier
from container.models.classifier import Classifier
from container.models.encoder import TextEncoder
from container.models.families import FAMILIES
from container.models.lora import add_lora, merge_lora
from container.parallel.degrees import ParallelDegrees
from container.parallel.execution import Execution
from container.parallel.mesh import RankMesh, build_mesh, init_distributed
from container.parallel.parallelize import parallelize
from container.preprocessing.class_weights import resolve_class_weights
from container.preprocessing.prepare import PreparedData, open_prepared
from container.processes import die_with_parent, set_up_logging
from container.training.average import WeightAverage
from container.training.checkpoint import Checkpoint, CheckpointStore, load_weights
from container.training.explain import explain
from container.training.identity import check_identity, identity, resume_batch_plan
from container.training.loop import Trainer, precision_of, raise_if_stopped
from container.training.optimizer import build_optimizer
from container.training.predict import predict_split
from container.training.profiling import StepProfiler
from container.training.progress import Progress, metric_line
from container.training.results import write_results
from container.training.scaler import LossScaler
from container.training.state import Schedule, TrainingState
from container.training.stop import StopFlag, StopRequested
from container.training.variants import write_variants
from contracts import artifacts
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What training left: its state, the checkpoint that was chosen and why, and its logits of val and test."""

    state: TrainingState
    checkpoint: Checkpoint
    weights: str
    logits: dict[str, np.ndarray]


def run(job: Job, stop: StopFlag) -> None:
    """The worker's life; rank 0 writes job.result_file at the end.

    Raises:
        StopRequested: the ranks agreed to stop; a complete checkpoint is saved.
    """
    hp = job.hp
    arrived = time.time()
    init_distributed(timeout_minutes=hp.process_group_timeout_minutes)
    per_host = int(os.environ["LOCAL_WORLD_SIZE"])
    ranks = build_mesh(ParallelDegrees.resolve(hp, dist.get_world_size(), per_host=per_host))
    data = open_prepared(job.prepared)
    roles = [field.role for field in hp.text_fields]
    splits = {name: PreparedSplit(job.prepared / f"{name}.arrow", roles) for name in ("train", "val", "test")}
    timeline = [*job.phases, ("start workers", arrived - job.started - sum(s for _, s in job.phases))]

    def first_step(seconds: float) -> None:
        restart = job.restart
        if restart is not None:
            passed = time.time() - restart.at
            logger.info("training goes on %.1f s later (restart %d of %d)", passed, restart.number, restart.of)
            return
        timeline.append(("mesh, model, resume", time.time() - arrived - seconds))
        timeline.append(("first step", seconds))
        spent = ", ".join(f"{name} {spent:.1f} s" for name, spent in timeline)
        logger.info("first optimizer step done %.1f s after train began: %s", job.since_start(), spent)

    outcome = train_and_predict(job, ranks, data=data, splits=splits, stop=stop, first_step=first_step)
    dist.destroy_process_group()  # the rest is rank 0's alone; nobody waits in a collective for it
    if not ranks.is_first:
        return
    labels = {name: split.column("label").to_numpy() for name, split in splits.items()}
    decision = fit_decision(
        hp,
        logits=outcome.logits,
        labels=labels,
        train_counts=np.bincount(labels["train"][labels["train"] >= 0], minlength=hp.num_classes),
        class_weights=np.asarray(resolve_class_weights(hp, data.fitted.class_labels, data.summary)),
    )
    logger.info("decisions: %s", describe(decision))
    model = build_model(hp, data, pretrained=False)
    load_weights(model, outcome.checkpoint)
    merge_lora(model)
    variants: list[VariantReport] = []

    def add_variants(folder: Path) -> None:
        expected = decision.probabilities(outcome.logits["val"])
        variants.extend(write_variants(folder, model, hp, val=splits["val"], expected=expected))

    files = export_model(job, model, data=data, samples=splits["val"], decision=decision, add=add_variants)
    explanation = None
    if hp.explain:
        explanation = explain(
            model, data, splits["val"],
            records=hp.explain, batch_size=hp.batch_size, seed=hp.seed,
            device=ranks.device, stopped=lambda: stop.requested,
        )  # fmt: skip
    metrics, written = write_results(
        job,
        data=data,
        splits={name: splits[name] for name in outcome.logits},
        logits=outcome.logits,
        decision=decision,
        explanation=explanation,
        variants=variants,
        state=outcome.state,
        run=_run_facts(job, ranks, outcome, parameters=sum(parameter.numel() for parameter in model.parameters())),
    )
    logger.info("%s", metric_line(metrics))
    write_json(job.result_file, {"status": "completed", "model": files, "output": written, "metrics": metrics})


def build_model(hp: Hyperparameters, data: PreparedData, *, pretrained: bool = True) -> Classifier:
    """The plain model on the CPU, with adapters where lora_rank asks for them; without `pretrained` its weights are
    random, to be loaded from a checkpoint."""
    encoders = [data.encoders[field.role] for field in hp.text_fields]
    model = build_classifier(
        hp,
        encoders if pretrained else [EncoderConfigOnly(files.config_folder) for files in encoders],
        tabular_dim=data.tabular_dim,
        numeric_transform=data.fitted.numeric_transform,
        num_codes=data.fitted.num_codes,
    )
    add_lora(model, hp)
    return model


def _tokens_per_record(data: PreparedData) -> dict[str, float]:
    """Mean of each text in train, by role."""
    texts = data.summary["splits"]["train"]["texts"]
    return {role: text["tokens_per_record"]["mean"] for role, text in texts.items()}


def train_and_predict(
    job: Job,
    ranks: RankMesh,
    *,
    data: PreparedData,
    splits: dict[str, PreparedSplit],
    stop: StopFlag,
    first_step: Callable[[float], None],
) -> Outcome:
    """Train over the mesh, then predict val and test, in float32 as served, with the weights to be saved."""
    store = CheckpointStore(job.paths.checkpoints, keep=job.hp.keep_checkpoints)
    state = _train(job, ranks, store, data=data, splits=splits, stop=stop, first_step=first_step)
    checkpoint, weights = _choose_weights(job.hp, store, state)
    execution = parallelize(
        build_model(job.hp, data, pretrained=False),
        ranks,
        job.hp,
        precision=torch.float32,
        tokens_per_record=_tokens_per_record(data),
    )
    store.load_weights(checkpoint, execution.module)
    logits = {
        name: predict_split(
            execution,
            splits[name],
            batch_size=job.hp.batch_size,
            num_classes=job.hp.num_classes,
            between_batches=lambda: raise_if_stopped(ranks, stop),
        )
        for name in ("val", "test")
    }
    return Outcome(state, checkpoint, weights, logits)


def _train(
    job: Job,
    ranks: RankMesh,
    store: CheckpointStore,
    *,
    data: PreparedData,
    splits: dict[str, PreparedSplit],
    stop: StopFlag,
    first_step: Callable[[float], None],
) -> TrainingState:
    hp = job.hp
    model = build_model(hp, data)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    logger.info(
        "%s: %s parameters on %d x %s (%s)", hp.architecture.name, f"{parameters:,}", ranks.world_size,
        ranks.device.type, str(ranks.degrees),
    )  # fmt: skip
    if hp.lora_rank:
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        logger.info("lora_rank %d: %s of them are trained", hp.lora_rank, f"{trained:,}")
    if ranks.is_first and _is_unproven(model) and not any(job.paths.checkpoints.glob("*.ckpt")):
        rehearse_export(hp, data, splits["val"].pack(np.arange(min(4, len(splits["val"])))))
    execution = parallelize(model, ranks, hp, precision=precision_of(hp), tokens_per_record=_tokens_per_record(data))
    optimizer = build_optimizer(hp, execution.module)
    average = WeightAverage(execution.module, decay=hp.ema_decay)
    scaler = LossScaler.start(enabled=hp.fp16)
    batch_plan = BatchPlan(
        hp.batch_size // execution.microbatches,
        ranks.data_size,
        hp.accumulate_grad_batches * execution.microbatches,
    )
    own = identity(hp, data.fitted.fingerprint, data.digests)
    state, batch_plan = _resume(
        store, execution, optimizer, average=average, scaler=scaler, batch_plan=batch_plan, own=own
    )
    schedule = Schedule(
        len(splits["train"]), batch_plan.steps(len(splits["train"])), hp.max_epochs, hp.val_check_interval
    )
    progress = Progress(
        reports=ranks.is_first,
        total_steps=schedule.total_steps,
        max_epochs=hp.max_epochs,
        step=state.step,
        tensorboard=job.paths.tensorboard,
    )
    progress.hyperparameters(hp)
    trainer = Trainer(
        hp,
        execution,
        optimizer,
        average=average,
        class_weights=resolve_class_weights(hp, data.fitted.class_labels, data.summary),
        train=splits["train"],
        val=splits["val"],
        store=store,
        progress=progress,
        schedule=schedule,
        batch_plan=batch_plan,
        state=state,
        stop=stop,
        scaler=scaler,
        identity=own,
        profiler=StepProfiler(
            enabled=hp.profile,
            ranks=ranks,
            steps=schedule.total_steps - state.step,
            folder=job.paths.output_data / artifacts.PROFILE,
        ),
        first_step=first_step,
    )
    trainer.run()
    progress.close()
    return state


def _resume(
    store: CheckpointStore,
    execution: Execution,
    optimizer: torch.optim.Optimizer,
    *,
    average: WeightAverage,
    scaler: LossScaler,
    batch_plan: BatchPlan,
    own: dict[str, Any],
) -> tuple[TrainingState, BatchPlan]:
    """Return the newest complete checkpoint's state, or a fresh one, and the batch plan that keeps its steps."""
    checkpoint = store.newest()
    if checkpoint is None:
        return TrainingState(), batch_plan
    check_identity(checkpoint.content["identity"], own, folder=str(checkpoint.folder))
    batch_plan = resume_batch_plan(checkpoint.content["global_batch"], batch_plan, per_pass=execution.microbatches)
    store.load(checkpoint, execution.module, optimizer, average=average.state)
    scaler.load_state_dict(checkpoint.content["scaler"])
    state = TrainingState.from_dict(checkpoint.content["state"])
    logger.info("resuming from %s: %d steps are done", checkpoint.folder.name, state.step)
    return state, batch_plan


def _is_unproven(model: Classifier) -> bool:
    """Whether an encoder is of a family that our tests do not export."""
    encoders = [branch.encoder for branch in model.branches.values()]
    return any(isinstance(encoder, TextEncoder) and encoder.kind not in FAMILIES for encoder in encoders)


def _choose_weights(hp: Hyperparameters, store: CheckpointStore, state: TrainingState) -> tuple[Checkpoint, str]:
    """The checkpoint to evaluate and save, and, logged, what it is."""
    step = state.step
    if not hp.load_ckpt:
        chosen = f"the last (step {state.step}), because load_ckpt is false"
    elif state.best_step is None:
        chosen = f"the last (step {state.step}), because {hp.early_stop_metric} was never defined"
    elif state.best_step == state.step:
        chosen = f"the best by {hp.early_stop_metric} ({state.best_value:.6g}), which are the last (step {state.step})"
    else:
        step = state.best_step
        chosen = f"the best by {hp.early_stop_metric} ({state.best_value:.6g}, step {state.best_step} of {state.step})"
    checkpoint = store.at_step(step)
    if checkpoint is None:
        raise ContractError(
            f"checkpoints: the one to be evaluated and saved (step {step}) is gone or damaged",
            "Set load_ckpt=false to save the last weights, or resume=false to train again.",
        )
    if hp.ema_decay:
        chosen += f", averaged over steps (ema_decay {hp.ema_decay:g})"
    logger.info("evaluating and saving %s", chosen)
    return checkpoint, chosen


def _run_facts(job: Job, ranks: RankMesh, outcome: Outcome, *, parameters: int) -> dict[str, Any]:
    """What the report says of the run."""
    state = outcome.state
    return {
        "model class": job.hp.architecture.name,
        "encoders": ", ".join(field.tokenizer for field in job.hp.text_fields),
        "parameters": parameters,
        "processes": ranks.world_size,
        "device": ranks.device.type,
        "parallelism": str(ranks.degrees),
        "optimizer steps": state.step,
        "epochs": state.history[-1]["epoch"] if state.history else state.epoch,
        "stopped early": state.stopped_early,
        "skipped steps": state.skipped,
        "weights": outcome.weights,
        "seconds": round(job.since_start(), 1),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def main(arguments: Sequence[str]) -> int:
    """Entry point under torchrun; the only argument is job.json."""
    die_with_parent()
    rank = int(os.environ["RANK"])
    job = Job.read(Path(arguments[0]))
    set_up_logging(rank=rank, all_ranks=job.hp.log_all_ranks)
    stop = StopFlag()
    stop.listen(job.stop_file)
    write_json(job.pid_file(rank), os.getpid())  # from here on a SIGTERM is heard
    try:
        run(job, stop)
    except StopRequested:
        if rank == 0:
            write_json(job.result_file, {"status": "stopped"})
    except BaseException as error:
        try:
            failure = Failure.from_exception(error, rank=rank)
            print(f"[rank {rank}] {failure.cause}", flush=True)  # first: the disk may be full
            write_json(job.error_file(rank), asdict(failure))
            logging.shutdown()
        finally:
            os._exit(1)  # a collective in flight must not hold up the end of the job
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
