"""The optimizer and the learning rate of a step."""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from container.training.layer_distances import layer_distances
from contracts.hyperparameters import Hyperparameters


def build_optimizer(hp: Hyperparameters, module: nn.Module) -> Optimizer:
    """The optimizer over the trainable parameters.

    Biases and norms (at most one dimension) do not decay. A group's "lr_scale" is what `learning_rate` is multiplied
    by: 1 for the encoders' backbones, times layer_lr_decay for each layer between a parameter and the top; head_lr / lr
    for the rest. Built after the model is parallelised: parameters on different meshes cannot be updated in one call,
    so each mesh has groups of its own.

    Raises:
        ContractError: layer_lr_decay, and a backbone whose layers are not known.
    """
    distances = {} if hp.layer_lr_decay == 1 else layer_distances(module)
    head_scale = (hp.head_lr or hp.lr) / hp.lr
    members: dict[tuple[float, float, DeviceMesh | None], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            scale = hp.layer_lr_decay ** distances.get(name, 0) if "backbone" in name.split(".") else head_scale
            decay = hp.weight_decay if parameter.ndim > 1 else 0.0
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            members.setdefault((scale, decay, mesh), []).append(parameter)
    groups = [
        {"params": parameters, "weight_decay": decay, "lr_scale": scale}
        for (scale, decay, _), parameters in members.items()
    ]
    if hp.optimizer == "SGD":
        # torch has no fused SGD over DTensors.
        fused = all(mesh is None for *_, mesh in members)
        return torch.optim.SGD(groups, lr=hp.lr, momentum=hp.momentum, fused=fused)
    kind = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}[hp.optimizer]
    return kind(groups, lr=hp.lr, eps=hp.adam_epsilon, fused=True)


def effective_warmup(hp: Hyperparameters, total_steps: int) -> int:
    """warmup_steps; its default is at most a tenth of the run, so that a short run reaches its peak rate."""
    if "warmup_steps" in hp.model_fields_set:
        return hp.warmup_steps
    return min(hp.warmup_steps, total_steps // 10)


def learning_rate(step: int, *, hp: Hyperparameters, total_steps: int) -> float:
    """The rate of optimizer step `step` (from 0): linear warmup to lr, then linear decay to lr * lr_decay at the last
    step when run_scheduler, else constant. A function of the step alone, so a resumed run needs no scheduler state."""
    warmup = effective_warmup(hp, total_steps)
    if step < warmup:
        return hp.lr * (step + 1) / warmup
    if not hp.run_scheduler:
        return hp.lr
    done = (step - warmup) / max(1, total_steps - 1 - warmup)
    return hp.lr * (1 - (1 - hp.lr_decay) * min(1.0, done))
