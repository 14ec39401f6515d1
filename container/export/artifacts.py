"""Write the model/ folder atomically."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir
import torch
from torch import nn

from container.companion.blend import BlendedCompanion
from container.data.batch import PackedBatch
from container.data.split import PreparedSplit
from container.decision.decision import Decision
from container.export.onnx import export_onnx
from container.job.job import Job
from container.models.ensemble import Network
from container.preprocessing.prepared import PreparedData
from container.serving.model_files import write_model_files
from contracts import artifacts
from contracts.atomic_files import replace_together
from contracts.file_systems import copy_folder
from contracts.other_programs import is_foreign
from contracts.settings.outcome import ONNX_VARIANTS

logger = logging.getLogger(__name__)

_PARITY_RECORDS = 24


def export_model(
    job: Job,
    model: Network,
    *,
    data: PreparedData,
    samples: PreparedSplit,
    decision: Decision,
    companion: BlendedCompanion | None,
    add: Callable[[Path], None],
    of_ensemble: list[onnx_ir.Function],
) -> dict[str, int]:
    """Write every artifact, check ONNX against PyTorch on records of `samples`, then move all into model/.

    Args:
        add: writes more files into the given folder before it becomes model/.
        of_ensemble: an empty list for the functions of the exported networks, which `add` may use.

    Returns:
        The size in bytes of each file, by its path relative to model/.
    """
    model.eval()
    with replace_together(job.paths.model, _earlier_files(job.paths.model)) as staging:
        torch.save(plain_state(model), staging / artifacts.MODEL_STATE)
        data.fitted.save(staging)
        decision.save(staging)
        if companion is not None:
            companion.save(staging)
        if job.hp.text_fields:
            copy_folder(job.prepared / artifacts.TOKENIZER, staging / artifacts.TOKENIZER)
        hyperparameters = job.hp.model_dump(mode="json")
        (staging / artifacts.HYPERPARAMETERS).write_text(json.dumps(hyperparameters, indent=2))
        torch.save(_model_artifacts(job, model, data), staging / artifacts.MODEL_ARTIFACTS)
        batches = parity_batches(samples)
        path = staging / artifacts.MODEL_ONNX
        parts = {"decision": decision, "companion": companion, "of_ensemble": of_ensemble}
        report = export_onnx(model, job.hp, path, samples=batches, **parts)
        logger.info("model.onnx: %s", report)
        add(staging)
        written = [path for path in sorted(staging.rglob("*")) if path.is_file() and not is_foreign(path)]
        written.append(write_model_files(staging, written))
        files = {str(path.relative_to(staging)): path.stat().st_size for path in written}
    return files


def parity_batches(samples: PreparedSplit) -> list[PackedBatch]:
    """Return up to 24 records, spread over `samples`, in batches of similar lengths: padding is computed too."""
    count = min(_PARITY_RECORDS, len(samples))
    positions = np.unique(np.linspace(0, len(samples) - 1, count).astype(np.int64))
    positions = positions[np.argsort(samples.token_counts(positions), kind="stable")]
    return [samples.pack(part) for part in np.array_split(positions, min(3, count))]


def plain_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state dict as contiguous CPU tensors, under the names of the model without parallelism."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def _model_artifacts(job: Job, model: nn.Module, data: PreparedData) -> dict[str, object]:
    """Return the content of model_artifacts.pth: plain values and tensors only, so that weights_only loads it."""
    labels = list(data.fitted.class_labels)
    return {
        "config": job.hp.model_dump(mode="json"),
        **(_words(job, model) if job.hp.text_fields else {}),
        "model_class": job.hp.architecture.name,
        "categorical_processor_mappings": json.loads(
            (job.prepared / f"{artifacts.RISK_TABLE_MAP}.json").read_text(encoding="utf-8")
        ),
        "label_to_id": {str(label): i for i, label in enumerate(labels)},
        "id_to_label": labels,
    }


def _words(job: Job, model: nn.Module) -> dict[str, object]:
    """Return the vocabulary of the first text, and the vectors of its tokens."""
    tokenizer = job.prepared / artifacts.tokenizer_folder(job.hp.text_fields[0].role) / "tokenizer.json"
    vocabulary = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: [token, score] pairs in the order of their ids
        vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
    embeddings = next(module.weight for module in model.modules() if isinstance(module, nn.Embedding))
    return {"embedding_mat": embeddings.detach().cpu().clone(), "vocab": vocabulary}


def _earlier_files(folder: Path) -> list[Path]:
    """Return what an earlier run may have written that this run does not write."""
    graphs = [name(variant) for variant in ONNX_VARIANTS for name in (artifacts.onnx_file, artifacts.head_file)]
    weights = [f"{name}.data" for name in (artifacts.MODEL_ONNX, *graphs)]
    return [folder / name for name in (artifacts.COMPANION, artifacts.TOKENIZER, *graphs, *weights)]
