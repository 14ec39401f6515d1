"""Declare every hyperparameter of a job; docs/hyperparameters.md is generated from these declarations."""

from typing import Any, Literal, Self, get_args

from pydantic import field_validator, model_validator

from contracts import conditions, value_types
from contracts.data_and_model import DataAndModel
from contracts.declaration import Declaration, Scope, declaration_of, declare
from contracts.model_classes import TRANSFORMER_CLASSES, ModelClass, model_class
from contracts.text_fields import ModelTextField, resolve_text_field
from contracts.threshold_targets import ThresholdTarget, canonical_threshold, parse_threshold
from contracts.tuning import EnsembleModel, Tuning

Metric = Literal["auroc", "average_precision", "f1_score", "precision", "recall", "accuracy"]
Preset = Literal["documents", "recommended", "best"]
OnnxVariant = Literal["fused", "int8"]
ONNX_VARIANTS: tuple[str, ...] = get_args(OnnxVariant)
METRICS: tuple[str, ...] = get_args(Metric)

# Under these schedules each rank has two shorter stages. Zero-bubble schedules run the backward pass in two parts.
ZERO_BUBBLE_SCHEDULES = ("InterleavedZeroBubble", "ZBVZeroBubble")
TWO_STAGE_SCHEDULES = ("Interleaved1F1B", *ZERO_BUBBLE_SCHEDULES)

BALANCED = "balanced"


class Hyperparameters(DataAndModel):
    """A typed job configuration; contracts.hyperparameter_files creates it and checks its settings for contradictions."""

    # fmt: off
    preset: Preset = declare("documents", group="training", scope="run",
        about="Values of the settings that you do not set: documents = the declared defaults; recommended = values that gave better models in measurements, for about the same time; best = the same, with several networks, for several times the time (docs/presets.md).")
    batch_size: int = declare(32, group="training", scope="run", ge=1, le=1_000_000,
        about="Records per data-parallel rank and forward pass; a pipeline splits them into num_microbatches microbatches.")
    max_epochs: int = declare(10, group="training", scope="run", ge=1, le=1_000_000, about="Maximum number of passes over train.")
    lr: float = declare(2e-5, group="training", scope="train", gt=0, le=1_000, about="Peak learning rate.")
    head_lr: float | None = declare(None, group="training", scope="train", gt=0, le=1_000,
        about="Peak learning rate of all weights except the encoders' backbones. Default: lr. With a pretrained encoder, about 1e-3 is usually much better.")
    layer_lr_decay: float = declare(1.0, group="training", scope="train", gt=0, le=1, classes=TRANSFORMER_CLASSES,
        about="Factor on lr for each encoder layer between a weight and the top of its encoder; the embeddings have the lowest rate. 1 = lr for every layer.")
    optimizer: Literal["SGD", "Adam", "AdamW"] = declare("AdamW", group="training", scope="train",
        about="Optimizer. Biases and norms get no weight decay.")
    momentum: float = declare(0.9, group="training", scope="train", ge=0, lt=1, needs=(conditions.chosen("optimizer", "SGD"),),
        about="Momentum of SGD.")
    weight_decay: float = declare(0.0, group="training", scope="train", ge=0, le=1_000, about="Weight decay (decoupled with AdamW, L2 otherwise).")
    adam_epsilon: float = declare(1e-8, group="training", scope="train", gt=0, le=1, needs=(conditions.chosen("optimizer", "Adam", "AdamW"),),
        about="Epsilon of Adam and AdamW.")
    loss: Literal["cross_entropy", "focal"] = declare("cross_entropy", group="training", scope="train",
        about="Training loss; focal gives less weight to records that are already classified well. val/loss is always the log loss with class_weights, so that runs can be compared.")
    focal_gamma: float = declare(2.0, group="training", scope="train", ge=0, le=10, needs=(conditions.chosen("loss", "focal"),),
        about="Exponent of the focal loss; 0 is cross entropy.")
    label_smoothing: float = declare(0.0, group="training", scope="train", ge=0, lt=1,
        about="Share of each label that the training loss spreads evenly over all classes.")
    class_weights: list[value_types.ClassWeight] | Literal["balanced"] | None = declare(None, group="training", scope="train",
        about="Weight of each class in the loss, in the order of the class ids; balanced = rows of train / (classes * rows of the class). Default: 1 for each class.")
    ema_decay: float = declare(0.0, group="training", scope="train", ge=0, lt=1,
        about="Decay of an exponential moving average of the weights, e.g. 0.999; 0 = none. The average is validated, evaluated and saved. The decay is smaller in the first steps, so that the average of a short run is not dominated by its initial weights.")
    gradient_clip_val: float = declare(1.0, group="training", scope="train", ge=0, le=1_000_000_000, about="Maximum global gradient norm; 0 = no clipping.")
    accumulate_grad_batches: int = declare(1, group="training", scope="run", ge=1, le=1_000_000, about="Forward passes per optimizer step and rank.")
    max_tokens_per_batch: int = declare(0, group="training", scope="run", ge=0, le=1_000_000_000,
        about="Maximum number of tokens of all texts, without padding, per data-parallel rank and forward pass; 0 = no limit. A step still trains on batch_size x accumulate_grad_batches records of each rank, in as few passes as the limit allows. A longer record is a batch of its own. A batch of a prediction can be larger than batch_size: up to 32 records and 4 x batch_size, on GPUs 256 and 8 x; not with activation_checkpointing.")
    warmup_steps: int = declare(300, group="training", scope="train", ge=0, le=1_000_000_000,
        about="Optimizer steps of linear warmup. The default is reduced to a tenth of the steps of a short run; any other value is used unchanged.")
    run_scheduler: bool = declare(True, group="training", scope="train",
        about="Decay the learning rate linearly after the warmup; false = keep it constant.")
    lr_decay: float = declare(0.05, group="training", scope="train", ge=0, le=1, needs=(conditions.DECAYS,),
        about="Fraction of lr at the end of the linear decay.")
    fp16: bool = declare(False, group="training", scope="train", about="Autocast to float16, with gradient scaling.")
    bf16: bool | Literal["auto"] = declare("auto", group="training", scope="train", about="Autocast to bfloat16; auto = on GPUs that have it (Ampere or newer), unless fp16 is set. A CPU without AMX (amx_bf16) is faster with float32.")
    tf32: bool = declare(False, group="training", scope="train",
        about="On GPUs, compute what training computes in float32 with TF32 matrix products: faster, with 10 bits instead of 23. Predictions of the final model do not use it.")
    seed: int = declare(42, group="training", scope="prepare", ge=0, lt=2**63,
        about="Seed of the initial weights, the order of records, the folds and dropout.")

    early_stop_metric: str = declare("val/f1_score", group="control", scope="train",
        about="Metric that decides which weights are best and when to stop: val/loss, or val/ and a metric, e.g. val/auroc. Of equal values, the lower val/loss decides.")
    early_stop_patience: int = declare(3, group="control", scope="run", ge=1, le=1_000_000,
        about="Epochs without a better early_stop_metric before training stops.")
    val_check_interval: float = declare(0.25, group="control", scope="run", gt=0, le=1_000_000_000,
        about="Interval of validations: a fraction of an epoch (up to 1), or a number of optimizer steps (above 1).")
    metric_choices: list[Metric] = declare(["auroc", "f1_score"], group="control", scope="run", min_length=1,
        about="Metrics of each validation during training. The final evaluation computes all metrics.")
    load_ckpt: bool = declare(True, group="control", scope="after", about="Evaluate and save the best weights; false = the last weights.")
    resume: bool = declare(True, group="control", scope="run", about="Resume from the newest complete checkpoint in checkpoints/.")
    keep_checkpoints: int = declare(2, group="control", scope="run", ge=1, le=1_000_000,
        about="Number of newest checkpoints to keep; the best one is kept in addition.")
    checkpoint_every_n_steps: int = declare(0, group="control", scope="run", ge=0, le=1_000_000_000,
        about="Also save a checkpoint every n optimizer steps; 0 = only at validations.")
    log_every_n_steps: int = declare(20, group="control", scope="run", ge=1, le=1_000_000_000, about="Optimizer steps between progress lines.")
    tuning: Tuning | None = declare(None, group="control", scope="run",
        about="Search for the best values of other settings before the training: an object with the keys metric, trials, max_hours, parallel, space and final_seeds (docs/tuning.md).")
    ensemble: int = declare(1, group="control", scope="train", ge=1, le=100,
        about="Number of networks, trained with the seeds seed, seed + 1, ...; ensemble_model makes one model of them (docs/ensembles.md).")
    cross_fit: int = declare(0, group="control", scope="train", ge=0, le=100,
        about="Number of networks, each trained without one fold of train; 0 = off. ensemble_model makes one model of them. output/data/train_out_of_fold.parquet gets the probabilities of each training row by the network that did not train on it (docs/ensembles.md).")
    ensemble_model: EnsembleModel = declare("average", group="control", scope="train",
        about="The model of the networks of ensemble, cross_fit or final_seeds: average = all of them in one graph, with the average of their probabilities; distill = one more network, trained on the labels and on their probabilities of train.")
    max_nonfinite_steps: int = declare(5, group="control", scope="run", ge=1, le=1_000_000,
        about="Consecutive optimizer steps with a non-finite loss or gradient before the job fails; such steps are skipped.")

    prediction_dtype: Literal["float32", "bfloat16"] = declare("float32", group="outcome", scope="after",
        about="Data type of matrix products in the final predictions of val and test. bfloat16 is faster on GPUs since Ampere. It is used only if no probability of 256 val records differs by 1e-3 or more from float32, in which the model is served; the log names the difference.")
    calibration: Literal["none", "temperature", "isotonic"] = declare("none", group="outcome", scope="after",
        about="Calibration of the probabilities, fitted on val after training. temperature divides the logits by one number: the most probable class stays the same, with two classes also the order of records. isotonic maps each class's probability through a monotone function and needs some thousand val records. temperature cannot undo class_weights: with two classes, also set target_prior. The calibration is part of model.onnx and of the Predictor.")
    target_prior: float | None = declare(None, group="outcome", scope="after", gt=0, lt=1,
        about="Two classes: the share of class 1 in the data that the model will score, if it differs from train. The probabilities are corrected for this share.")
    decision_threshold: value_types.Threshold | str = declare(0.5, group="outcome", scope="after",
        about="Two classes: the probability from which a record is assigned to class 1. A number between 0 and 1, or a target on val: best_f1, precision>=x (with the highest recall), recall>=x (with the highest precision), or cost.")
    companion: bool = declare(False, group="outcome", scope="after",
        about="Fit boosted trees on the table and on features of the texts, and blend them with the network if that improves the log loss on val by more than its standard error. They are part of model.onnx and of the Predictor (docs/companion.md).")
    label_issues: bool = declare(False, group="outcome", scope="after",
        about="Write output/data/label_issues.csv: the training rows whose label is probably wrong, by out-of-fold probabilities of the trees that companion fits (docs/companion.md).")
    explain: int = declare(500, group="outcome", scope="after", ge=0, le=1_000_000_000, needs=(conditions.SEVERAL_COLUMNS,),
        about="Number of val records on which the importance of each column and modality is measured (permutation importance, ablation); true = 500, false or 0 = none. Takes at most about a minute, on a slow machine five.")
    onnx_variants: list[OnnxVariant] = declare([], group="outcome", scope="after",
        about="Also write model.fused.onnx (fused operators, the same arithmetic) or model.int8.onnx (fused, 8-bit weights). A variant is kept only if its AUROC on val falls by at most 0.002.")
    false_positive_cost: float = declare(1.0, group="outcome", scope="after", gt=0, le=1_000_000_000, needs=(conditions.COSTS,),
        about="Cost of assigning a record to class 1 wrongly, for decision_threshold=cost.")
    false_negative_cost: float = declare(1.0, group="outcome", scope="after", gt=0, le=1_000_000_000, needs=(conditions.COSTS,),
        about="Cost of missing a record of class 1, for decision_threshold=cost.")

    nproc_per_node: int | None = declare(None, group="processes", scope="run", ge=1, le=1_024,
        about="Worker processes per host. Default: number of GPUs, or 1.")
    preprocess_workers: int | None = declare(None, group="processes", scope="run", ge=1, le=1_024,
        about="Processes that prepare data. Default: number of cores.")
    strategy: Literal["auto", "ddp", "fsdp", "hsdp", "tp", "pp", "branch"] = declare("auto", group="processes", scope="run", needs=(conditions.PROCESSES,),
        about="Parallelism: ddp = replicas; fsdp = shards; hsdp = shards within each replica; tp = slices of layers; pp = stages; branch = one text encoder per rank; auto = the sizes below, and replicas on the remaining processes.")
    dp_replicate_size: int = declare(-1, group="processes", scope="run", ge=-1, le=100_000, about="Number of replicas; -1 = all remaining processes.")
    dp_shard_size: int = declare(1, group="processes", scope="run", ge=-1, le=100_000,
        about="Ranks that share one sharded copy of the model; -1 = all remaining processes.")
    pp_size: int = declare(1, group="processes", scope="run", ge=-1, le=100_000, about="Ranks of a pipeline; -1 = all remaining processes.")
    tp_size: int = declare(1, group="processes", scope="run", ge=-1, le=100_000, about="Ranks that each layer is divided between; -1 = all remaining processes.")
    branch_size: int = declare(1, group="processes", scope="run", ge=-1, le=100_000,
        about="Ranks that the text encoders are divided between; -1 = one rank per encoder.")
    pp_schedule: Literal["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"] = declare("1F1B", group="processes", scope="run", features=("pp",),
        about="Pipeline schedule; the last three give each rank two shorter stages.")
    num_microbatches: int = declare(4, group="processes", scope="run", ge=1, le=1_000_000, features=("pp",),
        about="Microbatches per forward pass of a pipeline, of batch_size / num_microbatches records each.")
    sharding_strategy: Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"] = declare("FULL_SHARD", group="processes", scope="run", needs=(conditions.SHARDS,),
        about="What dp_shard shards: FULL_SHARD = everything; SHARD_GRAD_OP = gradients and optimizer state, with the parameters gathered from forward to backward; NO_SHARD = nothing, so that fsdp's ranks are replicas.")
    fsdp_wrap: Literal["layer", "size"] = declare("layer", group="processes", scope="run", features=("fsdp",),
        about="Unit that is gathered and freed together: each encoder layer, or modules of at least fsdp_min_params parameters.")
    fsdp_min_params: int = declare(1_000_000, group="processes", scope="run", ge=1, le=1_000_000_000_000, features=("fsdp",), needs=(conditions.chosen("fsdp_wrap", "size"),),
        about="Minimum number of parameters of a unit, for fsdp_wrap=size.")
    fsdp_reduce_dtype: Literal["float32", "bfloat16"] = declare("float32", group="processes", scope="run", features=("fsdp",), needs=(conditions.AUTOCAST,),
        about="Data type in which gradients are summed, for bf16 or fp16.")
    fsdp_accumulation: Literal["shards", "whole"] = declare("shards", group="processes", scope="run", features=("fsdp",), needs=(conditions.ACCUMULATES,),
        about="Gradients that a rank keeps between the passes of accumulate_grad_batches: shards, which are reduced after every pass, or whole ones, which are reduced once per step and need 4 bytes per parameter. Replicas of shards are always summed once per step. A pipeline reduces after each of its passes.")
    cpu_offload: bool = declare(False, group="processes", scope="run", features=("fsdp",),
        about="Keep shards of parameters, gradients and optimizer state in the host's memory. Slow; for models that do not fit otherwise.")
    bucket_cap_mb: int = declare(25, group="processes", scope="run", ge=1, le=100_000, features=("ddp",),
        about="Size of a gradient bucket in MiB. A bucket is reduced in one operation.")
    gradient_as_bucket_view: bool = declare(True, group="processes", scope="run", features=("ddp",),
        about="Store gradients in the buckets instead of in copies, to save memory.")
    gradient_compression: Literal["none", "fp16", "bf16", "powersgd"] = declare("none", group="processes", scope="run", features=("ddp",),
        about="Compression of gradients for communication; powersgd sends low-rank approximations. Results differ from those of one process.")
    powersgd_rank: int = declare(1, group="processes", scope="run", ge=1, le=4_096, features=("ddp",), needs=(conditions.chosen("gradient_compression", "powersgd"),),
        about="Rank of the approximation, for gradient_compression=powersgd.")
    sequence_parallel: bool = declare(False, group="processes", scope="run", features=("tp",),
        about="Also shard the operations between the sliced matrix products (norms, dropout) over tp, to save memory.")
    activation_checkpointing: int = declare(0, group="processes", scope="run", ge=0, le=1_000, classes=TRANSFORMER_CLASSES,
        about="Recompute every n-th encoder layer in the backward pass instead of keeping its activations; 1 = every layer, 0 = none.")
    compile: bool | Literal["auto"] = declare("auto", group="processes", scope="run", classes=TRANSFORMER_CLASSES,
        about="Compile encoder layers with torch.compile; the first steps take longer. auto = on GPUs, where the image has a C compiler, Python's header files and Triton, without pp and tp.")
    max_restarts: int = declare(3, group="processes", scope="run", ge=0, le=1_000,
        about="Number of times that workers killed by a signal are restarted from the newest checkpoint. Errors that name their cause are not retried.")
    process_group_timeout_minutes: float = declare(10, group="processes", scope="run", gt=0, le=50_000, needs=(conditions.PROCESSES,),
        about="Minutes that a collective operation waits for the other processes before the job fails.")
    log_all_ranks: bool = declare(False, group="processes", scope="run", needs=(conditions.PROCESSES,),
        about="Log the progress of every process, prefixed with its rank. By default, ranks above 0 log only warnings.")
    profile: bool = declare(False, group="processes", scope="run",
        about="Trace some steps: output/data/profile/ gets the trace and a table of the ten most expensive operations.")

    mlflow_tracking_uri: value_types.TrackingUri | None = declare(None, group="tracking", scope="run",
        about="MLflow server that gets the finished job's results. A name or password goes into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. Default: none.")
    mlflow_experiment: str = declare("Default", group="tracking", scope="run", min_length=1, max_length=250, needs=(conditions.TRACKED,),
        about="Experiment of the run; created if it does not exist.")
    mlflow_run_name: str | None = declare(None, group="tracking", scope="run", min_length=1, max_length=250, needs=(conditions.TRACKED,),
        about="Name of the run. Default: the name of the SageMaker training job, or a name that MLflow chooses.")
    mlflow_tags: dict[value_types.TagKey, value_types.TagValue] = declare({}, group="tracking", scope="run", max_length=50, needs=(conditions.TRACKED,),
        about="Tags of the run.")
    # fmt: on

    _canonical_threshold = field_validator("decision_threshold")(canonical_threshold)

    @field_validator("explain", mode="before")
    @classmethod
    def _number_of_records(cls, value: Any) -> Any:
        """Return the default number of records for true, and 0 for false."""
        words = {"true": True, "false": False}
        switched = words.get(str(value).strip().lower()) if isinstance(value, (bool, str)) else None
        return value if switched is None else cls.model_fields["explain"].default * switched

    @model_validator(mode="after")
    def _normalize(self) -> Self:
        """Derive num_layers and num_channels from each other, then mark values that equal their default as not set.

        A configuration written with its defaults (model/hyperparameters.json) is therefore the same when it is read.
        """
        fields = type(self).model_fields
        if self.model_class.endswith("_cnn"):
            if "num_layers" not in self.model_fields_set:
                object.__setattr__(self, "num_layers", len(self.num_channels))
            elif "num_channels" not in self.model_fields_set:
                object.__setattr__(self, "num_channels", self.num_channels[:1] * self.num_layers)
            self.model_fields_set.update(("num_layers", "num_channels"))
        self.model_fields_set.difference_update(
            [name for name, field in fields.items() if getattr(self, name) == field.default]
        )
        return self

    @classmethod
    def declarations(cls) -> dict[str, Declaration]:
        """Return the declaration of every hyperparameter."""
        return {name: declaration_of(field) for name, field in cls.model_fields.items()}

    @classmethod
    def names_of(cls, *scopes: Scope) -> list[str]:
        """Return the names of the hyperparameters with one of `scopes`."""
        return [name for name, declaration in cls.declarations().items() if declaration.scope in scopes]

    @property
    def architecture(self) -> ModelClass:
        return model_class(self.model_class)

    @property
    def text_fields(self) -> tuple[ModelTextField, ...]:
        """Return the text columns that the model reads, in order, with overrides resolved."""
        roles = ("text",) if self.architecture.num_texts == 1 else ("primary", "secondary")
        return tuple(resolve_text_field(self, role) for role in roles)

    @property
    def has_table(self) -> bool:
        """Return whether a number or a category enters the model."""
        return self.architecture.uses_table and bool(self.tab_field_list or self.encoded_categories)

    @property
    def encoded_categories(self) -> list[str]:
        """Return the categorical columns that become risk values, in order."""
        chosen = self.categorical_features_to_encode
        return [name for name in self.cat_field_list if chosen is None or name in chosen]

    @property
    def num_members(self) -> int:
        """Return the number of networks that the model is made of; 1 = an ordinary training."""
        return self.cross_fit or self.ensemble

    @property
    def threshold(self) -> float | ThresholdTarget:
        """Return decision_threshold as a number, or as the target for which it is chosen on val."""
        return parse_threshold(self.decision_threshold)

    @property
    def fusion_width(self) -> int:
        """Return F, the width of the fusion head."""
        wide = self.architecture.fusion in ("concat_mlp", "cross_attention_texts")
        default = max(128, 3 * self.hidden_common_dim // 2) if wide else self.hidden_common_dim
        return self.fusion_hidden_dim or default
