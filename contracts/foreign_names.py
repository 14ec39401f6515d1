"""Know the hyperparameters of other trainers: transformers, Lightning, FSDP1, SageMaker's built-in algorithms."""

from collections.abc import Iterable

from contracts.spelling import did_you_mean, letters

_OURS = {  # our name, and names elsewhere that did_you_mean would not find, or would take for another one
    "accumulate_grad_batches": "gradient_accumulation_steps grad_accum_steps accumulation_steps",
    "activation_checkpointing": "gradient_checkpointing gradient_checkpointing_enable",
    "adam_epsilon": "eps epsilon",
    "batch_size": "per_device_train_batch_size per_gpu_train_batch_size train_batch_size mini_batch_size batch "
    "per_device_eval_batch_size eval_batch_size micro_batch_size microbatch_size",
    "bf16": "mixed_precision precision torch_dtype dtype param_dtype",
    "cat_field_list": "categorical_columns categorical_features cat_features cat_columns",
    "checkpoint_every_n_steps": "save_every save_steps save_interval save_strategy every_n_train_steps save_freq",
    "class_weights": "class_weight scale_pos_weight pos_weight weights",
    "cpu_offload": "offload_params offload_to_cpu cpu_offload_policy offload_optimizer",
    "decision_threshold": "threshold",
    "dp_replicate_size": "num_replicas data_parallel_replicate_degree",
    "dp_shard_size": "dp_size data_parallel_size dp_degree data_parallel_shard_degree fsdp_size",
    "dropout": "dropout_rate hidden_dropout dropout_prob drop_rate",
    "early_stop_metric": "metric_for_best_model monitor eval_metric early_stopping_metric",
    "early_stop_patience": "early_stopping_patience patience early_stopping_rounds",
    "encoder_config": "hidden_size num_hidden_layers num_attention_heads intermediate_size vocab_size text_config "
    "attention_dropout attention_probs_dropout_prob hidden_dropout_prob",
    "fp16": "use_amp amp",
    "gradient_clip_val": "max_grad_norm clip_grad_norm gradient_clipping grad_clip clip_norm",
    "id_name": "id_column id_field",
    "keep_checkpoints": "save_total_limit save_top_k",
    "label_name": "label_column target_column label_field target label",
    "layer_lr_decay": "llrd layerwise_lr_decay",
    "load_ckpt": "load_best_model_at_end",
    "log_every_n_steps": "logging_steps logging_strategy log_interval print_freq",
    "lora_rank": "lora_r",
    "lora_target": "target_modules lora_target_modules",
    "loss": "objective criterion loss_fn loss_function",
    "lr": "learning_rate eta base_lr init_lr initial_lr max_lr",
    "max_epochs": "num_train_epochs epochs num_epochs n_epochs epoch max_steps max_train_steps num_round "
    "num_boost_round n_estimators",
    "max_sen_len": "max_seq_length max_length max_seq_len max_sequence_length max_len model_max_length "
    "chunk_size chunk_length",
    "nproc_per_node": "devices gpus num_gpus n_gpu num_processes gpus_per_node world_size",
    "num_classes": "num_labels num_class n_classes",
    "num_microbatches": "microbatches n_microbatches chunks",
    "optimizer": "optim optimizer_name optimizer_type",
    "pp_schedule": "schedule pipeline_schedule",
    "pp_size": "pipeline_parallel_size pipeline_parallel_degree pipeline_model_parallel_size num_stages",
    "preprocess_workers": "num_workers dataloader_num_workers preprocessing_num_workers",
    "process_group_timeout_minutes": "ddp_timeout",
    "resume": "resume_from_checkpoint ckpt_path checkpoint_path",
    "run_scheduler": "lr_scheduler_type scheduler lr_scheduler",
    "seed": "random_seed random_state",
    "sequence_parallel": "sp_size sequence_parallel_size",
    "sharding_strategy": "fsdp zero_optimization zero_stage fsdp_sharding_strategy reshard_after_forward",
    "strategy": "distribution distributed_strategy parallelism",
    "text_name": "text_column text_field text",
    "tokenizer": "model_name_or_path model_name pretrained_model_name_or_path encoder bert_model encoder_name",
    "tp_size": "tensor_parallel_size tensor_parallel_degree tensor_model_parallel_size",
    "val_check_interval": "eval_steps eval_strategy evaluation_strategy check_val_every_n_epoch eval_every",
    "warmup_steps": "num_warmup_steps warmup_num_steps warmup_ratio warmup",
}
_NONE = {  # why there is no such setting, and its names elsewhere
    "FSDP2 has no such option": "limit_all_gathers use_orig_params sync_module_states backward_prefetch "
    "forward_prefetch fsdp_backward_prefetch fsdp_use_orig_params fsdp_limit_all_gathers fsdp_sync_module_states",
    "fsdp gathers one encoder layer at a time": "fsdp_wrap fsdp_min_params min_num_params fsdp_min_num_params "
    "auto_wrap_policy fsdp_auto_wrap_policy transformer_layer_cls_to_wrap",
    "there is no context and no expert parallelism": "cp_size ep_size context_parallel_size expert_parallel_size",
    "the channels train, val and test are the split": "train_size val_size eval_size test_size",
    "the rate decays linearly, see run_scheduler": "step_size lr_step_size lr_gamma num_cycles end_lr",
    "it is a setting of boosted trees; companion chooses it": "max_depth min_child_weight subsample colsample_bytree "
    "gamma num_leaves tree_method",
    "the job chooses it": "bucket_cap_mb gradient_as_bucket_view reduce_bucket_size find_unused_parameters "
    "static_graph pin_memory persistent_workers drop_last device accelerator backend "
    "local_rank deepspeed num_nodes dataloader_pin_memory dataloader_drop_last",
    "the folders of a job are fixed": "output_dir logging_dir default_root_dir save_dir model_log_path",
}
HINTS = {
    **{name: f"did you mean {ours!r}?" for ours, names in _OURS.items() for name in names.split()},
    **{name: reason for reason, names in _NONE.items() for name in names.split()},
}


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint about an unknown hyperparameter: of another trainer, or close to a name in `known`; else ""."""
    hint = HINTS.get(letters(name))
    return f"; {hint}" if hint else did_you_mean(name, known)
