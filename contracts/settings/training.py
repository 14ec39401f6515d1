"""Declare optimisation: batches, rates, losses, precision."""

from typing import Annotated, Literal

from pydantic import BeforeValidator

from contracts import conditions, value_types
from contracts.declaration import Settings, declare
from contracts.model_classes import TRANSFORMER_CLASSES

Preset = Literal["defaults", "recommended", "best"]
BALANCED = "balanced"


def _canonical_preset(name: object) -> object:
    """Return "defaults" for documents, its name in older configurations."""
    return "defaults" if name == "documents" else name


class TrainingSettings(Settings):
    """The settings of optimisation: batches, rates, losses, precision."""

    preset: Annotated[Preset, BeforeValidator(_canonical_preset)] = declare("defaults", scope="run")
    """Values of the settings that you do not set: defaults = the declared defaults. recommended = values that gave
    better models in measurements, for about the same time. best = the same, with several networks, for several times
    the time (docs/presets.md).
    """

    batch_size: value_types.BatchSize = declare(32, scope="run")
    """Records per data-parallel rank and forward pass; a pipeline splits them into num_microbatches microbatches."""

    max_epochs: int = declare(10, scope="run", ge=1, le=1_000_000)
    """Maximum number of passes over train."""

    lr: float = declare(2e-5, scope="train", gt=0, le=1_000)
    """Peak learning rate."""

    head_lr: float | None = declare(None, scope="train", gt=0, le=1_000)
    """Peak learning rate of all weights except the encoders' backbones. Default: lr. With a pretrained encoder, about
    1e-3 is usually much better.
    """

    layer_lr_decay: float = declare(1.0, scope="train", gt=0, le=1, classes=TRANSFORMER_CLASSES)
    """Factor on lr for each encoder layer between a weight and the top of its encoder; the embeddings have the lowest
    rate. 1 = lr for every layer.
    """

    optimizer: Literal["SGD", "Adam", "AdamW"] = declare("AdamW", scope="train")
    """Optimizer. Biases and norms get no weight decay."""

    momentum: float = declare(0.9, scope="train", ge=0, lt=1, needs=(conditions.chosen("optimizer", "SGD"),))
    """Momentum of SGD."""

    weight_decay: float = declare(0.0, scope="train", ge=0, le=1_000)
    """Weight decay (decoupled with AdamW, L2 otherwise)."""

    adam_epsilon: float = declare(
        1e-8, scope="train", gt=0, le=1, needs=(conditions.chosen("optimizer", "Adam", "AdamW"),)
    )
    """Epsilon of Adam and AdamW."""

    loss: Literal["cross_entropy", "focal"] = declare("cross_entropy", scope="train")
    """Training loss; focal gives less weight to records that are already classified well. val/loss is always the log
    loss with class_weights, so that runs can be compared.
    """

    focal_gamma: float = declare(2.0, scope="train", ge=0, le=10, needs=(conditions.chosen("loss", "focal"),))
    """Exponent of the focal loss; 0 is cross entropy."""

    label_smoothing: float = declare(0.0, scope="train", ge=0, lt=1)
    """Share of each label that the training loss spreads evenly over all classes."""

    class_weights: list[value_types.ClassWeight] | Literal["balanced"] | None = declare(None, scope="train")
    """Weight of each class in the loss, in the order of the class ids; balanced = rows of train / (classes * rows of
    the class). Default: 1 for each class.
    """

    ema_decay: float = declare(0.0, scope="train", ge=0, lt=1)
    """Decay of an exponential moving average of the weights, e.g. 0.999; 0 = none. The average is validated, evaluated
    and saved. The decay is smaller in the first steps.
    """

    gradient_clip_val: float = declare(1.0, scope="train", ge=0, le=1_000_000_000)
    """Maximum global gradient norm; 0 = no clipping."""

    accumulate_grad_batches: int = declare(1, scope="run", ge=1, le=1_000_000)
    """Forward passes per optimizer step and rank."""

    max_tokens_per_batch: int = declare(0, scope="run", ge=0, le=1_000_000_000)
    """Limit of the tokens of all texts in a forward pass of a data-parallel rank, without padding; 0 = no limit
    (docs/training.md). Without activation_checkpointing, a pass of a prediction can take more than batch_size: up to
    4 x as many, but at most 32 records; on GPUs 8 x, at most 256.
    """

    warmup_steps: int = declare(300, scope="train", ge=0, le=1_000_000_000)
    """Optimizer steps of linear warmup. The default is at most a tenth of the steps of a run.
    """

    run_scheduler: bool = declare(True, scope="train")
    """Decay the learning rate linearly after the warmup; false = keep it constant."""

    lr_decay: float = declare(0.05, scope="train", ge=0, le=1, needs=(conditions.DECAYS,))
    """Fraction of lr at the end of the linear decay."""

    fp16: bool = declare(False, scope="train")
    """Autocast to float16, with gradient scaling."""

    bf16: bool | Literal["auto"] = declare("auto", scope="train")
    """Autocast to bfloat16; auto = on GPUs that have it (Ampere or newer), unless fp16 is set. A CPU without AMX
    (amx_bf16) is faster with float32.
    """

    tf32: bool = declare(False, scope="train")
    """On GPUs, compute what training computes in float32 with TF32 matrix products: faster, with 10 bits instead of 23.
    Predictions of the final model do not use it.
    """

    seed: int = declare(42, scope="prepare", ge=0, lt=2**63)
    """Seed of the initial weights, the order of records, the folds and dropout."""
