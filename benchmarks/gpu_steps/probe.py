"""Ask torch for its GPUs, and allocate on each as a job does."""

import torch

from benchmarks.gpu_steps.recorder import Recorder


def run(check: Recorder) -> None:
    gpus = torch.cuda.device_count()
    check.figure("gpus", gpus)
    for gpu in range(min(gpus, check.gpus)):
        torch.ones(1 << 20, device=f"cuda:{gpu}").sum().item()
