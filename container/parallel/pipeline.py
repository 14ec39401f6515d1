"""Pipeline parallelism: stages on different ranks, run with torch.distributed.pipelining.

Every rank of a pipeline has the same microbatches, so ranks send only activations. Schedules allocate fixed buffers, so
sent activations are padded to a budget of tokens and records. Computation is not padded.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from container.data.batch import PackedBatch
from container.data.filling import rounded_up
from container.job.log_once import log_once
from container.models.blocks import Carry, flatten, restrict
from container.models.classifier import Classifier
from container.parallel.degrees import MODEL_AXES
from container.parallel.execution import Autocast, Execution, Objective
from container.parallel.mesh import RankMesh
from container.parallel.sharding import reshard
from container.parallel.stage_clock import StageClock
from container.parallel.stages import Budget, Stage, plan_stages, real_rows, stage_table
from contracts.consistency import microbatches_of
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

# Buffers grow by at most an eighth at a time: few rebuilds, and little padding is sent.
_STEPS_PER_DOUBLING = 8
_PARTS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")  # what a schedule calls of a stage


@dataclass(frozen=True)
class Schedule:
    """A value of pp_schedule.

    Attributes:
        stages_per_rank: 2 if each rank has two shorter stages, which makes the bubble shorter.
        folded: the second stages are placed from the last rank back to the first (V), not from the first again (loop).
    """

    build: type
    stages_per_rank: int = 1
    folded: bool = False

    def rank_of(self, stage: int, num_ranks: int) -> int:
        """Return the rank along pp that has `stage`."""
        lap, rank = divmod(stage, num_ranks)
        return num_ranks - 1 - rank if self.folded and lap % 2 else rank


SCHEDULES: dict[str, Schedule] = {
    "GPipe": Schedule(ScheduleGPipe),
    "1F1B": Schedule(Schedule1F1B),
    "Interleaved1F1B": Schedule(ScheduleInterleaved1F1B, stages_per_rank=2),
    "InterleavedZeroBubble": Schedule(ScheduleInterleavedZeroBubble, stages_per_rank=2),
    "ZBVZeroBubble": Schedule(ScheduleZBVZeroBubble, stages_per_rank=2, folded=True),
}


def build_pipeline(
    model: Classifier,
    ranks: RankMesh,
    hp: Hyperparameters,
    *,
    autocast: Autocast,
    shard: Callable[[nn.Module], None],
    tokens_per_record: Mapping[str, float] | None = None,
) -> "PipelineExecution":
    """Split `model` into stages and keep this rank's, in place.

    Args:
        model: the plain model, or the result of tensor or branch parallelism; the same blocks on every rank of pp.
        shard: applied to each stage of this rank; shards it if there is a data axis.
        tokens_per_record: mean of each text by role, to balance the stages; max_sen_len by default.
    """
    schedule, num_ranks = SCHEDULES[hp.pp_schedule], ranks.size("pp")
    rank_of = [schedule.rank_of(stage, num_ranks) for stage in range(num_ranks * schedule.stages_per_rank)]
    plans = plan_stages(model, hp, rank_of=rank_of, tokens_per_record=tokens_per_record)
    if ranks.is_first:
        log_once(
            logger, logging.INFO, f"pipeline of {len(plans)} stages ({hp.pp_schedule}):\n{stage_table(plans, rank_of)}"
        )
    dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
    local_plans = [plan for plan, rank in zip(plans, rank_of) if rank == ranks.coordinate("pp")]
    stages = [Stage(model, plan, autocast=autocast, dtype=dtype) for plan in local_plans]
    restrict(model, [block for plan in local_plans for block in plan.blocks], within=flatten(model), in_place=True)
    for stage in stages:
        shard(stage)
        keep_gathered(stage, hp)
        # Before the hooks of fully_shard, which would move the index to the device.
        stage.register_forward_pre_hook(_select_microbatch, prepend=True, with_kwargs=True)
    clock = StageClock(ranks, costs=[plan.cost for plan in plans], rank_of=rank_of)
    return PipelineExecution(
        model, ranks, hp, schedule=schedule, stages=stages, rank_of=rank_of, dtype=dtype, clock=clock
    )


class _ConnectedStage(PipelineStage):
    """A stage of torch 2.11, which opens connections by a first exchange, without messages of a rank to itself.

    In a folded schedule, neighbouring stages are on one rank; gloo sends nothing to the rank itself.
    """

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]


class PipelineExecution(Execution):
    """Runs steps through a pipeline of stages, `num_microbatches` microbatches in each pass.

    Args:
        module: this rank's blocks of the plain model.
        stages: this rank's stages, in order.
        rank_of: the rank along pp of every stage.
        dtype: dtype of the sent activations.
        clock: measures the stages.
    """

    def __init__(
        self,
        module: Classifier,
        ranks: RankMesh,
        hp: Hyperparameters,
        *,
        schedule: Schedule,
        stages: Sequence[Stage],
        rank_of: Sequence[int],
        dtype: torch.dtype,
        clock: StageClock,
    ) -> None:
        super().__init__(module, ranks)
        self.num_microbatches = microbatches_of(hp, ranks.size("pp"))
        self._num_classes = hp.num_classes
        self._schedule = schedule
        self._stages = stages
        self._rank_of = rank_of
        self._dtype = dtype
        self._clock = clock
        self._budget: Budget | None = None
        self._run_pass: Callable[..., Any]
        self._microbatch_loss: Callable[[Tensor, Tensor], Tensor]
        self._group = ranks.group("pp")
        # The last stage has the result; ranks along the other model axes have copies of it.
        is_copy = any(ranks.coordinate(axis) for axis in MODEL_AXES if axis != "pp")
        self._has_result = self._is_here(len(rank_of) - 1) and not is_copy

    def forward_backward(
        self,
        microbatches: Sequence[PackedBatch],
        *,
        objective: Objective,
        normaliser: Tensor,
        scale_loss: Callable[[Tensor], Tensor],
    ) -> Tensor:
        assert len(microbatches) % self.num_microbatches == 0, "the loop gives whole passes"
        loss_sum = torch.zeros((), device=self.ranks.device)

        def microbatch_loss(logits: Tensor, index: Tensor) -> Tensor:
            batch = self._stages[-1].in_flight[int(index)]
            loss = objective(logits[: len(batch.rows)], batch) / normaliser
            loss_sum.add_(loss.detach())
            return scale_loss(loss)

        self._microbatch_loss = microbatch_loss
        grown = self._grow(microbatches)
        index = torch.arange(self.num_microbatches)
        for start in range(0, len(microbatches), self.num_microbatches):
            in_flight = microbatches[start : start + self.num_microbatches]
            for stage in self._stages:
                stage.in_flight, stage.budget = in_flight, self._budget
            self._run_pass(microbatch=index, target=index, return_outputs=False)
        if grown:
            trained = [(name, weight) for name, weight in self.module.named_parameters() if weight.requires_grad]
            missing = [name for name, weight in trained if weight.grad is None]
            assert not missing, f"{len(missing)} weights got no gradient, e.g. {missing[0]}"
        return loss_sum if self._has_result else loss_sum.zero_()

    @torch.no_grad()
    def predict(self, microbatches: Sequence[PackedBatch]) -> list[Tensor] | None:
        """See Execution.predict. Each stage runs all microbatches; the next stage starts after the first of them.

        The schedule's own eval is not used: it rebuilds its buffers at every change between training and evaluation,
        and the folded schedule fails without a backward pass.
        """
        sent: list[tuple[dist.Work | None, Tensor]] = []
        outputs: list[Any] = []
        for stage in self._stages:
            stage.budget = None
            local_inputs, outputs = outputs, []
            before, after = self._neighbour_rank(stage, -1), self._neighbour_rank(stage, +1)
            unsent: list[Tensor] = []
            for i, batch in enumerate(microbatches):
                if before is not None:
                    received = self._receive(stage, batch, before)
                else:
                    received = local_inputs[i] if local_inputs else ()
                outputs.append(stage(*received, batch=batch))
                unsent += outputs[-1] if after is not None else ()
                # Both ranks need the same order of messages: if `after` is also `before`, receive everything first.
                if after != before or i == len(microbatches) - 1:
                    sent += [(dist.isend(part, group=self._group, group_dst=after), part) for part in unsent]
                    unsent = []
        for work, _ in sent:
            assert work is not None, "this rank is in the group"
            work.wait()
        return outputs if self._has_result else None

    def figures(self, *, detail: bool) -> dict[str, float]:
        return self._clock.figures(detail=detail)

    def reshard(self) -> None:
        for stage in self._stages:
            reshard(stage)

    def _is_here(self, stage: int) -> bool:
        return self._rank_of[stage] == self.ranks.coordinate("pp")

    def _neighbour_rank(self, stage: Stage, offset: int) -> int | None:
        """Return the rank along pp of the stage before or after `stage`; None if there is none or this rank has it."""
        index = stage.plan.index + offset
        return self._rank_of[index] if 0 <= index < len(self._rank_of) and not self._is_here(index) else None

    def _receive(self, stage: Stage, batch: PackedBatch, rank: int) -> list[Tensor]:
        carry = stage.plan.receives
        counts = real_rows(batch, self.module.text_indices).rows(carry)
        received = [self._empty(count, width) for count, width in zip(counts, carry.widths, strict=True)]
        for tensor in received:
            dist.recv(tensor, group=self._group, group_src=rank)
        return received

    def _grow(self, microbatches: Sequence[PackedBatch]) -> bool:
        """Rebuild the schedule if its buffers are too small for `microbatches`; all its ranks do the same."""
        needs = [real_rows(batch, self.module.text_indices) for batch in microbatches]
        if self._budget is not None:
            needs.append(self._budget)
        counts = (max(counts) for counts in zip(*(need.tokens for need in needs)))
        tokens = tuple(rounded_up(count, per_doubling=_STEPS_PER_DOUBLING) for count in counts)
        budget = Budget(tokens, max(need.records for need in needs))
        if budget == self._budget:
            return False
        self._budget = budget
        stages = [
            _ConnectedStage(
                stage,
                stage.plan.index,
                len(self._rank_of),
                self.ranks.device,
                input_args=self._example(stage.plan.receives),
                output_args=self._example(stage.plan.sends)
                or (self._empty(budget.records, self._num_classes, device="meta"),),
                group=self._group,
                # torch's weight pass does not find weights that are used several times. This empty one leaves their
                # gradients to the input pass.
                dw_builder=(lambda: lambda: None) if stage.plan.reuses_weights else None,
            )
            for stage in self._stages
        ]
        for stage in stages:
            for part in _PARTS:
                setattr(stage, part, self._clock.timed(getattr(stage, part), stage.stage_index))
        runner = self._schedule.build(
            stages if self._schedule.stages_per_rank > 1 else stages[0],
            self.num_microbatches,
            loss_fn=lambda logits, index: self._microbatch_loss(logits, index),  # noqa: PLW0108  set by each step
            scale_grads=False,
        )
        self._run_pass = self._clock.timed(runner.step)
        return True

    def _example(self, carry: Carry) -> tuple[Tensor, ...]:
        """Return the tensors of `carry` on the meta device. All require gradients, as zero-bubble schedules expect."""
        assert self._budget is not None
        counts = self._budget.rows(carry)
        return tuple(
            self._empty(count, width, device="meta").requires_grad_()
            for count, width in zip(counts, carry.widths, strict=True)
        )

    def _empty(self, count: int, width: int, *, device: str | None = None) -> Tensor:
        return torch.empty(count, width, dtype=self._dtype, device=device or self.ranks.device)


def keep_gathered(stage: Stage, hp: Hyperparameters) -> None:
    """Free a stage's gathered parameters after its last microbatch, not after each forward.

    The backward passes of other microbatches keep them anyway. The weight pass of a zero-bubble schedule does not find
    freed parameters, and silently loses their gradients.
    """
    if isinstance(stage, FSDPModule):
        stage.set_reshard_after_forward(False)
        if hp.sharding_strategy == "FULL_SHARD":
            log_once(
                logger,
                logging.INFO,
                "FULL_SHARD: a pipeline stage's parameters stay gathered from its first microbatch to its last",
            )


def _select_microbatch(stage: Stage, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Replace the index that a schedule passes by its microbatch; predictions pass the microbatch itself."""
    if "microbatch" in kwargs:
        kwargs = {"batch": stage.in_flight[int(kwargs["microbatch"])]}
    return args, kwargs
