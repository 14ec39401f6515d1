"""An optimizer step of an encoder of a known shape: ours, and that of a plain loop over a Hugging Face model."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.encoders import Shape, build_model, chat_lengths, chats_of_lengths, hyperparameters
from container.data.batch import HostCopy, PackedBatch, use_side_stream
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import build_mesh, init_distributed
from container.parallel.parallelize import parallelize
from container.training.objective import WeightedCrossEntropy
from container.training.optimizer import build_optimizer, step_optimizer
from container.training.precision import forbid_tf32, precision_of
from container.training.step_graph import CudaCapture, StepGraphs
from contracts.ports import free_port
from testing.parity import HeldBytes

LR = 1e-5
GROUPED = 50  # batches from which Trainer makes batches of similar length
BATCHES = 6  # of these that a measurement takes


@dataclass(frozen=True)
class Batch:
    """A batch with the lengths of its real tokens."""

    inputs: Any
    lengths: tuple[int, ...]


def batch_lengths(shape: Shape, records: int, *, grouped: bool) -> list[list[int]]:
    """Return the lengths of BATCHES batches of `records` texts; the same texts in all, grouped by length or shuffled.

    They are the batches in the middle of BATCHES equal parts of all batches, in the order of their lengths: with those
    at both ends, grouped batches would have more tokens than an epoch's.
    """
    random = np.random.default_rng(0)
    lengths = sorted(chat_lengths(GROUPED * records, longest=shape.longest, random=random))
    batches = [lengths[start : start + records] for start in range(0, len(lengths), records)]
    chosen = [batches[int((part + 0.5) * GROUPED / BATCHES)] for part in range(BATCHES)]
    return chosen if grouped else random.permutation(np.concatenate(chosen)).reshape(BATCHES, records).tolist()


def init_one_process() -> None:
    """Join a process group of this process alone, as a worker does."""
    variables = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": free_port()}
    os.environ.update({name: str(value) for name, value in variables.items()}, MASTER_ADDR="127.0.0.1")
    os.environ.update(GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")  # this machine's name may not resolve
    if not dist.is_initialized():
        forbid_tf32()
        init_distributed(timeout_minutes=10)


class OurStep:
    """Forward, backward, clipping and AdamW, packed, as the training loop has them.

    Args:
        graphs: replay forward and backward as graphs; on a CPU, a stand-in computes again.
        update_graph: replay the update of the weights too.
        combo_kernels: let the compiler join independent kernels.
        settings: of the job, such as bf16, compile and activation_checkpointing.
    """

    first_tokens_only = True  # in the last layer

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        *,
        graphs: bool = False,
        update_graph: bool = False,
        combo_kernels: bool = False,
        **settings: Any,
    ) -> None:
        hp = hyperparameters(folder, shape, lr=LR, dropout=0.0, **settings)
        if combo_kernels:
            import torch._inductor.config  # of this process; takes a moment

            torch._inductor.config.combo_kernels = True
        self._ranks = build_mesh(ParallelDegrees.resolve(hp, 1))
        if graphs:
            use_side_stream(self._ranks.device)  # the default stream cannot be captured
        precision = precision_of(hp, self._ranks.device)
        model = build_model(folder, shape, hp, dropout=0.0).train()
        self._execution = parallelize(model, self._ranks, hp, precision=precision)
        self.graphs: StepGraphs | None = None
        if graphs:
            capture = CudaCapture() if self._ranks.device.type == "cuda" else _computed_again
            self.graphs = StepGraphs(self._execution.module, [shape.longest], capture=capture, must=True)
        self._execution.graphs = self.graphs
        optimizer = build_optimizer(hp, self._execution.module)
        self._optimizer, self._update = optimizer, partial(step_optimizer, optimizer)
        if update_graph and self.graphs is not None:
            self._update = self.graphs.update_of(optimizer)
        self._objective = WeightedCrossEntropy([1.0, 1.0], self._ranks.device)
        self._shape = shape
        self._norm: HostCopy | None = None

    def batches(self, records: int) -> list[Batch]:
        random, shuffled = np.random.default_rng(1), batch_lengths(self._shape, records, grouped=False)
        drawn = [chats_of_lengths(self._shape, lengths, random) for lengths in shuffled]
        if self.graphs is not None:
            drawn = self.graphs.fill(drawn)
        if self._ranks.device.type == "cuda":
            drawn = [batch.each(torch.Tensor.pin_memory) for batch in drawn]  # as the loader does
        return [Batch(batch, tuple(lengths)) for batch, lengths in zip(drawn, shuffled)]

    def __call__(self, batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a step and return the loss and the gradient norm before it, on the device."""
        normaliser = torch.full((), float(batch.num_records), device=self._ranks.device)
        self._optimizer.zero_grad(set_to_none=self.graphs is None)
        loss = self._execution.forward_backward(
            [batch.to(self._ranks.device)], objective=self._objective, normaliser=normaliser, scale_loss=_unscaled
        )
        norm = self._execution.gradient_norm(1.0)
        if self._norm is not None:
            self._norm.item()  # of the step before: as in the training loop, the host is one step ahead
        self._update(norm)
        self._norm = HostCopy(norm.value)
        return loss, norm.value

    def held_bytes(self) -> dict[str, int]:
        """Return the bytes of parameters, gradients and the optimizer's state after a step."""
        return asdict(HeldBytes.by(self._execution.module, self._optimizer))


class HuggingFaceStep:
    """The same with transformers' model, padded, scaled dot product attention and autocast, as Trainer runs it.

    Args:
        padded_to: tokens of every text; None: of the longest of a batch, with batches of similar length.
    """

    first_tokens_only = False

    def __init__(self, shape: Shape, device: str, *, padded_to: int | None) -> None:
        config = BertConfig(
            vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, intermediate_size=4 * shape.width, max_position_embeddings=shape.longest,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
        )  # fmt: skip
        self._model = BertForSequenceClassification(config).to(device).train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LR, fused=True)
        self._shape, self._device, self._padded_to = shape, device, padded_to

    def batches(self, records: int) -> list[Batch]:
        random, drawn = np.random.default_rng(1), batch_lengths(self._shape, records, grouped=self._padded_to is None)
        return [Batch(self._padded(each, random), tuple(each)) for each in drawn]

    def __call__(self, batch: dict[str, torch.Tensor]) -> None:
        inputs = {name: tensor.to(self._device, non_blocking=True) for name, tensor in batch.items()}
        with torch.autocast(self._device, torch.bfloat16):
            loss = self._model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _padded(self, lengths: Sequence[int], random: np.random.Generator) -> dict[str, torch.Tensor]:
        width = self._padded_to or max(lengths)
        mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
        tokens = torch.from_numpy(random.integers(1, self._shape.vocabulary, (len(lengths), width)))
        labels = torch.from_numpy(random.integers(0, 2, len(lengths)))
        tensors = {"input_ids": tokens * mask, "attention_mask": mask.long(), "labels": labels}
        return {name: tensor.pin_memory() if self._device == "cuda" else tensor for name, tensor in tensors.items()}


def _computed_again(work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    return work


def _unscaled(loss: torch.Tensor) -> torch.Tensor:
    return loss
