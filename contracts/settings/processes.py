"""Declare processes and parallelism."""

from typing import Literal

from contracts import conditions
from contracts.declaration import Settings, declare
from contracts.model_classes import TRANSFORMER_CLASSES
from contracts.value_types import Threads

# Under these schedules each rank has two shorter stages. Zero-bubble schedules run the backward pass in two parts.
ZERO_BUBBLE_SCHEDULES = ("InterleavedZeroBubble", "ZBVZeroBubble")
TWO_STAGE_SCHEDULES = ("Interleaved1F1B", *ZERO_BUBBLE_SCHEDULES)


class ProcessSettings(Settings):
    """The settings of processes and parallelism."""

    nproc_per_node: int | None = declare(None, scope="run", ge=1, le=1_024)
    """Worker processes per host. Default: number of GPUs, or 1."""

    preprocess_workers: int | None = declare(None, scope="run", ge=1, le=1_024)
    """Processes that prepare data. Default: number of cores."""

    num_threads: Threads | Literal["auto"] = declare("auto", scope="run")
    """Threads of each worker's computations on the CPU, at most its share of the cores. auto = OMP_NUM_THREADS if you
    set it, else the number with which the first steps are fastest.
    """

    strategy: Literal["auto", "ddp", "fsdp", "hsdp", "tp", "pp", "branch"] = declare(
        "auto", scope="run", needs=(conditions.PROCESSES,)
    )
    """Parallelism: ddp = replicas; fsdp = shards; hsdp = shards within each replica; tp = slices of layers; pp =
    stages; branch = one text encoder per rank. auto = the sizes below, and replicas on the remaining processes.
    """

    dp_replicate_size: int = declare(-1, scope="run", ge=-1, le=100_000)
    """Number of replicas; -1 = all remaining processes."""

    dp_shard_size: int = declare(1, scope="run", ge=-1, le=100_000)
    """Ranks that share one sharded copy of the model; -1 = all remaining processes."""

    pp_size: int = declare(1, scope="run", ge=-1, le=100_000)
    """Ranks of a pipeline; -1 = all remaining processes."""

    tp_size: int = declare(1, scope="run", ge=-1, le=100_000)
    """Ranks that each layer is divided between; -1 = all remaining processes."""

    branch_size: int = declare(1, scope="run", ge=-1, le=100_000)
    """Ranks that the text encoders are divided between; -1 = one rank per encoder."""

    pp_schedule: Literal["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"] = declare(
        "1F1B", scope="run", features=("pp",)
    )
    """Pipeline schedule; the last three give each rank two shorter stages."""

    num_microbatches: int | None = declare(None, scope="run", ge=1, le=1_000_000, features=("pp",))
    """Microbatches per forward pass of a pipeline, of batch_size / num_microbatches records each. Default: the largest
    divisor of batch_size up to 4 per rank of the pipeline.
    """

    sharding_strategy: Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"] = declare(
        "FULL_SHARD", scope="run", needs=(conditions.SHARDS,)
    )
    """What dp_shard shards: FULL_SHARD = everything; SHARD_GRAD_OP = gradients and optimizer state, with the parameters
    gathered from forward to backward; NO_SHARD = nothing, so that fsdp's ranks are replicas.
    """

    fsdp_reduce_dtype: Literal["float32", "bfloat16"] = declare(
        "float32", scope="run", features=("fsdp",), needs=(conditions.AUTOCAST,)
    )
    """Data type in which gradients are summed, for bf16 or fp16."""

    fsdp_accumulation: Literal["shards", "whole"] = declare(
        "shards", scope="run", features=("fsdp",), needs=(conditions.ACCUMULATES,)
    )
    """Gradients that a rank keeps between the passes of accumulate_grad_batches: shards, which are reduced after every
    pass, or whole ones, which are reduced once per step and need 4 bytes per parameter. A pipeline reduces after
    each of its passes.
    """

    cpu_offload: bool = declare(False, scope="run", features=("fsdp",))
    """Keep shards of parameters, gradients and optimizer state in the host's memory. Slow; for models that do not fit
    otherwise.
    """

    gradient_compression: Literal["none", "fp16", "bf16"] = declare("none", scope="run", features=("ddp",))
    """Compression of gradients for communication. Results differ from those of one process."""

    sequence_parallel: bool = declare(False, scope="run", features=("tp",))
    """Also shard the operations between the sliced matrix products (norms, dropout) over tp, to save memory."""

    activation_checkpointing: int = declare(0, scope="run", ge=0, le=1_000, classes=TRANSFORMER_CLASSES)
    """Recompute every n-th encoder layer in the backward pass instead of keeping its activations; 1 = every layer, 0 =
    none.
    """

    compile: bool | Literal["auto"] = declare("auto", scope="run", classes=TRANSFORMER_CLASSES)
    """Compile encoder layers with torch.compile; the first steps take longer. auto = on GPUs, where the image has a C
    compiler, Python's header files and Triton, without pp and tp.
    """

    cuda_graphs: bool | Literal["auto"] = declare("auto", scope="run")
    """Replay the forward and backward pass of a microbatch as a CUDA graph, one for each shape that occurs again
    (docs/gpu.md). auto = on one GPU, without fp16, activation_checkpointing, lstm, and encoders that pad batches.
    """

    max_restarts: int = declare(3, scope="run", ge=0, le=1_000)
    """Number of times that workers killed by a signal are restarted from the newest checkpoint. Errors that name their
    cause are not retried.
    """

    process_group_timeout_minutes: float = declare(10, scope="run", gt=0, le=50_000, needs=(conditions.PROCESSES,))
    """Minutes that a collective operation waits for the other processes before the job fails."""

    log_all_ranks: bool = declare(False, scope="run", needs=(conditions.PROCESSES,))
    """Log the progress of every process, prefixed with its rank. By default, ranks above 0 log only warnings."""

    profile: bool = declare(False, scope="run")
    """Trace some steps: output/data/profile/ gets the trace and a table of the ten most expensive operations."""
