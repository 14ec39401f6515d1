"""Configurations of pipelines for the tests, and helpers to read definitions."""

import copy
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.config import PipelineConfig
from testing.jobs import TINY_ENCODER

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/text-table-trainer@sha256:" + "0" * 64
AWS: dict[str, Any] = {
    "region": "eu-west-1",
    "role": "arn:aws:iam::123456789012:role/SageMaker",
    "image": IMAGE,
    "accelerator": "cuda",
    "bucket": "my-bucket",
}
EVERYTHING: dict[str, Any] = {
    **AWS,
    "prefix": "teams/risk",
    "inputs": {
        "input_data": "s3://raw/table/",
        "pretrained": "s3://raw/encoders",
        "initial_model": "s3://raw/initial",
        "model_artifacts_input": "s3://raw/artifacts",
        "previous_eval_output": "s3://raw/previous",
        "inference_scripts_input": "s3://raw/scripts",
        "calibration_model": "s3://raw/calibration",
        "batch_input": "s3://raw/records/",
    },
    "steps": {
        "BatchScore": {"instance_type": "ml.c5.xlarge", "instance_count": 2},
        "TabularPreprocessing": {"instance_count": 3, "volume_gb": 200},
        "PyTorchTraining": {"instance_type": "ml.g5.2xlarge", "instance_count": 2, "max_runtime_seconds": 7200},
    },
    "training": {
        "input_mode": "FastFile",
        "tensorboard": True,
    },
    "spot": {"enabled": True, "max_wait_seconds": 10_000},
    "deploy": {
        "endpoint": "claims",
        "real_time": {
            "instance_type": "ml.c5.large",
            "instance_count": 2,
            "capture_percent": 20,
        },
    },
    "retries": {"max_attempts": 5, "interval_seconds": 10, "backoff_rate": 1.5},
    "kms_key": "arn:aws:kms:eu-west-1:123456789012:key/1234",
    "subnets": ["subnet-1", "subnet-2"],
    "security_groups": ["sg-1"],
    "encrypt_traffic": True,
    "tags": {"team": "risk", "cost-center": "7"},
}
APPROVED = {"approval": "Approved"}  # what aws.deploy needs
BATCH_SCORE: dict[str, Any] = {
    "content_type": "text/csv",
    "strategy": "MultiRecord",
    "max_payload_mb": 6,
    "concurrency": 8,
    "timeout_seconds": 900,
    "input_filter": "$[1:]",
    "join_input": True,
    "output_filter": "$[0,-1]",
}
MLFLOW: dict[str, Any] = {
    "tracking_uri": "arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/reviews",
    "experiment": "claims",
    "tags": {"team": "risk"},
    "image": IMAGE.replace("0" * 64, "1" * 64),
}
CONFIG: dict[str, Any] = {
    "name": "demo",
    "hyperparameters": {
        "id_name": "order_id",
        "primary_text_name": "chat",
        "secondary_text_name": "shiptrack",
        "label_name": "label",
        "tab_field_list": ["price", "quantity"],
        "cat_field_list": ["marketplace"],
        "model_class": "trimodal_bert",
        "tokenizer": "from_scratch",
        "encoder_config": TINY_ENCODER,
        "hidden_common_dim": 16,
        "max_sen_len": 48,
        "max_epochs": 1,
        "lr": 2e-3,
        "batch_size": 16,
        "val_check_interval": 1.0,
        "preprocess_workers": 1,
    },
    "settings": {"DataLoading": {"generate_rows": 300}},
    "condition": {"metric": "test/auroc", "minimum": 0.2},
}


def configuration(**changes: Any) -> PipelineConfig:
    """Return CONFIG with AWS, and changes by key; `None` removes a key."""
    content = {**copy.deepcopy(CONFIG), "aws": AWS, **changes}
    return PipelineConfig.model_validate({key: value for key, value in content.items() if value is not None})


def everything() -> PipelineConfig:
    """Return a configuration with every key of the section aws, a model to beat, records to score, and a tracker."""
    condition = {"metric": "test/auroc", "minimum": 0.8, "beat": "approved", "margin_standard_errors": 1}
    return configuration(
        aws=EVERYTHING,
        settings={},
        condition=condition,
        registration=APPROVED,
        batch_score=BATCH_SCORE,
        mlflow=MLFLOW,
    )


def alternative() -> PipelineConfig:
    """Return a configuration with the keys that those of `everything` exclude."""
    groups = {"gpu": {"instance_type": "ml.g5.2xlarge", "instance_count": 2}, "cpu": {"instance_type": "ml.m5.xlarge"}}
    topics = {f"{kind}_topic": f"arn:aws:sns:eu-west-1:123456789012:{kind}" for kind in ("success", "error")}
    deploy = {"asynchronous": {"output": "s3://answers/claims", "concurrency": 4, **topics}}
    training = {"instance_groups": groups, "training_group": "gpu"}
    aws = {**AWS, "training": training, "deploy": deploy, "kms_key": EVERYTHING["kms_key"]}
    return configuration(aws=aws, registration=APPROVED)


def serverless() -> PipelineConfig:
    """Return a configuration with a serverless endpoint."""
    aws = {**EVERYTHING, "deploy": {"serverless": {"memory_mb": 2048, "concurrency": 7}}}
    return configuration(aws=aws, registration=APPROVED, batch_score=BATCH_SCORE, settings={})


SEARCH: dict[str, Any] = {
    "engine": "sagemaker",
    "metric": "val/auroc",
    "trials": 20,
    "max_hours": 6,
    "parallel": 4,
    "space": {
        "lr": {"low": 1e-4, "high": 1e-2, "scale": "log"},
        "dropout": {"low": 0.0, "high": 0.3},
        "batch_size": {"low": 8, "high": 32},
        "model_class": ["trimodal_bert", "trimodal_cross_attn"],
        "run_scheduler": [True, False],
        "weight_decay": [0, 1e-05],
    },
}


def tuned(*, aws: Mapping[str, Any] = EVERYTHING, **search: Any) -> PipelineConfig:
    """Return a configuration in which SageMaker's tuner searches; changes of its section by key, None removes one."""
    training = {**aws.get("training", {}), "tensorboard": False}  # the tuner has none
    section = {key: value for key, value in {**SEARCH, **search}.items() if value is not None}
    inputs = {name: uri for name, uri in aws.get("inputs", {}).items() if name != "batch_input"}
    steps = {name: machine for name, machine in aws.get("steps", {}).items() if name != "BatchScore"}
    settings = {} if inputs else CONFIG["settings"]
    return configuration(
        aws={**aws, "training": training, "inputs": inputs, "steps": steps},
        settings=settings,
        registration=APPROVED,
        tuning=section,
    )


COLUMNS = [f"column_{number:03d}_".ljust(60, "x") for number in range(200)]
CLASSES = [f"class_{number:03d}" for number in range(300)]


def wide() -> PipelineConfig:
    """Return a configuration with 200 columns, 300 classes and 50 tags, too many for a job's environment."""
    classes = {"is_binary": False, "num_classes": len(CLASSES), "multiclass_categories": list(range(len(CLASSES)))}
    inputs = {name: uri for name, uri in EVERYTHING["inputs"].items() if name != "calibration_model"}
    return configuration(
        aws={**EVERYTHING, "inputs": inputs},
        registration=APPROVED,
        batch_score=BATCH_SCORE,
        mlflow={**MLFLOW, "tags": {name[:40]: "x" for name in COLUMNS[:50]}},
        hyperparameters={**CONFIG["hyperparameters"], **classes, "tab_field_list": COLUMNS},
        settings={
            "TabularPreprocessing": {"label_map": {name: k for k, name in enumerate(CLASSES)}},
            "ModelMetricsComputation": {"class_labels": CLASSES, "group_fields": COLUMNS},
            "Payload": {"field_defaults": dict.fromkeys(COLUMNS, 1.5)},
        },
    )


def all_steps(definition: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every step of a definition by name, with those of conditions."""
    by_name: dict[str, dict[str, Any]] = {}

    def walk(steps: list[dict[str, Any]]) -> None:
        for step in steps:
            by_name[step["Name"]] = step
            if step["Type"] == "Condition":
                walk(step["Arguments"]["IfSteps"])
                walk(step["Arguments"]["ElseSteps"])

    walk(definition["Steps"])
    return by_name


def filled_in(value: Any, parameters: Mapping[str, Any]) -> Any:
    """Return the arguments with parameters replaced by their defaults, and other references by sample values."""
    if isinstance(value, list):
        return [filled_in(part, parameters) for part in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"Get"}:
        path = value["Get"]
        if path.startswith("Parameters."):
            return parameters[path.removeprefix("Parameters.")]
        return "sample-job" if path.endswith("JobName") or path.startswith("Execution.") else "s3://bucket/" + "x" * 8
    if set(value) == {"Std:Join"}:
        return value["Std:Join"]["On"].join(str(filled_in(part, parameters)) for part in value["Std:Join"]["Values"])
    if set(value) == {"Std:JsonGet"}:
        return 0.5
    return {key: filled_in(part, parameters) for key, part in value.items()}


def write_config(folder: Path, config: Mapping[str, Any]) -> Path:
    path = folder / "pipeline.json"
    path.write_text(json.dumps(config))
    return path


@contextmanager
def loopback_only() -> Iterator[None]:
    """Raise an error if a socket connects to, or resolves, another host than this machine."""
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def local(host: Any) -> None:
        if str(host) not in ("127.0.0.1", "localhost", "::1"):
            raise AssertionError(f"the network was called: {host}")

    def guarded_connect(self: socket.socket, address: Any) -> Any:
        if self.family != socket.AF_UNIX:
            local(address[0])
        return connect(self, address)

    def guarded_resolve(host: Any, *arguments: Any, **options: Any) -> Any:
        local(host)
        return resolve(host, *arguments, **options)

    socket.socket.connect, socket.getaddrinfo = guarded_connect, guarded_resolve
    try:
        yield
    finally:
        socket.socket.connect, socket.getaddrinfo = connect, resolve
