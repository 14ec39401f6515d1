"""Every hyperparameter of a job: name, type, default, constraint and meaning; docs/hyperparameters.md is made from it."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from contracts.model_classes import (
    CROSS_ATTENTION_CLASSES,
    MODEL_CLASSES,
    POOLED_CLASSES,
    TRANSFORMER_CLASSES,
    TWO_TEXT_CLASSES,
    ModelClass,
    model_class,
)
from contracts.threshold_targets import ThresholdTarget, parse_threshold

TextStep = Literal[
    "dialogue_splitter", "html_normalizer", "emoji_remover", "text_normalizer", "dialogue_chunker", "tokenizer"
]
Metric = Literal["auroc", "average_precision", "f1_score", "precision", "recall", "accuracy"]
OnnxVariant = Literal["fused", "int8"]
ONNX_VARIANTS: tuple[str, ...] = get_args(OnnxVariant)
METRICS: tuple[str, ...] = get_args(Metric)

FULL_TEXT_STEPS: tuple[TextStep, ...] = (
    "dialogue_splitter", "html_normalizer", "emoji_remover", "text_normalizer", "dialogue_chunker", "tokenizer",
)  # fmt: skip
EVENT_TEXT_STEPS: tuple[TextStep, ...] = ("dialogue_splitter", "text_normalizer", "dialogue_chunker", "tokenizer")

# Each rank of these has two shorter stages; the zero-bubble ones differentiate inputs and weights one after the other.
ZERO_BUBBLE_SCHEDULES = ("InterleavedZeroBubble", "ZBVZeroBubble")
TWO_STAGE_SCHEDULES = ("Interleaved1F1B", *ZERO_BUBBLE_SCHEDULES)

FROM_SCRATCH = "from_scratch"
BALANCED = "balanced"
_POOLED_TWO_TEXT_CLASSES = tuple(name for name in POOLED_CLASSES if name in TWO_TEXT_CLASSES)
FUSION_WIDTH_CLASSES = (*TWO_TEXT_CLASSES, "multimodal_gate_fusion", "multimodal_moe")
FUSION_DROPOUT_CLASSES = (*TWO_TEXT_CLASSES, "multimodal_moe", "multimodal_cross_attn")
ENCODER_SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 8000}


def _field(default: Any = ..., *, group: str, about: str, only: tuple[str, ...] = (), **constraints: Any) -> Any:
    """A hyperparameter; `only` names the model classes, optimizers, choices (focal, periodic) or ways of sharing out work that it belongs to."""
    extra = {"group": group, "only": list(only)}
    return Field(default, description=about, json_schema_extra=extra, **constraints)


@dataclass(frozen=True)
class TextField:
    """One text column, every setting that has a per-field override resolved.

    Attributes:
        role: text (the only one), primary or secondary; prefixes artifacts and ONNX inputs.
        column: the column's name in the table.
    """

    role: str
    column: str
    tokenizer: str
    steps: tuple[str, ...]
    max_sen_len: int
    max_chunks: int | None
    reinit_pooler: bool
    reinit_layers: int
    is_embeddings_trainable: bool
    input_ids_key: str
    attention_mask_key: str


class Hyperparameters(BaseModel):
    """A typed job configuration; made by contracts.hyperparameter_files, which also holds the settings to each other."""

    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, protected_namespaces=(), frozen=True, allow_inf_nan=False
    )

    # fmt: off
    id_name: str = _field(group="data", about="Column of record ids; copied to the predictions untouched.")
    text_name: str | None = _field(None, group="data", about="Text column of the one-text classes; excludes primary_text_name and secondary_text_name.")
    primary_text_name: str | None = _field(None, group="data", about="First text column of the two-text classes, e.g. a chat.")
    secondary_text_name: str | None = _field(None, group="data", about="Second text column of the two-text classes, e.g. an event history.")
    label_name: str = _field(group="data", about="Column of the class label.")
    full_field_list: list[str] | None = _field(None, group="data", about="Columns the data must have, beside every column named elsewhere. Default: those alone.")
    cat_field_list: list[str] = _field([], group="data", about="Categorical columns; each becomes a risk value (binary) or one per class (multiclass).")
    tab_field_list: list[str] = _field([], group="data", about="Numeric columns.")
    categorical_features_to_encode: list[str] | None = _field(None, group="data", about="The columns of cat_field_list that enter the model. Default: all of them.")
    train_filename: str | None = _field(None, group="data", about="Read only this file of the train channel. Default: every data file in it.")
    val_filename: str | None = _field(None, group="data", about="Read only this file of the val channel. Default: every data file in it.")
    test_filename: str | None = _field(None, group="data", about="Read only this file of the test channel. Default: every data file in it.")
    drop_unlabelled: bool = _field(False, group="data", about="Leave out training rows without a label instead of stopping; the count is logged.")

    model_class: str = _field(group="model", about="The architecture: " + ", ".join(MODEL_CLASSES) + ", or an alias (bimodal, trimodal, bimodal_*).")
    tokenizer: str = _field("bert-base-cased", group="model", about="The encoder: a local folder, a folder in input/data/pretrained/, a Hugging Face id, or from_scratch.")
    primary_tokenizer: str | None = _field(None, group="model", about="Encoder of the primary text. Default: tokenizer.", only=TWO_TEXT_CLASSES)
    secondary_tokenizer: str | None = _field(None, group="model", about="Encoder of the secondary text. Default: tokenizer.", only=TWO_TEXT_CLASSES)
    encoder_config: dict[str, Any] = _field({}, group="model", about=f"With from_scratch: the encoder's sizes (defaults {ENCODER_SIZES}); with a pretrained encoder: overrides of its config that keep every shape, e.g. hidden_dropout_prob.")
    num_classes: int = _field(2, group="model", about="Number of classes.", ge=2)
    is_binary: bool = _field(True, group="model", about="Two classes, one score: the probability of class 1.")
    multiclass_categories: list[int | str] | None = _field(None, group="model", about="Class labels in the order of their ids; required unless is_binary. Binary default: the two labels of train, sorted.")
    hidden_common_dim: int = _field(100, group="model", about="Width H of each modality's features.", ge=1)
    input_tab_dim: int | None = _field(None, group="model", about="Number of tabular inputs; computed, and checked against this where given (numeric columns, or numeric + risk columns).", ge=0)
    fusion_hidden_dim: int | None = _field(None, group="model", about="Width F of the fusion head. Default: max(128, 3H/2) for trimodal_bert and trimodal_cross_attn, H for the rest.", only=FUSION_WIDTH_CLASSES, ge=1)
    dropout: float = _field(0.1, group="model", about="Dropout of the text heads and the tabular branch.", ge=0, lt=1)
    fusion_dropout: float = _field(0.1, group="model", about="Dropout of the fusion head.", only=FUSION_DROPOUT_CLASSES, ge=0, lt=1)
    fusion_attention_heads: int = _field(4, group="model", about="Attention heads of the cross-attention; must divide hidden_common_dim.", only=CROSS_ATTENTION_CLASSES, ge=1)
    num_experts: int = _field(4, group="model", about="Experts of the mixture: small networks over text and table.", only=("multimodal_moe",), ge=2)
    experts_per_record: int = _field(2, group="model", about="Experts that decide about a record: the highest of the router's scores.", only=("multimodal_moe",), ge=1)
    expert_balance: float = _field(0.01, group="model", about="Weight of the load-balancing loss, which evens out how many records each expert gets; 0 = off. Under adam and adamw the experts' balance moves by about head_lr a step, whatever the weight.", only=("multimodal_moe",), ge=0)
    modality_dropout: float = _field(0.0, group="model", about="Probability with which, in training, a record does without its table, or without one of its texts; never without all. Makes the model less dependent on one of them.", ge=0, lt=1)
    share_encoder: bool = _field(False, group="model", about="Both texts go through one encoder; each keeps its own projection. Needs one pretrained tokenizer, and the same reinit_* and is_embeddings_trainable, for both.", only=TWO_TEXT_CLASSES)
    is_embeddings_trainable: bool = _field(True, group="model", about="Train the encoder's embedding tables.")
    primary_is_embeddings_trainable: bool | None = _field(None, group="model", about="Override for the primary text.", only=TWO_TEXT_CLASSES)
    secondary_is_embeddings_trainable: bool | None = _field(None, group="model", about="Override for the secondary text.", only=TWO_TEXT_CLASSES)
    pooling: Literal["first", "mean"] = _field("first", group="model", about="Vector of a chunk: a pooler over its first token, or the mean of its tokens, as sentence encoders (MiniLM, mpnet, e5) are trained with.", only=POOLED_CLASSES)
    reinit_pooler: bool = _field(True, group="model", about="Redraw the pooler of a pretrained encoder.", only=POOLED_CLASSES)
    primary_reinit_pooler: bool | None = _field(None, group="model", about="Override for the primary text.", only=_POOLED_TWO_TEXT_CLASSES)
    secondary_reinit_pooler: bool | None = _field(None, group="model", about="Override for the secondary text.", only=_POOLED_TWO_TEXT_CLASSES)
    reinit_layers: int = _field(2, group="model", about="Redraw the last n layers of a pretrained encoder.", only=TRANSFORMER_CLASSES, ge=0)
    primary_reinit_layers: int | None = _field(None, group="model", about="Override for the primary text.", only=TWO_TEXT_CLASSES, ge=0)
    secondary_reinit_layers: int | None = _field(None, group="model", about="Override for the secondary text.", only=TWO_TEXT_CLASSES, ge=0)
    lora_rank: int = _field(0, group="model", about="Train low-rank changes of the pretrained encoders' layers, of this rank, instead of the encoders; 0 = train the encoders. Merged into plain weights in model.pth and model.onnx. Needs reinit_layers 0.", only=TRANSFORMER_CLASSES, ge=0)
    lora_alpha: float = _field(16.0, group="model", about="Weight of the changes: they are multiplied by lora_alpha / lora_rank.", only=TRANSFORMER_CLASSES, gt=0)
    lora_target: Literal["attention", "linear"] = _field("attention", group="model", about="The linear layers that are changed: those of the attention, or all of the encoder's layers.", only=TRANSFORMER_CLASSES)
    kernel_size: list[int] = _field([3, 5, 7], group="model", about="Tokens that each set of convolutions sees at once.", only=("multimodal_cnn",), min_length=1)
    num_channels: list[int] = _field([100, 100], group="model", about="Channels of each convolutional layer. Default: 100 for each of num_layers.", only=("multimodal_cnn",), min_length=1)
    num_layers: int = _field(2, group="model", about="Recurrent or convolutional layers; num_channels, where it is set, must name as many.", only=("lstm", "multimodal_cnn"), ge=1)
    dropout_keep: float = _field(0.5, group="model", about="Share that dropout keeps: between recurrent layers, and of what the convolutions found.", only=("lstm", "multimodal_cnn"), gt=0, le=1)

    max_sen_len: int = _field(512, group="text", about="Tokens per chunk, special tokens counted.", ge=4)
    primary_max_sen_len: int | None = _field(None, group="text", about="Override for the primary text.", only=TWO_TEXT_CLASSES, ge=4)
    secondary_max_sen_len: int | None = _field(None, group="text", about="Override for the secondary text.", only=TWO_TEXT_CLASSES, ge=4)
    chunk_trancate: bool = _field(False, group="text", about="Keep only the first max_total_chunks chunks of a record; what is cut is counted and logged. Also spelled chunk_truncate.")
    max_total_chunks: int = _field(5, group="text", about="Chunks kept per record and text when chunk_trancate is on.", ge=1)
    fixed_tokenizer_length: bool = _field(True, group="text", about="Accepted for older configurations. Nothing is padded, so it has no effect, and the log says so when it is set.")
    text_input_ids_key: str = _field("input_ids", group="text", about="Name of the token input in model.onnx (after primary_ or secondary_ with two texts).", min_length=1)
    text_attention_mask_key: str = _field("attention_mask", group="text", about="Name of the mask input in model.onnx, likewise.", min_length=1)
    text_processing_steps: list[TextStep] | None = _field(None, group="text", about="Steps for the one text, in order. Default: " + ", ".join(FULL_TEXT_STEPS) + ".")
    primary_text_processing_steps: list[TextStep] | None = _field(None, group="text", about="Steps for the primary text. Default: all, as above.", only=TWO_TEXT_CLASSES)
    secondary_text_processing_steps: list[TextStep] | None = _field(None, group="text", about="Steps for the secondary text. Default: " + ", ".join(EVENT_TEXT_STEPS) + ".", only=TWO_TEXT_CLASSES)

    smooth_factor: float = _field(0.0, group="table", about="Risk tables: weight of the prior, as a fraction of the training rows.", ge=0)
    count_threshold: int = _field(0, group="table", about="Risk tables: a category with fewer rows gets the prior.", ge=0)
    risk_table_folds: int = _field(5, group="table", about="Training rows get risk values fitted on the other folds; 0 or 1 = fitted and applied on the same rows.", ge=0)
    imputation_strategy: Literal["mean", "median", "mode"] = _field("mean", group="table", about="What a missing number becomes, fitted on train.")
    imputation_dict: dict[str, float] | None = _field(None, group="table", about="Imputation values given by hand, per column; the rest are fitted.")
    risk_tables: dict[str, dict[str, Any]] | None = _field(None, group="table", about="Risk tables given by hand, per column, in the form of risk_table_map.json; the rest are fitted.")
    category_embedding_dim: int = _field(0, group="table", about="A trained vector of this width for each category of cat_field_list, beside its risk values; 0 = none. For columns of many values, e.g. products.", ge=0)
    category_embedding_min_count: int = _field(5, group="table", about="Categories with fewer rows in train share the vector of those that train did not have.", ge=1)
    numeric_transform: Literal["standard", "quantile", "none"] = _field("standard", group="table", about="Scaling of the tabular inputs between imputation and the model, fitted on train, part of model.pth and model.onnx.")
    numeric_embedding: Literal["none", "piecewise_linear", "periodic"] = _field("none", group="table", about="A vector for each tabular input instead of the number itself: how far it has come through each of its bins, which are quantiles of train, or sines and cosines of trained frequencies (Gorishniy et al. 2022); then a linear layer per input, and ReLU.")
    numeric_embedding_dim: int = _field(16, group="table", about="Width of each input's vector.", only=("piecewise_linear", "periodic"), ge=1)
    numeric_embedding_bins: int = _field(16, group="table", about="Bins of each input; fewer where its quantiles coincide.", only=("piecewise_linear",), ge=1)
    numeric_embedding_frequencies: int = _field(16, group="table", about="Frequencies of each input.", only=("periodic",), ge=1)
    numeric_embedding_sigma: float = _field(0.1, group="table", about="Standard deviation of the first frequencies, in periods per unit of the scaled input.", only=("periodic",), gt=0)

    batch_size: int = _field(32, group="training", about="Records per data-parallel rank and forward pass; a pipeline cuts them into num_microbatches.", ge=1)
    max_epochs: int = _field(10, group="training", about="Passes over train at most.", ge=1)
    lr: float = _field(2e-5, group="training", about="Peak learning rate.", gt=0)
    head_lr: float | None = _field(None, group="training", about="Peak learning rate of everything but the encoders' backbones. Default: lr. Beside a pretrained encoder about 1e-3 is usually much better.", gt=0)
    layer_lr_decay: float = _field(1.0, group="training", about="Factor on lr for each encoder layer between a weight and the top of its encoder; the embeddings learn slowest. 1 = every layer learns at lr.", only=TRANSFORMER_CLASSES, gt=0, le=1)
    optimizer: Literal["SGD", "Adam", "AdamW"] = _field("AdamW", group="training", about="Optimizer; no weight decay on biases and norms.")
    momentum: float = _field(0.9, group="training", about="Momentum of SGD.", only=("SGD",), ge=0, lt=1)
    weight_decay: float = _field(0.0, group="training", about="Weight decay (decoupled with AdamW, L2 otherwise).", ge=0)
    adam_epsilon: float = _field(1e-8, group="training", about="Epsilon of Adam and AdamW.", only=("Adam", "AdamW"), gt=0)
    loss: Literal["cross_entropy", "focal"] = _field("cross_entropy", group="training", about="What is minimised; focal gives less weight to records that are classified well already. val/loss is the log loss with class_weights in any case, so that runs can be compared.")
    focal_gamma: float = _field(2.0, group="training", about="Exponent of the focal loss; 0 is cross entropy.", only=("focal",), ge=0, le=10)
    label_smoothing: float = _field(0.0, group="training", about="Share of each label that is spread evenly over all classes in the training loss.", ge=0, lt=1)
    class_weights: list[float] | Literal["balanced"] | None = _field(None, group="training", about="Weight of each class in the loss, in the order of the class ids; balanced: rows of train / (classes * rows of the class). Default: all 1.")
    ema_decay: float = _field(0.0, group="training", about="Decay of an exponential moving average of the weights, which is what is validated, evaluated and saved; 0 = none. E.g. 0.999. Early steps are forgotten faster, so short runs are no average of their beginnings.", ge=0, lt=1)
    gradient_clip_val: float = _field(1.0, group="training", about="Largest global gradient norm; 0 = no clipping.", ge=0)
    accumulate_grad_batches: int = _field(1, group="training", about="Forward passes per optimizer step and rank.", ge=1)
    warmup_steps: int = _field(300, group="training", about="Optimizer steps of linear warmup. The default shrinks to a tenth of a short run; a number that you set is kept.", ge=0)
    run_scheduler: bool = _field(True, group="training", about="After the warmup decay the rate linearly; otherwise keep it constant.")
    lr_decay: float = _field(0.05, group="training", about="Fraction of lr that the linear decay ends at.", ge=0, le=1)
    fp16: bool = _field(False, group="training", about="Autocast to float16, with gradient scaling.")
    bf16: bool = _field(False, group="training", about="Autocast to bfloat16. A CPU without AMX (amx_bf16) is faster in float32.")
    seed: int = _field(42, group="training", about="Seed of the initial weights, the order of records, the folds and dropout.", ge=0, lt=2**63)

    early_stop_metric: str = _field("val/f1_score", group="control", about="Metric that decides which weights are best and when to stop: val/loss or val/ and a metric.")
    early_stop_patience: int = _field(3, group="control", about="Epochs without a better early_stop_metric before training stops.", ge=1)
    val_check_interval: float = _field(0.25, group="control", about="Validate every this fraction of an epoch (up to 1), or every this many optimizer steps (above 1).", gt=0)
    metric_choices: list[Metric] = _field(["auroc", "f1_score"], group="control", about="Metrics of each validation during training; the final evaluation has all of them.", min_length=1)
    load_ckpt: bool = _field(True, group="control", about="Evaluate and save the best weights; false: the last.")
    resume: bool = _field(True, group="control", about="Go on from the newest complete checkpoint in checkpoints/.")
    keep_checkpoints: int = _field(2, group="control", about="Checkpoints kept, the newest ones; the best is kept beside them.", ge=1)
    checkpoint_every_n_steps: int = _field(0, group="control", about="Also save a checkpoint every n optimizer steps; 0: at validations only.", ge=0)
    log_every_n_steps: int = _field(20, group="control", about="Optimizer steps between progress lines.", ge=1)
    max_nonfinite_steps: int = _field(5, group="control", about="Consecutive optimizer steps with a non-finite loss or gradient before the job fails; such steps are skipped.", ge=1)

    calibration: Literal["none", "temperature", "isotonic"] = _field("none", group="outcome", about="How probabilities are calibrated, fitted on val after training: temperature divides the logits by one number and keeps the order of records; isotonic bends each class's probability by a rising line and wants some thousand val records. A temperature cannot undo class_weights: with two classes, set target_prior too. Part of model.onnx and of the Predictor.")
    target_prior: float | None = _field(None, group="outcome", about="Two classes: the share of class 1 where the model will be used, if it differs from training's; probabilities are corrected for it.", gt=0, lt=1)
    decision_threshold: float | str = _field(0.5, group="outcome", about="Two classes: a record is decided to be of class 1 from this probability on. A number, or what to reach on val: best_f1, precision>=x (with the highest recall), recall>=x (with the highest precision), or cost.")
    explain: int = _field(500, group="outcome", about="Measure on this many val records what each column and modality is worth (permutation importance, ablation), within about a minute, on a slow machine five; true = 500, false or 0 = not at all.", ge=0)
    onnx_variants: list[OnnxVariant] = _field([], group="outcome", about="Also write model.fused.onnx (fused operators, the same arithmetic) or model.int8.onnx (fused, 8-bit weights), each only if its AUROC on val falls by at most 0.002.")
    false_positive_cost: float = _field(1.0, group="outcome", about="What deciding class 1 wrongly costs, with decision_threshold=cost.", gt=0)
    false_negative_cost: float = _field(1.0, group="outcome", about="What missing a record of class 1 costs, with decision_threshold=cost.", gt=0)

    nproc_per_node: int | None = _field(None, group="processes", about="Worker processes per host. Default: number of GPUs, or 1.", ge=1)
    preprocess_workers: int | None = _field(None, group="processes", about="Processes that prepare data. Default: number of cores.", ge=1)
    strategy: Literal["auto", "ddp", "fsdp", "hsdp", "tp", "pp", "branch"] = _field("auto", group="processes", about="How the work is shared out: ddp replicas, fsdp shards, hsdp shards inside and replicas outside, tp slices of layers, pp stages, branch one text encoder per rank; auto: as the sizes below say, replicas of what is left.")
    dp_replicate_size: int = _field(-1, group="processes", about="Replicas; -1 = what is left.", ge=-1)
    dp_shard_size: int = _field(1, group="processes", about="Ranks that share one sharded copy; -1 = what is left.", ge=-1)
    pp_size: int = _field(1, group="processes", about="Ranks of a pipeline; -1 = what is left.", ge=-1)
    tp_size: int = _field(1, group="processes", about="Ranks that share each layer; -1 = what is left.", ge=-1)
    branch_size: int = _field(1, group="processes", about="Ranks that share the text encoders; -1 = one for each.", ge=-1)
    pp_schedule: Literal["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"] = _field("1F1B", group="processes", about="Pipeline schedule; the last three give each rank two shorter stages.", only=("pp",))
    num_microbatches: int = _field(4, group="processes", about="Microbatches in flight in a pipeline, of batch_size / num_microbatches records each.", only=("pp",), ge=1)
    sharding_strategy: Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"] = _field("FULL_SHARD", group="processes", about="What dp_shard splits: everything; gradients and optimizer state, with the parameters gathered from forward to backward; or nothing, which makes fsdp's ranks replicas.", only=("dp_shard",))
    fsdp_wrap: Literal["layer", "size"] = _field("layer", group="processes", about="What is gathered and freed as one: each encoder layer, or modules of at least fsdp_min_params.", only=("fsdp",))
    fsdp_min_params: int = _field(1_000_000, group="processes", about="Parameters of a unit with fsdp_wrap=size.", only=("fsdp",), ge=1)
    fsdp_reduce_dtype: Literal["float32", "bfloat16"] = _field("float32", group="processes", about="What gradients are summed in with bf16 or fp16.", only=("fsdp",))
    cpu_offload: bool = _field(False, group="processes", about="Keep shards of parameters, gradients and optimizer state in the host's memory; slow, for models that fit in no other way.", only=("fsdp",))
    bucket_cap_mb: int = _field(25, group="processes", about="MiB of gradients that travel together.", only=("ddp",), ge=1)
    gradient_as_bucket_view: bool = _field(True, group="processes", about="Gradients live in the buckets that travel instead of in copies: less memory.", only=("ddp",))
    gradient_compression: Literal["none", "fp16", "bf16", "powersgd"] = _field("none", group="processes", about="How gradients are compressed on their way; powersgd sends low-rank approximations. Results differ from one process's.", only=("ddp",))
    powersgd_rank: int = _field(1, group="processes", about="Rank of the approximation with gradient_compression=powersgd.", only=("ddp",), ge=1)
    sequence_parallel: bool = _field(False, group="processes", about="Also share out, over tp, what lies between the sliced matrix products (norms, dropout): less memory.", only=("tp",))
    activation_checkpointing: int = _field(0, group="processes", about="Compute every n-th encoder layer again in the backward pass instead of keeping its activations; 1 = every layer, 0 = none.", only=TRANSFORMER_CLASSES, ge=0)
    compile: bool = _field(False, group="processes", about="Compile encoder layers with torch.compile; the first steps take longer.", only=TRANSFORMER_CLASSES)
    max_restarts: int = _field(3, group="processes", about="Times that workers killed by a signal are started again from the newest checkpoint. An error that names its cause is not tried again.", ge=0)
    profile: bool = _field(False, group="processes", about="Trace some steps: output/data/profile/ gets the trace and a table of the ten costliest operations.")
    # fmt: on

    @field_validator("decision_threshold")
    @classmethod
    def _known_threshold(cls, value: float | str) -> float | str:
        """A number as a number, a target as it is always written."""
        parsed = parse_threshold(value)
        return str(parsed) if isinstance(parsed, ThresholdTarget) else parsed

    @field_validator("explain", mode="before")
    @classmethod
    def _number_of_records(cls, value: Any) -> Any:
        """true is the default number of records, not 1."""
        switched = {"true": True, "false": False}.get(str(value).strip().lower())
        return value if switched is None else cls.model_fields["explain"].default * switched

    @property
    def architecture(self) -> ModelClass:
        return model_class(self.model_class)

    @property
    def text_fields(self) -> tuple[TextField, ...]:
        """The text columns the model reads, in order, with overrides resolved."""
        roles = ("text",) if self.architecture.num_texts == 1 else ("primary", "secondary")
        return tuple(self._text_field(role) for role in roles)

    @property
    def has_table(self) -> bool:
        """Whether a number or a category enters the model."""
        return self.architecture.uses_table and bool(self.tab_field_list or self.encoded_categories)

    @property
    def encoded_categories(self) -> list[str]:
        """Categorical columns that become risk values, in order."""
        if self.categorical_features_to_encode is None:
            return list(self.cat_field_list)
        return [name for name in self.cat_field_list if name in self.categorical_features_to_encode]

    @property
    def threshold(self) -> float | ThresholdTarget:
        """decision_threshold: a number, or what it is chosen for on val."""
        return parse_threshold(self.decision_threshold)

    @property
    def fusion_width(self) -> int:
        """F, width of the fusion head."""
        default = self.hidden_common_dim
        if self.architecture.fusion in ("concat_mlp", "cross_attention_texts"):
            default = max(128, 3 * self.hidden_common_dim // 2)
        return self.fusion_hidden_dim or default

    @property
    def conv_channels(self) -> list[int]:
        """Channels of each convolutional layer."""
        if "num_layers" in self.model_fields_set and "num_channels" not in self.model_fields_set:
            return [self.num_channels[0]] * self.num_layers
        return list(self.num_channels)

    def _text_field(self, role: str) -> TextField:
        def pick(name: str) -> Any:
            override = getattr(self, f"{role}_{name}", None) if role != "text" else None
            return getattr(self, name, None) if override is None else override

        prefix = "" if role == "text" else f"{role}_"
        default_steps = EVENT_TEXT_STEPS if role == "secondary" else FULL_TEXT_STEPS
        column = getattr(self, "text_name" if role == "text" else f"{role}_text_name")
        assert column is not None, "check_consistency requires the column"
        return TextField(
            role=role,
            column=column,
            tokenizer=pick("tokenizer"),
            steps=tuple(getattr(self, f"{prefix}text_processing_steps") or default_steps),
            max_sen_len=pick("max_sen_len"),
            max_chunks=self.max_total_chunks if self.chunk_trancate else None,
            reinit_pooler=pick("reinit_pooler"),
            reinit_layers=pick("reinit_layers"),
            is_embeddings_trainable=pick("is_embeddings_trainable"),
            input_ids_key=prefix + self.text_input_ids_key,
            attention_mask_key=prefix + self.text_attention_mask_key,
        )
