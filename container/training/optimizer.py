"""Build the optimizer; compute the learning rate of a step."""

import itertools

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from container.models.encoder import TextEncoder
from container.models.families import encoder_family
from container.parallel.execution import GradientNorm, local_part
from contracts.hyperparameters import Hyperparameters


def build_optimizer(hp: Hyperparameters, module: nn.Module) -> Optimizer:
    """Build the optimizer over the trainable parameters of a parallelised model.

    Biases and norms (at most one dimension) do not decay. `learning_rate` is multiplied by a group's "lr_scale": 1 for
    the encoders' backbones, times layer_lr_decay for each layer between a parameter and the top; head_lr / lr for all
    other parameters. Each mesh has separate groups, because one call cannot update parameters on different meshes.
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
    groups = groups or [{"params": [], "lr_scale": 1.0}]  # torch refuses no groups; LoRA freezes whole pipeline stages
    if hp.optimizer == "SGD":
        fused = all(mesh is None for *_, mesh in members)  # torch has no fused SGD over DTensors
        optimizer = torch.optim.SGD(groups, lr=hp.lr, momentum=hp.momentum, fused=fused)
        if fused and hp.momentum:
            # torch would keep uninitialized momentum if the first step is skipped.
            for parameter in itertools.chain(*members.values()):
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    optimizer_class = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}[hp.optimizer]
    return optimizer_class(groups, lr=hp.lr, eps=hp.adam_epsilon, fused=True)


def step_optimizer(optimizer: Optimizer, norm: GradientNorm) -> None:
    """Update the weights with clipped gradients; leave weights and state as they are if the norm is not finite.

    Fused optimizers divide and decide on the device. For others, the host waits for the decision.
    """
    if optimizer.defaults.get("fused"):
        # torch.amp.GradScaler uses the same attributes.
        optimizer.grad_scale, optimizer.found_inf = norm.divisor, norm.nonfinite  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.step()
    elif not norm.nonfinite.item():
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if norm.divisor is not None:
            grads = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
            torch._foreach_div_(grads, norm.divisor)  # pyright: ignore[reportPrivateImportUsage]
        optimizer.step()


def effective_warmup(hp: Hyperparameters, total_steps: int) -> int:
    """Return warmup_steps; its default is at most a tenth of the run, so that a short run reaches its peak rate."""
    if "warmup_steps" in hp.model_fields_set:
        return hp.warmup_steps
    return min(hp.warmup_steps, total_steps // 10)


def learning_rate(step: int, *, hp: Hyperparameters, total_steps: int) -> float:
    """Return the learning rate of optimizer step `step` (from 0).

    Linear warmup to lr; then, with run_scheduler, linear decay to lr * lr_decay at the last step, else constant. It
    depends on the step only, so a resumed run needs no scheduler state.
    """
    warmup = effective_warmup(hp, total_steps)
    if step < warmup:
        return hp.lr * (step + 1) / warmup
    if not hp.run_scheduler:
        return hp.lr
    done = (step - warmup) / max(1, total_steps - 1 - warmup)
    return hp.lr * (1 - (1 - hp.lr_decay) * min(1.0, done))


def layer_distances(module: nn.Module) -> dict[str, int]:
    """Return the number of layers between each backbone parameter and the top of its backbone, by parameter name.

    In a backbone of L layers, the last layer and what follows it have distance 0, the first layer L - 1, and the
    embeddings and parameters shared by all layers L.

    Args:
        module: a classifier, or a rank's part of it in a pipeline: layers keep their names on every rank. The layers of
            its backbones are known and have weights of their own.
    """
    distances = {}
    for path, encoder in module.named_modules():
        if isinstance(encoder, TextEncoder):
            for name, distance in _backbone_distances(encoder).items():
                distances[f"{path}.backbone.{name}"] = distance
    return distances


def _backbone_distances(encoder: TextEncoder) -> dict[str, int]:
    backbone = encoder.backbone
    family = encoder_family(backbone.config.model_type)
    assert family.layers is not None, "container/parallel/encoder_checks.py refuses layer_lr_decay for this family"
    assert not family.shared_layers, "see above"
    layers, depth = f"{family.layers}.", backbone.config.num_hidden_layers
    children = [name for name, _ in backbone.named_children()]
    middle = children.index(family.layers.partition(".")[0])
    distances = {}
    for name, _ in backbone.named_parameters():
        if name.startswith(layers):
            distances[name] = depth - 1 - int(name.removeprefix(layers).partition(".")[0])
        else:
            distances[name] = 0 if children.index(name.partition(".")[0]) > middle else depth
    return distances
