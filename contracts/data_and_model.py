"""Declare the hyperparameters of the data and the model; contracts.hyperparameters declares the others."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from contracts import conditions, value_types
from contracts.declaration import declare, plain_type, plain_types
from contracts.model_classes import (
    CROSS_ATTENTION_CLASSES,
    FROM_SCRATCH,
    MODEL_CLASSES,
    POOLED_CLASSES,
    TRANSFORMER_CLASSES,
    TWO_TEXT_CLASSES,
)
from contracts.numbers import Json, Number
from contracts.text_fields import EVENT_TEXT_STEPS, FULL_TEXT_STEPS, TextStep

_POOLED_TWO_TEXT_CLASSES = tuple(name for name in POOLED_CLASSES if name in TWO_TEXT_CLASSES)
FUSION_WIDTH_CLASSES = (*TWO_TEXT_CLASSES, "multimodal_gate_fusion", "multimodal_moe")
FUSION_DROPOUT_CLASSES = (*TWO_TEXT_CLASSES, "multimodal_moe", "multimodal_cross_attn")
ENCODER_SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 8000}


class DataAndModel(BaseModel):
    """The hyperparameters of the data and the model."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans_as_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = plain_types(plain_type(cls.model_fields[str(info.field_name)].annotation))
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise ValueError("true and false are no numbers")
        return value

    # fmt: off
    id_name: str = declare(group="data", scope="prepare", about="Column of record ids, copied to the predictions unchanged.")
    text_name: str | None = declare(None, group="data", scope="prepare",
        about="Text column of the one-text classes; cannot be set with primary_text_name and secondary_text_name.")
    primary_text_name: str | None = declare(None, group="data", scope="prepare",
        about="First text column of the two-text classes, e.g. a chat.")
    secondary_text_name: str | None = declare(None, group="data", scope="prepare",
        about="Second text column of the two-text classes, e.g. an event history.")
    label_name: str = declare(group="data", scope="prepare", about="Column of the class label.")
    full_field_list: list[str] | None = declare(None, group="data", scope="prepare",
        about="Columns that the data must have, in addition to the columns that other settings name. Default: none.")
    cat_field_list: list[str] = declare([], group="data", scope="prepare", needs=(conditions.READS_TABLE,),
        about="Categorical columns; each becomes a risk value (binary) or one per class (multiclass).")
    tab_field_list: list[str] = declare([], group="data", scope="prepare", needs=(conditions.READS_TABLE,), about="Numeric columns.")
    categorical_features_to_encode: list[str] | None = declare(None, group="data", scope="prepare", needs=(conditions.READS_TABLE,),
        about="The columns of cat_field_list that enter the model. Default: all of them.")
    train_filename: str | None = declare(None, group="data", scope="prepare",
        about="Read only this file of the train channel. Default: every data file in it.")
    val_filename: str | None = declare(None, group="data", scope="prepare",
        about="Read only this file of the val channel. Default: every data file in it.")
    test_filename: str | None = declare(None, group="data", scope="after",
        about="Read only this file of the test channel. Default: every data file in it.")
    drop_unlabelled: bool = declare(False, group="data", scope="prepare",
        about="Drop training rows without a label instead of stopping; the number of rows is logged.")

    model_class: value_types.ModelClassName = declare(group="model", scope="prepare",
        about="The architecture: " + ", ".join(MODEL_CLASSES) + ", or an alias (bimodal, trimodal, bimodal_*).")
    tokenizer: str = declare("bert-base-cased", group="model", scope="prepare", needs=(conditions.not_overridden("tokenizer"),),
        about="The encoder: a local folder, a folder in input/data/pretrained/, a Hugging Face id, or " + FROM_SCRATCH + ".")
    primary_tokenizer: str | None = declare(None, group="model", scope="prepare", classes=TWO_TEXT_CLASSES,
        about="Encoder of the primary text. Default: tokenizer.")
    secondary_tokenizer: str | None = declare(None, group="model", scope="prepare", classes=TWO_TEXT_CLASSES,
        about="Encoder of the secondary text. Default: tokenizer.")
    encoder_config: dict[str, Json] = declare({}, group="model", scope="prepare",
        about=f"With from_scratch: the encoder's sizes (defaults {ENCODER_SIZES}). With a pretrained encoder: changes to its config that keep every tensor shape, e.g. hidden_dropout_prob.")
    num_classes: int = declare(2, group="model", scope="prepare", ge=2, le=10_000, about="Number of classes.")
    is_binary: bool = declare(True, group="model", scope="prepare", about="Two classes, one score: the probability of class 1.")
    multiclass_categories: list[value_types.Label | str] | None = declare(None, group="model", scope="prepare",
        about="Class labels in the order of their ids; required unless is_binary. Binary default: the two labels of train, sorted.")
    hidden_common_dim: int = declare(100, group="model", scope="train", ge=1, le=16_384, needs=(conditions.PROJECTS,),
        about="Width H of each modality's features.")
    input_tab_dim: int | None = declare(None, group="model", scope="train", ge=0, le=1_000_000,
        about="Number of tabular inputs. The job computes it. If you set it, it must be the number of numeric columns, or of numeric and risk columns; indicators and codes do not count.")
    fusion_hidden_dim: int | None = declare(None, group="model", scope="train", ge=1, le=16_384, classes=FUSION_WIDTH_CLASSES,
        about="Width F of the fusion head. Default: max(128, 3H/2) for trimodal_bert and trimodal_cross_attn, H for the other classes.")
    dropout: float = declare(0.1, group="model", scope="train", ge=0, lt=1, needs=(conditions.DROPS,),
        about="Dropout of the text heads and the tabular branch.")
    fusion_dropout: float = declare(0.1, group="model", scope="train", ge=0, lt=1, classes=FUSION_DROPOUT_CLASSES,
        about="Dropout of the fusion head.")
    fusion_attention_heads: int = declare(4, group="model", scope="train", ge=1, le=1_024, classes=CROSS_ATTENTION_CLASSES,
        about="Attention heads of the cross-attention; must divide hidden_common_dim.")
    num_experts: int = declare(4, group="model", scope="train", ge=2, le=1_024, classes=("multimodal_moe",),
        about="Experts of the mixture: small networks over text and table features.")
    experts_per_record: int = declare(2, group="model", scope="train", ge=1, le=1_024, classes=("multimodal_moe",),
        about="Experts that process a record: those with the highest router scores.")
    expert_balance: float = declare(0.01, group="model", scope="train", ge=0, le=1_000, classes=("multimodal_moe",), needs=(conditions.SELECTS_EXPERTS,),
        about="Weight of the load-balancing loss, which evens out the number of records per expert; 0 = off. With Adam and AdamW, the balance changes by about head_lr per step for any weight above 0.")
    modality_dropout: float = declare(0.0, group="model", scope="train", ge=0, lt=1,
        about="Probability that a training record is processed without its table or without one of its texts. At least one modality always remains. This makes the model less dependent on one modality.")
    share_encoder: bool = declare(False, group="model", scope="train", classes=TWO_TEXT_CLASSES,
        about="Use one encoder for both texts; each text keeps its own projection. Both texts need the same pretrained tokenizer, reinit_* and is_embeddings_trainable.")
    is_embeddings_trainable: bool = declare(True, group="model", scope="train", needs=(conditions.TRAINS_ENCODERS, conditions.not_overridden("is_embeddings_trainable")),
        about="Train the encoder's embedding tables.")
    primary_is_embeddings_trainable: bool | None = declare(None, group="model", scope="train", classes=TWO_TEXT_CLASSES, needs=(conditions.TRAINS_ENCODERS,),
        about="Override for the primary text.")
    secondary_is_embeddings_trainable: bool | None = declare(None, group="model", scope="train", classes=TWO_TEXT_CLASSES, needs=(conditions.TRAINS_ENCODERS,),
        about="Override for the secondary text.")
    pooling: Literal["first", "mean"] = declare("first", group="model", scope="train", classes=POOLED_CLASSES,
        about="Vector of a chunk: first = a pooler over its first token; mean = the mean of its tokens, as in the training of sentence encoders (MiniLM, mpnet, e5).")
    reinit_pooler: bool = declare(True, group="model", scope="train", classes=POOLED_CLASSES, needs=(conditions.POOLER, conditions.not_overridden("reinit_pooler"), conditions.pretrained("reinit_pooler")),
        about="Reinitialize the pooler of a pretrained encoder.")
    primary_reinit_pooler: bool | None = declare(None, group="model", scope="train", classes=_POOLED_TWO_TEXT_CLASSES, needs=(conditions.POOLER, conditions.pretrained("primary_reinit_pooler")),
        about="Override for the primary text.")
    secondary_reinit_pooler: bool | None = declare(None, group="model", scope="train", classes=_POOLED_TWO_TEXT_CLASSES, needs=(conditions.POOLER, conditions.pretrained("secondary_reinit_pooler")),
        about="Override for the secondary text.")
    reinit_layers: int = declare(2, group="model", scope="train", ge=0, le=1_000, classes=TRANSFORMER_CLASSES, needs=(conditions.not_overridden("reinit_layers"), conditions.pretrained("reinit_layers")),
        about="Reinitialize the last n layers of a pretrained encoder.")
    primary_reinit_layers: int | None = declare(None, group="model", scope="train", ge=0, le=1_000, classes=TWO_TEXT_CLASSES, needs=(conditions.pretrained("primary_reinit_layers"),),
        about="Override for the primary text.")
    secondary_reinit_layers: int | None = declare(None, group="model", scope="train", ge=0, le=1_000, classes=TWO_TEXT_CLASSES, needs=(conditions.pretrained("secondary_reinit_layers"),),
        about="Override for the secondary text.")
    lora_rank: int = declare(0, group="model", scope="train", ge=0, le=4_096, classes=TRANSFORMER_CLASSES,
        about="Rank of LoRA: train low-rank updates of the pretrained encoders' layers instead of the encoders; 0 = train the encoders. model.pth and model.onnx contain plain weights with the updates merged. Needs reinit_layers 0.")
    lora_alpha: float = declare(16.0, group="model", scope="train", gt=0, le=1_000_000, classes=TRANSFORMER_CLASSES, needs=(conditions.LORA,),
        about="Scale of the low-rank updates: they are multiplied by lora_alpha / lora_rank.")
    lora_target: Literal["attention", "linear"] = declare("attention", group="model", scope="train", classes=TRANSFORMER_CLASSES, needs=(conditions.LORA,),
        about="Linear layers that get low-rank updates: those of the attention, or all of the encoder.")
    kernel_size: list[value_types.KernelSize] = declare([3, 5, 7], group="model", scope="train", min_length=1, max_length=100, classes=("multimodal_cnn",),
        about="Kernel size of each set of convolutions, in tokens.")
    num_channels: list[value_types.Channels] = declare([100, 100], group="model", scope="train", min_length=1, max_length=100, classes=("multimodal_cnn",),
        about="Channels of each convolutional layer. Default: 100 for each of num_layers.")
    num_layers: int = declare(2, group="model", scope="train", ge=1, le=100, classes=("lstm", "multimodal_cnn"),
        about="Recurrent or convolutional layers. Default if num_channels is set: its length.")
    dropout_keep: float = declare(0.5, group="model", scope="train", gt=0, le=1, classes=("lstm", "multimodal_cnn"), needs=(conditions.DROPS_BETWEEN_LAYERS,),
        about="Share of the activations that dropout keeps: between recurrent layers, and in the output of the convolutions.")

    max_sen_len: int = declare(512, group="text", scope="prepare", ge=4, le=131_072, needs=(conditions.not_overridden("max_sen_len"),),
        about="Tokens per chunk, including special tokens.")
    primary_max_sen_len: int | None = declare(None, group="text", scope="prepare", ge=4, le=131_072, classes=TWO_TEXT_CLASSES,
        about="Override for the primary text.")
    secondary_max_sen_len: int | None = declare(None, group="text", scope="prepare", ge=4, le=131_072, classes=TWO_TEXT_CLASSES,
        about="Override for the secondary text.")
    chunk_trancate: bool = declare(False, group="text", scope="prepare",
        about="Keep only the first max_total_chunks chunks of a record; the number of removed chunks is logged. chunk_truncate is accepted too.")
    max_total_chunks: int = declare(5, group="text", scope="prepare", ge=1, le=1_000_000, needs=(conditions.TRUNCATES,),
        about="Chunks kept per record and text if chunk_trancate is true.")
    fixed_tokenizer_length: bool = declare(True, group="text", scope="run", needs=(conditions.NEVER_PADS,),
        about="Accepted for older configurations. It has no effect because batches are packed, without padding.")
    text_input_ids_key: value_types.OnnxName = declare("input_ids", group="text", scope="after",
        about="Name of the token input in model.onnx; with two texts, prefixed with primary_ or secondary_.")
    text_attention_mask_key: value_types.OnnxName = declare("attention_mask", group="text", scope="after",
        about="Name of the mask input in model.onnx, with the same prefixes.")
    text_processing_steps: list[TextStep] | None = declare(None, group="text", scope="prepare", needs=(conditions.ONE_TEXT,),
        about="Steps for the one text, in order. Default: " + ", ".join(FULL_TEXT_STEPS) + ".")
    primary_text_processing_steps: list[TextStep] | None = declare(None, group="text", scope="prepare", classes=TWO_TEXT_CLASSES,
        about="Steps for the primary text, in order. Default: the default of text_processing_steps.")
    secondary_text_processing_steps: list[TextStep] | None = declare(None, group="text", scope="prepare", classes=TWO_TEXT_CLASSES,
        about="Steps for the secondary text. Default: " + ", ".join(EVENT_TEXT_STEPS) + ".")

    smooth_factor: float = declare(0.0, group="table", scope="prepare", ge=0, le=1_000_000, needs=(conditions.CATEGORIES, conditions.FITS_RISKS),
        about="Risk tables: weight of the prior, as a fraction of the number of training rows.")
    smooth_rows: float = declare(0.0, group="table", scope="prepare", ge=0, le=1_000_000_000, needs=(conditions.CATEGORIES, conditions.FITS_RISKS),
        about="Risk tables: weight of the prior, as a number of rows, in addition to smooth_factor.")
    count_threshold: int = declare(0, group="table", scope="prepare", ge=0, le=1_000_000_000, needs=(conditions.CATEGORIES, conditions.FITS_RISKS),
        about="Risk tables: a category with fewer training rows gets the prior.")
    risk_table_folds: int = declare(5, group="table", scope="prepare", ge=0, le=100, needs=(conditions.CATEGORIES, conditions.FITS_RISKS),
        about="Number of folds: training rows get risk values fitted on the other folds. With 0 or 1, the values are fitted on the same rows.")
    imputation_strategy: Literal["mean", "median", "mode"] = declare("mean", group="table", scope="prepare", needs=(conditions.NUMBERS, conditions.FITS_IMPUTATION),
        about="Value of missing numbers, computed on train.")
    imputation_dict: dict[str, Number] | None = declare(None, group="table", scope="prepare", needs=(conditions.NUMBERS,),
        about="Imputation values by numeric column; the other columns get fitted values.")
    missing_indicators: bool = declare(False, group="table", scope="prepare", needs=(conditions.NUMBERS,),
        about="Add an input for each numeric column: 1 where the number is missing, else 0. A column gets one if at least 1 % of the training rows, and at least 3, miss the number, and at least as many have it.")
    risk_tables: dict[str, dict[str, Json]] | None = declare(None, group="table", scope="prepare", needs=(conditions.CATEGORIES,),
        about="Risk tables by categorical column, in the format of risk_table_map.json; the other columns get fitted tables.")
    category_embedding_dim: int = declare(0, group="table", scope="prepare", ge=0, le=4_096,
        about="Width of a trained vector for each category of cat_field_list, in addition to its risk values; 0 = none. For columns with many values, e.g. products.")
    category_embedding_min_count: int = declare(5, group="table", scope="prepare", ge=1, le=1_000_000_000, needs=(conditions.EMBEDS_CATEGORIES,),
        about="Categories with fewer training rows share one vector with categories that are not in train.")
    numeric_transform: Literal["standard", "quantile", "none"] = declare("standard", group="table", scope="prepare", needs=(conditions.TABLE,),
        about="Scaling of the tabular inputs after imputation, fitted on train; part of model.pth and model.onnx.")
    numeric_embedding: Literal["none", "piecewise_linear", "periodic"] = declare("none", group="table", scope="prepare",
        about="Replace each tabular input by a vector, followed by a linear layer per input and ReLU (Gorishniy et al. 2022). piecewise_linear: the position of the value in each bin, where bins are quantiles of train; periodic: sines and cosines with trained frequencies.")
    numeric_embedding_dim: int = declare(16, group="table", scope="train", ge=1, le=4_096, needs=(conditions.chosen("numeric_embedding", "piecewise_linear", "periodic"),),
        about="Width of each input's vector.")
    numeric_embedding_bins: int = declare(16, group="table", scope="prepare", ge=1, le=1_024, needs=(conditions.chosen("numeric_embedding", "piecewise_linear"),),
        about="Bins of each input; fewer if its quantiles coincide.")
    numeric_embedding_frequencies: int = declare(16, group="table", scope="train", ge=1, le=4_096, needs=(conditions.chosen("numeric_embedding", "periodic"),),
        about="Frequencies of each input.")
    numeric_embedding_sigma: float = declare(0.1, group="table", scope="train", gt=0, le=1_000_000, needs=(conditions.chosen("numeric_embedding", "periodic"),),
        about="Standard deviation of the initial frequencies, in periods per unit of the scaled input.")
    # fmt: on
