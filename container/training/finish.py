"""Finish a trained job on rank 0: fit the decision, export the model, explain it, write the results."""

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from container.decision.decision import Decision
from container.evaluation.fit_decision import describe, fit_decision
from container.evaluation.variant_report import VariantReport
from container.export.artifacts import export_model
from container.job import Job, write_json
from container.models.classifier import Classifier
from container.models.lora import merge_lora
from container.parallel.mesh import RankMesh
from container.training.checkpoint import load_weights
from container.training.explain import explain
from container.training.job_data import JobData
from container.training.onnx_variants import write_variants
from container.training.progress import metric_line
from container.training.results import write_results
from container.training.stop import StopFlag
from container.training.train import Trained, build_model

logger = logging.getLogger(__name__)


def finish(job: Job, ranks: RankMesh, trained: Trained, *, data: JobData, stop: StopFlag) -> None:
    """Write every artifact of the job, then job.result_file."""
    hp, val = job.hp, data.splits["val"]
    decision = _fit_decision(job, trained, data)
    model = build_model(hp, data.prepared, pretrained=False)
    load_weights(model, trained.checkpoint)
    merge_lora(model)
    variants: list[VariantReport] = []

    def add_variants(folder: Path) -> None:
        expected = decision.probabilities(trained.logits["val"])
        variants.extend(write_variants(folder, model, hp, val=val, expected=expected))

    files = export_model(job, model, data=data.prepared, samples=val, decision=decision, add=add_variants)
    explanation = None
    if hp.explain:
        explanation = explain(
            model, data.prepared, val,
            records=hp.explain, batch_size=hp.batch_size, seed=hp.seed,
            device=ranks.device, stopped=lambda: stop.requested,
        )  # fmt: skip
    metrics, written = write_results(
        job,
        data=data,
        logits=trained.logits,
        decision=decision,
        explanation=explanation,
        variants=variants,
        state=trained.state,
        run=_run_facts(job, ranks, trained, model),
    )
    logger.info("%s", metric_line(metrics))
    write_json(job.result_file, {"status": "completed", "model": files, "output": written, "metrics": metrics})


def _fit_decision(job: Job, trained: Trained, data: JobData) -> Decision:
    labels = {name: split.column("label").to_numpy() for name, split in data.splits.items()}
    decision = fit_decision(
        job.hp,
        logits=trained.logits,
        labels=labels,
        train_counts=np.bincount(labels["train"][labels["train"] >= 0], minlength=job.hp.num_classes),
        class_weights=np.asarray(data.class_weights),
    )
    logger.info("decisions: %s", describe(decision))
    return decision


def _run_facts(job: Job, ranks: RankMesh, trained: Trained, model: Classifier) -> dict[str, Any]:
    """Return what the report says about the run."""
    state = trained.state
    return {
        "model class": job.hp.architecture.name,
        "encoders": ", ".join(field.tokenizer for field in job.hp.text_fields),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "processes": ranks.world_size,
        "device": ranks.device.type,
        "parallelism": str(ranks.degrees),
        "optimizer steps": state.step,
        "epochs": state.history[-1]["epoch"] if state.history else state.epoch,
        "stopped early": state.stopped_early,
        "skipped steps": state.skipped,
        "weights": trained.weights,
        "seconds": round(job.timeline.elapsed(), 1),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
