"""How often the host waits for a GPU. Tensors on the meta device take the paths of a GPU, and compute nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from container.data.batch import PackedBatch
from container.data.loader import step_batches
from container.data.sampler import BatchPlan
from container.models.build import build_classifier
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import RankMesh
from container.parallel.parallelize import parallelize
from container.preprocessing.prepared import EncoderFiles
from container.training.average import WeightAverage
from container.training.job_data import JobData
from container.training.loop import Trainer
from container.training.precision import LossScaler
from container.training.predict import predict_split
from container.training.state import TrainingState, ValidationSchedule
from contracts.model_classes import MODEL_CLASSES
from testing.encoder_families import (
    PACKED_FAMILIES,
    hyperparameters,
    packed_batch,
    standard_transform,
    write_config,
)
from tests.training.test_predict import Split

CHUNKS = [[5], [9, 3], [2]]
META = torch.device("meta")


class Waits(TorchDispatchMode):
    """Records the operations of a block for which the host waits for the device, and answers them with 1."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(operation.overloadpacket).removeprefix("aten.")
        tensors = [part for part in tree_leaves(args) if isinstance(part, torch.Tensor)]
        on_device = [tensor for tensor in tensors if tensor.device == META]
        if name == "_local_scalar_dense" and on_device:
            self.found.append(name)
            return 1.0
        has_mask = any(tensor.dtype == torch.bool for tensor in on_device)
        if on_device and (name in {"nonzero", "masked_select"} or (name in {"index", "index_put_"} and has_mask)):
            self.found.append(name)
        if name == "_to_copy" and torch.device(kwargs.get("device") or tensors[0].device) != tensors[0].device:
            if not kwargs.get("non_blocking"):
                self.found.append(f"{name} from {tensors[0].device}")
            if on_device:
                return torch.zeros(tensors[0].shape, dtype=tensors[0].dtype)
        return operation(*args, **kwargs)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    write_config(folder, "bert")
    return str(folder)


@pytest.fixture(autouse=True)
def meta_has_fused_optimizers(monkeypatch):
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["meta"])


def trainer(encoder: str, model_class: str, **settings: Any) -> tuple[Trainer, PackedBatch]:
    """A trainer of a model on the meta device, and a batch on the host."""
    hp = hyperparameters(model_class=model_class, tokenizer=encoder, ema_decay=0.9, **settings)
    columns = 0 if hp.architecture.table == "none" else 3
    files = [EncoderFiles(Path(encoder)) for _ in hp.text_fields]
    model = build_classifier(hp, files, tabular_dim=columns, numeric_transform=standard_transform(columns))
    ranks = RankMesh(META, None, ParallelDegrees(), rank=0, world_size=1, coordinates={})
    execution = parallelize(model, ranks, hp, precision=torch.float32)
    groups = [{"params": list(model.parameters()), "lr_scale": 1.0}]
    run = SimpleNamespace(
        execution=execution,
        optimizer=torch.optim.AdamW(groups, lr=0.1, fused=True),
        average=WeightAverage(model, decay=hp.ema_decay),
        scaler=LossScaler.start(enabled=hp.fp16),
        batch_plan=BatchPlan(4, 1),
        state=TrainingState(),
    )
    val = SimpleNamespace(column=lambda _: pa.chunked_array([[0]]))
    fitted = SimpleNamespace(fitted=SimpleNamespace(class_labels=(0, 1)))
    found = Trainer(
        SimpleNamespace(hp=hp),
        run,
        data=JobData(fitted, {"train": val, "val": val}, [1.0, 2.0]),
        schedule=ValidationSchedule(100, 25, 1, 1.0),
        progress=SimpleNamespace(step=lambda **_: None),
        profiler=None,
        stop=SimpleNamespace(requested=False),
    )
    found._has_stepped = True
    texts = [CHUNKS] * len(hp.text_fields)
    return found, packed_batch(*texts, tabular_dim=columns)


@pytest.mark.parametrize("model_class", MODEL_CLASSES)
def test_a_step_waits_for_the_device_never(encoder, model_class):
    training, batch = trainer(encoder, model_class)
    with Waits() as waits:
        for _ in range(2):  # the second reads the norm of the first
            training._step([batch], [batch])
    assert waits.found == []
    assert training._taken.step == 1


def test_a_step_in_float16_waits_for_the_norm_that_decides_about_the_scale(encoder):
    training, batch = trainer(encoder, "bert", fp16=True)
    with Waits() as waits:
        training._step([batch], [batch])
    assert waits.found == []
    assert training._taken is None, "it was read"


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("family", PACKED_FAMILIES)
def test_a_step_of_every_packed_family_waits_for_none_of_its_microbatches(tmp_path, family, microbatches):
    write_config(tmp_path, family)
    training, batch = trainer(str(tmp_path), "bert")
    with Waits() as waits:
        training._step([batch] * microbatches, [batch] * microbatches)
    assert waits.found == []


def test_a_step_that_is_divided_by_tokens_does_not_wait(encoder):
    training, _ = trainer(encoder, "bert", batch_size=6, max_tokens_per_batch=2)
    batch_plan = BatchPlan.of(training._hp, data_parallel_size=1, per_pass=1, passes=1)
    (microbatches,) = step_batches(Split(6, tokens=1), np.arange(6), batch_plan=batch_plan, data_rank=0)
    assert len(microbatches) == 3
    with Waits() as waits:
        training._step(microbatches, microbatches)
    assert waits.found == []


@pytest.mark.parametrize("max_tokens_per_batch", [0, 2])
def test_a_prediction_waits_for_the_device_only_after_its_last_batch(encoder, max_tokens_per_batch):
    training, _ = trainer(encoder, "bert", batch_size=4, max_tokens_per_batch=max_tokens_per_batch)
    waits_by_records = []
    for records in (4, 20):
        with Waits() as waits:
            split = Split(records, tokens=1)
            predict_split(training._execution, split, hp=training._hp, stop=SimpleNamespace(requested=False))
        waits_by_records.append(waits.found)
    assert waits_by_records == [["_local_scalar_dense", "_to_copy from meta"]] * 2


def test_a_batch_is_copied_to_a_device_without_waiting_and_back_with_waiting():
    batch = packed_batch(CHUNKS, tabular_dim=3)
    tensors = [value for part in (batch, *batch.texts) for value in vars(part).values() if torch.is_tensor(value)]
    with Waits() as waits:
        on_device = batch.to(META)
        assert waits.found == []
        on_device.to("cpu")
    assert waits.found == ["_to_copy from meta"] * len(tensors)
