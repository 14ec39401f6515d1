"""Replay the forward and backward pass of a microbatch as a CUDA graph, one for each shape that occurs again.

The host launches about a thousand kernels for a microbatch; a graph is one launch. Its shapes are fixed, so batches are
filled (data/filling.py), and its inputs and gradients stay at their addresses. With cuda_graphs true, the optimizer's
step is a graph too.
"""

import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from container.data.batch import PackedBatch
from container.data.filling import filled, rounded_up, shapes_of
from container.job.log_once import log_once
from container.models.encoder import TextEncoder
from container.parallel.encoder_checks import graphs_are_impossible, reason_against_graphs
from container.parallel.execution import Execution, GradientNorm, Microbatch
from container.training.optimizer import step_optimizer
from contracts.errors import first_line
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

_MOST_GRAPHS = 32
_MORE_FREQUENT = 2  # times: a shape whose graph replaces another; a capture takes as long as several steps
_ROOM = 2.2  # times the activations of a microbatch: those of graphs, which stay, and those without a graph
_LARGEST_DIFFERENCE = 0.02  # relative, of loss and gradient norm: bfloat16 has 8 bits
Replay = Callable[[], Tensor]
Update = Callable[[GradientNorm], None]
Made = TypeVar("Made")


def step_graphs(hp: Hyperparameters, execution: Execution) -> "StepGraphs | None":
    """Return what computes the job's microbatches by graphs, as hp.cuda_graphs says; None: nothing does.

    Raises:
        ContractError: cuda_graphs is true where graphs cannot be used.
    """
    if hp.cuda_graphs is False:
        return None
    ranks = execution.ranks
    encoders = [branch.encoder for branch in execution.module.branches.values()]
    kinds = [encoder.kind for encoder in encoders if isinstance(encoder, TextEncoder)]
    has_gpu = ranks.device.type == "cuda"
    reason = reason_against_graphs(hp, kinds, processes=ranks.world_size, has_gpu=has_gpu)
    if reason is None:
        longest = [field.max_sen_len for field in hp.text_fields]
        return StepGraphs(execution.module, longest, capture=CudaCapture(), must=hp.cuda_graphs is True)
    if hp.cuda_graphs is True:
        raise graphs_are_impossible(reason)
    if has_gpu:
        log_once(logger, logging.INFO, f"cuda_graphs: auto: a step is not replayed as a graph: {reason}")
    return None


class StepGraphs:
    """Computes the microbatches of one process, by graphs where it can.

    The first batch of a shape is computed without a graph, and allocates what its kernels need. The second is computed
    in both ways: a graph is used if loss and gradients are equal.

    Args:
        module: whose gradients are computed.
        longest: most tokens of a chunk of each text.
        capture: returns what repeats a computation on the same addresses; it need not compute.
        must: raise ContractError if a microbatch cannot be captured, instead of going on without.
    """

    def __init__(
        self, module: nn.Module, longest: Sequence[int], *, capture: Callable[[Replay], Replay], must: bool
    ) -> None:
        self._module, self._capture, self._must = module, capture, must
        self._bounds = [(most, rounded_up(most, per_doubling=1)) for most in longest]
        self._counts: Counter[Hashable] = Counter()
        self._seen: OrderedDict[Hashable, PackedBatch] = OrderedDict()
        self._graphs: dict[Hashable, Graph] = {}
        self._makes_more = True

    def __len__(self) -> int:
        """Return the number of graphs."""
        return len(self._graphs)

    def fill(self, microbatches: Sequence[PackedBatch]) -> list[PackedBatch]:
        """Return the microbatches, on the host, filled to shapes that occur again; bounds of records only grow."""
        batches = []
        for batch in microbatches:
            batches.append(filled(batch, self._bounds))
            self._bounds = [(text.longest_chunk, text.longest_record) for text in batches[-1].texts]
        return batches

    def __call__(self, compute: Microbatch, batch: PackedBatch, normaliser: Tensor) -> Tensor:
        """Add the gradients of a filled batch, as `compute` does, and return its loss."""
        shapes = shapes_of(batch)
        self._counts[shapes] += 1
        if shapes in self._graphs:
            return self._graphs[shapes](batch, normaliser)
        first = self._seen.pop(shapes, None)
        if first is not None and self._may_have_graph(shapes):
            graph = self._made(partial(self._captured, compute, first, normaliser))
            if graph is not None:
                return self._compared(compute, graph, batch, normaliser)
        if self._makes_more:
            self._seen[shapes] = batch
            if len(self._seen) > _MOST_GRAPHS:
                self._seen.popitem(last=False)
        return compute(batch, normaliser)

    def update_of(self, optimizer: Optimizer) -> Update:
        """Return what updates the weights: with cuda_graphs true, a graph from the second step on."""
        if self._must:
            return UpdateGraph(optimizer, lambda work: self._made(lambda: self._capture(work)))
        return partial(step_optimizer, optimizer)

    def _may_have_graph(self, shapes: Hashable) -> bool:
        """Return whether there is room for one more graph, which that of a less frequent shape leaves."""
        if len(self._graphs) == _MOST_GRAPHS:
            rarest = min(self._graphs, key=self._counts.__getitem__)
            if self._counts[shapes] >= _MORE_FREQUENT * self._counts[rarest]:
                del self._graphs[rarest]
        return len(self._graphs) < _MOST_GRAPHS

    def _captured(self, compute: Microbatch, first: PackedBatch, normaliser: Tensor) -> "Graph | None":
        if not self._has_room(first.rows.device):
            self._stop_making()
            logger.warning("cuda_graphs: no more graphs are made: the activations of a microbatch do not fit twice")
            return None
        log_once(logger, logging.INFO, "cuda_graphs: microbatches whose shape occurs again are replayed as a graph")
        return Graph(compute, first, normaliser, capture=self._capture)

    def _made(self, make: Callable[[], Made]) -> Made | None:
        """Return what `make` captures; None if that is impossible, or was before."""
        try:
            return make() if self._makes_more else None
        except Exception as error:  # of several types
            lack = next(filter(_is_lack_of_memory, (error, error.__context__)), None)
            if lack is None:
                self._give_up(f"the step cannot be captured: {first_line(error)}")
            else:
                self._stop_making()
                self._graphs.clear()  # they need memory, too
                logger.warning("cuda_graphs: the job goes on without graphs: %s", first_line(lack))
        return None

    def _has_room(self, device: torch.device) -> bool:
        """Return whether a graph fits beside what is computed without one, and copies of the gradients to compare."""
        if device.type != "cuda":
            return True
        held, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        activations = torch.cuda.max_memory_allocated(device) - held
        copies = sum(weight.grad.nbytes for weight in self._module.parameters() if weight.grad is not None)
        return held + copies + _ROOM * activations < torch.cuda.mem_get_info(device)[0] + reserved

    def _compared(self, compute: Microbatch, graph: "Graph", batch: PackedBatch, normaliser: Tensor) -> Tensor:
        """Compute with the graph, then as `compute` does, from the same state; keep the graph if both are equal."""
        gradients = [weight.grad for weight in self._module.parameters() if weight.grad is not None]
        before, random = [gradient.clone() for gradient in gradients], _random_state(batch.rows.device)
        of_graph = _scalars(graph(batch, normaliser), gradients)
        torch._foreach_copy_(gradients, before)  # pyright: ignore[reportPrivateImportUsage]
        _set_random_state(batch.rows.device, random)
        loss = compute(batch, normaliser)
        expected = _scalars(loss, gradients)
        if all(abs(ours - value) <= _LARGEST_DIFFERENCE * abs(value) for ours, value in zip(of_graph, expected)):
            self._graphs[shapes_of(batch)] = graph
        elif all(map(math.isfinite, expected)):
            self._give_up(f"loss and gradient norm of a graph are {of_graph}, and {expected} without it")
        return loss

    def _stop_making(self) -> None:
        self._makes_more = False
        self._seen.clear()

    def _give_up(self, reason: str) -> None:
        if self._must:
            raise graphs_are_impossible(reason)
        self._stop_making()
        self._graphs.clear()
        logger.warning("cuda_graphs: auto: the job goes on without graphs: %s", reason)


class Graph:
    """A captured microbatch: static inputs, and what repeats the computation.

    Args:
        first: a batch of the shapes; only the number of its chunks and records is known during the capture.
    """

    def __init__(
        self, compute: Microbatch, first: PackedBatch, normaliser: Tensor, *, capture: Callable[[Replay], Replay]
    ) -> None:
        self._tensors: list[Tensor] = []
        self.batch, self._normaliser = first.each(self._static).without_lengths(), normaliser.clone()
        self._replay = capture(lambda: compute(self.batch, self._normaliser))

    def _static(self, tensor: Tensor) -> Tensor:
        self._tensors.append(tensor.clone())
        return self._tensors[-1]

    def __call__(self, batch: PackedBatch, normaliser: Tensor) -> Tensor:
        static = iter(self._tensors)
        self.batch = batch.each(lambda tensor: next(static).copy_(tensor, non_blocking=True))
        self._normaliser.copy_(normaliser)
        return self._replay()


class UpdateGraph:
    """Updates the weights by step_optimizer; again by a graph, if the same weights have gradients.

    The graph reads learning rates, and what the norm decides, from a tensor of its own. The optimizer keeps numbers, as
    in a checkpoint.
    """

    def __init__(self, optimizer: Optimizer, capture: Callable[[Replay], Replay | None]) -> None:
        self._optimizer, self._capture = optimizer, capture
        groups = optimizer.param_groups
        self._weights = [weight for group in groups for weight in group["params"]]
        self._scales = torch.tensor([group["lr_scale"] for group in groups], device=self._weights[0].device)
        self._graphs: dict[Hashable, tuple[Replay | None, Tensor]] = {}

    def __call__(self, norm: GradientNorm) -> None:
        key = tuple(weight.grad is not None for weight in self._weights)
        replay, static = self._graphs.get(key, (None, None))
        if replay is not None and static is not None:
            static.copy_(self._values(norm))
            replay()
            return
        step_optimizer(self._optimizer, norm)  # creates the optimizer's state
        if key not in self._graphs:
            static = self._values(norm)
            self._graphs[key] = self._capture(partial(self._work, norm, static)), static

    def _values(self, norm: GradientNorm) -> Tensor:
        """Return whether to skip the step, the divisor, and the learning rate of each group. [2 + G]"""
        first = self._optimizer.param_groups[0]
        rates = self._scales * (first["lr"] / first["lr_scale"])  # a tensor of numbers would wait for its copy
        return torch.cat(
            [norm.nonfinite[None], (norm.nonfinite if norm.divisor is None else norm.divisor)[None], rates]
        )

    def _work(self, norm: GradientNorm, static: Tensor) -> Tensor:
        optimizer, groups = self._optimizer, self._optimizer.param_groups
        skip, divisor, *rates = static.unbind()
        optimizer.param_groups = [{**group, "lr": rate, "capturable": True} for group, rate in zip(groups, rates)]
        try:
            step_optimizer(optimizer, GradientNorm(norm.value, None if norm.divisor is None else divisor, skip))
        finally:
            optimizer.param_groups = groups
        return skip


class CudaCapture:
    """Captures on the current stream; all graphs share one pool of memory, because one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Replay) -> Replay:
        graph = torch.cuda.CUDAGraph()
        # thread_local: the prefetch thread pins memory meanwhile.
        stream = torch.cuda.current_stream()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.clone_state()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                loss = work()
        except Exception:
            generator.graphsafe_set_state(before)  # torch 2.11 leaves it in the capture: no mask could be drawn
            raise

        def replay() -> Tensor:
            graph.replay()
            return loss

        return replay


@contextmanager
def capture_stream(device: torch.device) -> Iterator[None]:
    """Run the block on a stream that can be captured: gradients are added on the stream of their first backward."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


def _is_lack_of_memory(error: BaseException | None) -> bool:
    """Return whether torch's allocator lacks memory, or CUDA does, for example to instantiate a graph."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error)


def _scalars(loss: Tensor, gradients: list[Tensor]) -> list[float]:
    """Return the loss and the norm of the gradients; the host waits for them."""
    norms = torch.stack(torch._foreach_norm(gradients))  # pyright: ignore[reportPrivateImportUsage]
    return torch.stack([loss.double(), norms.double().norm()]).tolist()


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
