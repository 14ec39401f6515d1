"""Declare the model: its class, its classes, its fusion head."""

from contracts import conditions, value_types
from contracts.declaration import Settings, declare
from contracts.model_classes import CROSS_ATTENTION_CLASSES, MODEL_CLASSES, TWO_TEXT_CLASSES

_FUSION_WIDTH_CLASSES = (*TWO_TEXT_CLASSES, "multimodal_gate_fusion", "multimodal_moe")
_FUSION_DROPOUT_CLASSES = (*TWO_TEXT_CLASSES, "multimodal_moe", "multimodal_cross_attn")
_WORD_CLASSES = ("lstm", "multimodal_cnn")


class ModelSettings(Settings):
    """The settings of the model: its class, its classes, its fusion head."""

    model_class: value_types.ModelClassName = declare(
        scope="prepare",
        about="The architecture: " + ", ".join(MODEL_CLASSES) + ", or an alias (bimodal, trimodal, bimodal_*). "
        "With the preset recommended or best, the default is multimodal_bert, or trimodal_bert with two texts.",
    )

    num_classes: int = declare(2, scope="prepare", ge=2, le=10_000)
    """Number of classes. Default: the number of multiclass_categories, else of the labels in train."""

    is_binary: bool = declare(True, scope="prepare")
    """Two classes, one score: the probability of class 1. Default: whether there are two classes."""

    multiclass_categories: list[value_types.Label | str] | None = declare(None, scope="prepare")
    """Class labels in the order of their ids. Default: the labels of train, numbers by value, then texts
    alphabetically."""

    hidden_common_dim: int = declare(100, scope="train", ge=1, le=16_384, needs=(conditions.PROJECTS,))
    """Width H of each modality's features."""

    input_tab_dim: int | None = declare(None, scope="run", ge=0, le=1_000_000)
    """Accepted, no effect: the job computes the number of tabular inputs. If you set it, it must be the number of
    numeric columns, or of numeric and risk columns; indicators and codes do not count.
    """

    fusion_hidden_dim: int | None = declare(None, scope="train", ge=1, le=16_384, classes=_FUSION_WIDTH_CLASSES)
    """Width F of the fusion head. Default: max(128, 3H/2) for trimodal_bert and trimodal_cross_attn, H for the other
    classes.
    """

    dropout: float = declare(0.1, scope="train", ge=0, lt=1, needs=(conditions.DROPS,))
    """Dropout of the text heads and the tabular branch."""

    fusion_dropout: float = declare(0.1, scope="train", ge=0, lt=1, classes=_FUSION_DROPOUT_CLASSES)
    """Dropout of the fusion head."""

    fusion_attention_heads: int = declare(4, scope="train", ge=1, le=1_024, classes=CROSS_ATTENTION_CLASSES)
    """Attention heads of the cross-attention; must divide hidden_common_dim."""

    num_experts: int = declare(4, scope="train", ge=2, le=1_024, classes=("multimodal_moe",))
    """Experts of the mixture: small networks over text and table features."""

    experts_per_record: int = declare(2, scope="train", ge=1, le=1_024, classes=("multimodal_moe",))
    """Experts that process a record: those with the highest router scores."""

    expert_balance: float = declare(
        0.01, scope="train", ge=0, le=1_000, classes=("multimodal_moe",), needs=(conditions.SELECTS_EXPERTS,)
    )
    """Weight of the load-balancing loss, which evens out the number of records per expert; 0 = off. With Adam and
    AdamW, the balance changes by about head_lr per step for any weight above 0.
    """

    kernel_size: list[value_types.KernelSize] = declare(
        [3, 5, 7], scope="train", min_length=1, max_length=100, classes=("multimodal_cnn",)
    )
    """Kernel size of each set of convolutions, in tokens."""

    num_channels: list[value_types.Channels] = declare(
        [100, 100], scope="train", min_length=1, max_length=100, classes=("multimodal_cnn",)
    )
    """Channels of each convolutional layer. Default: 100 for each of num_layers."""

    num_layers: int = declare(2, scope="train", ge=1, le=100, classes=_WORD_CLASSES)
    """Recurrent or convolutional layers. Default if num_channels is set: its length."""

    dropout_keep: float = declare(
        0.5, scope="train", gt=0, le=1, classes=_WORD_CLASSES, needs=(conditions.DROPS_BETWEEN_LAYERS,)
    )
    """Share of the activations that dropout keeps: between recurrent layers, and in the output of the convolutions."""
