"""Split the weights of modules over the ranks of a mesh axis, as DTensors; compute on their local parts.

DTensors are used only for communication; matrix products use plain tensors. For each new number of tokens, DTensor
computes the placement of every operation again, and packed microbatches rarely repeat a number of tokens. That took
65 ms per microbatch of two encoders, more than all other work on the host.
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from container.models.attention import change_hidden_inputs
from container.parallel.execution import local_part


def enter(hidden: Tensor, mesh: DeviceMesh, outside: Placement) -> Tensor:
    """Return all of `hidden`, whose placement is `outside`, on every rank; its gradients are summed over the ranks."""
    placed = DTensor.from_local(hidden, mesh, [outside], run_check=False)
    return placed.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def leave(summands: Tensor, mesh: DeviceMesh, outside: Placement) -> Tensor:
    """Return the sum of the ranks' `summands` with placement `outside`."""
    placed = DTensor.from_local(summands, mesh, [Partial()], run_check=False)
    return placed.redistribute(placements=[outside]).to_local()


def gather(local: Tensor, mesh: DeviceMesh, *, dim: int) -> Tensor:
    """Concatenate the ranks' `local` tensors along `dim`, on every rank; all ranks must then compute the same."""
    placed = DTensor.from_local(local, mesh, [Shard(dim)], run_check=False)
    return placed.redistribute(placements=[Replicate()]).to_local()


def shared(parameter: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return `parameter`, the same on every rank; its gradient is the sum of the ranks' gradients."""
    replicas = DTensor.from_local(parameter, mesh, [Replicate()], run_check=False)
    return replicas.to_local(grad_placements=[Partial()])


def prepare_input(module: nn.Module, mesh: DeviceMesh, *, outside: Placement) -> None:
    """Gather the hidden states that `module` reads, with placement `outside`, once for all its matrices."""
    change_hidden_inputs(module, partial(enter, mesh=mesh, outside=outside))


def split_column_wise(
    linear: nn.Linear, mesh: DeviceMesh, *, outside: Placement | None = None, whole: bool = False
) -> None:
    """Give each rank some of the outputs of `linear`.

    Args:
        outside: the placement of its input; None if `prepare_input` gathers it.
        whole: return all outputs on every rank.
    """
    for name in ("weight", "bias"):
        _split_parameter(linear, name, mesh, dim=0)
    replace_forward(linear, partial(_column_wise, mesh=mesh, outside=outside, whole=whole))


def split_row_wise(linear: nn.Linear, mesh: DeviceMesh, *, outside: Placement) -> None:
    """Give each rank some of the inputs of `linear`; its summed outputs have placement `outside`."""
    _split_parameter(linear, "weight", mesh, dim=1)
    replace_forward(linear, partial(_row_wise, mesh=mesh, outside=outside))


def split_embedding(table: nn.Embedding, mesh: DeviceMesh) -> None:
    """Give each rank some of the columns of `table`; every rank gets whole embeddings.

    The split is by width, not by vocabulary, so it works for every vocabulary size and keeps the padding row.
    """
    assert table.max_norm is None, "one rank cannot compute the norm of a row"
    _split_parameter(table, "weight", mesh, dim=1)
    replace_forward(table, partial(_look_up, mesh=mesh))


def _column_wise(
    linear: nn.Linear, hidden: Tensor, *, mesh: DeviceMesh, outside: Placement | None, whole: bool
) -> Tensor:
    if outside is not None:
        hidden = enter(hidden, mesh, outside)
    local = F.linear(hidden, local_part(linear.weight), None if linear.bias is None else local_part(linear.bias))
    # A copy, because fully_shard adds hooks to the output of the model and warns about views.
    return gather(local, mesh, dim=local.ndim - 1).clone() if whole else local


def _row_wise(linear: nn.Linear, local: Tensor, *, mesh: DeviceMesh, outside: Placement) -> Tensor:
    total = leave(F.linear(local, local_part(linear.weight)), mesh, outside)
    if linear.bias is None:
        return total
    bias = linear.bias if outside.is_replicate() else shared(linear.bias, mesh)
    return total + bias.to(total.dtype)


def _look_up(table: nn.Embedding, ids: Tensor, *, mesh: DeviceMesh) -> Tensor:
    local = F.embedding(
        ids,
        local_part(table.weight),
        table.padding_idx,
        scale_grad_by_freq=table.scale_grad_by_freq,
        sparse=table.sparse,
    )
    return gather(local, mesh, dim=local.ndim - 1)


def replace_forward(module: nn.Module, forward: Callable[..., Tensor]) -> None:
    """Make `module` compute `forward(module, input)`."""
    module.forward = partial(forward, module)


def _split_parameter(module: nn.Module, name: str, mesh: DeviceMesh, *, dim: int) -> None:
    parameter = getattr(module, name)
    if parameter is not None:
        # Every rank has all weights, so nothing is sent.
        placed = distribute_tensor(parameter.detach(), mesh, [Shard(dim)], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(placed, requires_grad=parameter.requires_grad))
