"""Add low-rank adapters to the encoders' linear layers, and merge them, with peft (Hu et al. 2021, "LoRA")."""

from collections.abc import Iterator

import torch
from torch import nn

from container.models.classifier import Classifier
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters


def add_lora(model: Classifier, hp: Hyperparameters) -> None:
    """Freeze the backbones of `model` and add adapters of rank lora_rank to the layers of lora_target, in place.

    A layer W x then computes W x + lora_alpha / lora_rank * B A x. A is random, from hp.seed; B is zero, so that the
    output does not change at first. With lora_rank 0, do nothing.

    Raises:
        ContractError: an encoder has no such layers.
    """
    if hp.lora_rank == 0:
        return
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds, only for jobs with LoRA
    from peft.tuners.lora import LoraLayer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(hp.seed)
        for encoder in dict.fromkeys(branch.encoder for branch in model.branches.values()):  # a shared encoder once
            backbone: nn.Module = encoder.backbone
            targets = list(_targets(backbone, attention_only=hp.lora_target == "attention"))
            if not targets:
                raise ContractError(
                    f"lora_rank: is {hp.lora_rank}, but an encoder of model_type {encoder.kind!r} has no "
                    f"linear layers for lora_target {hp.lora_target!r}",
                    "Set lora_rank to 0, lora_target to linear, or use an encoder of another family.",
                )
            # lora_alpha may be any number; peft declares an int.
            config = LoraConfig(r=hp.lora_rank, lora_alpha=hp.lora_alpha, target_modules=targets)  # pyright: ignore[reportArgumentType]
            inject_adapter_in_model(config, backbone)
            for layer in backbone.modules():
                if isinstance(layer, LoraLayer):
                    layer.cast_input_dtype_enabled = False  # to float32, which autocast would cast back


def merge_lora(model: nn.Module) -> None:
    """Replace adapted layers by plain linear layers W + lora_alpha / lora_rank * B A, under their plain names."""
    if not any("lora_A" in name for name, _ in model.named_parameters()):
        return
    from peft.tuners.lora import LoraLayer

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoraLayer):
                child.merge(safe_merge=True)
                setattr(parent, name, child.get_base_layer())


def _targets(backbone: nn.Module, *, attention_only: bool) -> Iterator[str]:
    """Yield the names of linear layers inside the encoder's layers; embeddings and their projections stay frozen.

    Layers that are already frozen do not affect the output (backbone.py). Their adapters would get no gradient, for
    which data-parallel replicas would wait.
    """
    for name, module in backbone.named_modules():
        inside = any(part.isdigit() for part in name.split("."))
        trainable = isinstance(module, nn.Linear) and module.weight.requires_grad
        if trainable and inside and (not attention_only or "att" in name):
            yield name
