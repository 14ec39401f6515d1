"""Low-rank adapters of the encoders' linear layers, through peft (Hu et al. 2021, "LoRA")."""

from collections.abc import Iterator

import torch
from torch import nn

from container.models.classifier import Classifier
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters


def add_lora(model: Classifier, hp: Hyperparameters) -> None:
    """Freeze the backbones of `model` and give the layers that lora_target names adapters of rank lora_rank; in place.

    A layer W x then computes W x + lora_alpha / lora_rank * B A x, with A random, a function of hp.seed, and B zero: at
    first nothing changes. Nothing happens where lora_rank is 0.

    Raises:
        ContractError: an encoder without such layers.
    """
    if hp.lora_rank == 0:
        return
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds, which other jobs do not have to spend

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(hp.seed)
        for encoder in dict.fromkeys(branch.encoder for branch in model.branches.values()):  # one, where it is shared
            backbone: nn.Module = encoder.backbone
            targets = list(_targets(backbone, attention_only=hp.lora_target == "attention"))
            if not targets:
                raise ContractError(
                    f"lora_rank: is {hp.lora_rank}, but an encoder of model_type {encoder.kind!r} has no "
                    f"linear layers that lora_target {hp.lora_target!r} would find",
                    "Set lora_rank to 0, lora_target to linear, or use an encoder of another family.",
                )
            # The scale lora_alpha / r may be any number; peft annotates an int.
            config = LoraConfig(r=hp.lora_rank, lora_alpha=hp.lora_alpha, target_modules=targets)  # pyright: ignore[reportArgumentType]
            inject_adapter_in_model(config, backbone)


def merge_lora(model: nn.Module) -> None:
    """Put plain linear layers of plain names, W + lora_alpha / lora_rank * B A, in the place of adapted ones."""
    if not any("lora_A" in name for name, _ in model.named_parameters()):
        return
    from peft.tuners.lora import LoraLayer

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoraLayer):
                child.merge(safe_merge=True)
                setattr(parent, name, child.get_base_layer())


def _targets(backbone: nn.Module, *, attention_only: bool) -> Iterator[str]:
    """Names of the linear layers of the encoder's layers; embeddings and what is projected from them stay frozen.

    A layer that is frozen already takes no part in what the model reads (backbone.py): its adapter would get no
    gradient, which data-parallel replicas wait for."""
    for name, module in backbone.named_modules():
        inside = any(part.isdigit() for part in name.split("."))
        learns = isinstance(module, nn.Linear) and module.weight.requires_grad
        if learns and inside and (not attention_only or "att" in name):
            yield name
