"""Precisions, and models without packed encoders: a GPU's losses beside the CPU's."""

import os
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_steps.recorder import Recorder
from benchmarks.gpu_steps.runs import first_losses, forked_runs, loss_difference, mean_loss
from container.job.hosts.gpus import VISIBLE
from container.training.precision import float32_products, forbid_tf32
from testing.encoder_families import hyperparameters
from testing.jobs import TWO_TEXTS
from testing.parity import ADAMW, DROPOUT_OFF, ONE_PROCESS, Trained

ONE_TEXT = {"text_name": "chat", "primary_text_name": None, "secondary_text_name": None}
MODELS: dict[str, dict[str, Any]] = {
    "trimodal_bert": {**TWO_TEXTS},
    "lstm": {**ONE_TEXT, "model_class": "lstm", "num_layers": 2, "dropout_keep": 1.0},
    "multimodal_cnn": {
        **ONE_TEXT, "model_class": "multimodal_cnn", "kernel_size": [2, 3], "num_channels": [8, 6], "dropout_keep": 1.0,
    },
    "trimodal_cross_attn": {**TWO_TEXTS, "model_class": "trimodal_cross_attn", "fusion_attention_heads": 2},
}  # fmt: skip
PRECISIONS: dict[
    str, tuple[dict[str, Any], float]
] = {  # settings, and the largest relative difference of the mean loss
    "bfloat16": ({"bf16": True}, 0.05),
    "float16 with scaling": ({"fp16": True}, 0.05),
    "TF32": ({"tf32": True}, 0.01),
}


def run(check: Recorder) -> None:
    with forked_runs(check.folder) as (_, jobs):

        def train(settings: dict[str, Any], *, gpu: bool = True) -> Trained:
            before = os.environ.get(VISIBLE)
            if not gpu:
                os.environ[VISIBLE] = ""  # forks see no GPU
            try:
                (trained,) = jobs.train(ONE_PROCESS, {**DROPOUT_OFF, **ADAMW, **settings})
                return trained
            finally:
                os.environ.pop(VISIBLE, None) if before is None else os.environ.update({VISIBLE: before})

        compared = check.only_on_gpu("losses beside those of the CPU, and in lower precision")
        for name, settings in MODELS.items():
            if (check.tiny and name == "trimodal_bert") or not check.has_time(8, name):  # other steps train it
                continue
            with check.part(name):
                found = train(settings)
                check.figure(f"losses of {name}", first_losses(found))
                if compared:
                    difference = loss_difference(found, train(settings, gpu=False))
                    check.at_most(f"{name}: first ten losses in float32, GPU and CPU", difference, 1e-4)
                if compared and name == "trimodal_bert":
                    for precision, (lower, limit) in PRECISIONS.items():
                        means = mean_loss(train({**settings, **lower})), mean_loss(found)
                        check.at_most(f"mean loss, {precision} and float32", abs(means[0] / means[1] - 1), limit)
    with check.part("TF32"):
        _tf32(check)


def _tf32(check: Recorder) -> None:
    """Compare products, an LSTM and a convolution, with and without the setting tf32, with float64."""
    forbid_tf32()
    device = torch.device(check.device, 0) if check.on_gpu else torch.device("cpu")
    torch.manual_seed(0)
    width = 32 if check.tiny else 512
    layers: dict[str, nn.Module] = {
        "product": nn.Linear(width, width),
        "LSTM": nn.LSTM(width, width),
        "convolution": nn.Conv1d(width, width, 3),
    }
    values = torch.randn(16, width, width, dtype=torch.float64)
    for name, layer in layers.items():
        exact = _output(layer.double(), values)
        errors = {}
        for tf32 in (False, True):
            with float32_products(hyperparameters(bf16=False, tf32=tf32), device), torch.no_grad():
                found = _output(layer.float().to(device), values.float().to(device))
            errors[tf32] = float((found.double().cpu() - exact).norm() / exact.norm())
        check.figure(f"error of a {name}: float32, TF32", [errors[False], errors[True]])
        check.at_most(f"{name} in float32: relative error", errors[False], 1e-5)
        if check.on_gpu:
            check.holds(f"{name}: tf32 has an effect", errors[True] > 3 * errors[False])


def _output(layer: nn.Module, values: Tensor) -> Tensor:
    with torch.no_grad():
        output = layer(values)
    return output[0] if isinstance(output, tuple) else output
