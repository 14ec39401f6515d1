"""The steps of `python -m benchmarks.gpu_check`: one module for each, and what they share."""

from collections.abc import Sequence
from dataclasses import dataclass

MINUTES = 9  # of a whole check of one GPU; the seconds below are shares of it


@dataclass(frozen=True)
class Step:
    """A step of the check, which has a process and a time limit of its own.

    Attributes:
        seconds: its time limit in a check of MINUTES.
        shows: one line for the list of steps.
        function: `module:function`, called with a recorder.Recorder.
    """

    name: str
    seconds: float
    shows: str
    function: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Return the module and the function."""
        module, _, function = (self.function or f"benchmarks.gpu_steps.{self.name}:run").partition(":")
        return module, function


ONE_GPU = (
    Step("facts", 10, "versions, GPU, kernels that exist; bandwidth and matrix products: the ceilings"),
    Step("kernels", 40, "packed equals padded, values and gradients, by the kernels that are meant"),
    Step("job", 85, "a whole job in bfloat16; float32 eager and compiled agree; model.onnx agrees"),
    Step("speed", 260, "tokens/s, MFU, memory, beside Hugging Face; kernels, waits and idle time of a step"),
    Step("resumed", 45, "losses go on after a kill as without it"),
    Step("ranks", 30, "two processes on one GPU, over gloo: ddp and fsdp give one process's numbers"),
    Step("memory", 25, "peak memory of 8 configurations"),
    Step("precisions", 40, "float16 with scaling, TF32; LSTM, CNN and cross-attention give the CPU's losses"),
    Step("decisions", 5, "what the measured shares say about the changes that docs/gpu.md lists"),
)
SEVERAL_GPUS = tuple(
    Step(name, seconds, shows, f"benchmarks.gpu_steps.several:{name}")
    for name, seconds, shows in (
        ("data_parallel", 110, "ddp and fsdp give one process's numbers over NCCL"),
        ("hybrid", 70, "hsdp and its products give one process's numbers"),
        ("slices", 90, "tensor, sequence and branch parallel give one process's numbers"),
        ("pipelines", 100, "every schedule gives one process's numbers"),
        ("communicators", 70, "whole jobs with pipelines: NCCL opens communicators late, and none waits for another"),
        ("stops", 100, "SIGTERM inside a collective saves; after a killed worker the job goes on"),
    )
)


def steps_of(gpus: int) -> Sequence[Step]:
    """Return the steps of a check of one GPU, or the other list for several."""
    return ONE_GPU if gpus == 1 else SEVERAL_GPUS
