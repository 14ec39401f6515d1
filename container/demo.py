"""The demo: generate a data set, run a complete job on it, and compare with text alone and table alone."""

import json
import logging
import time
from typing import Any

from container.demo_data import table_only_auroc, write_demo_data
from container.job.processes import set_up_logging
from container.job.supervisor import train
from contracts import artifacts
from contracts.metrics import METRICS
from contracts.paths import JobPaths
from contracts.program import COMPLETED

logger = logging.getLogger(__name__)

ROWS = 8000
SEED = 7
CONFIGURATION: dict[str, Any] = {
    "id_name": "order_id",
    "primary_text_name": "chat",
    "secondary_text_name": "shiptrack",
    "label_name": "label",
    "tab_field_list": ["price", "quantity", "seller_rating", "account_age_days"],
    "cat_field_list": ["marketplace", "category"],
    "model_class": "trimodal_bert",
    "tokenizer": "from_scratch",
    "encoder_config": {
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 192,
        "vocab_size": 2000,
    },
    "max_sen_len": 128,
    "batch_size": 8,
    "max_epochs": 3,
    "lr": 5e-4,
    "weight_decay": 0.01,
    "metric_choices": ["auroc", "average_precision", "f1_score"],
    "early_stop_metric": "val/auroc",
    "val_check_interval": 0.5,
    "nproc_per_node": 2,
}


def demo(paths: JobPaths) -> int:
    """Write the data, train on text and table, then on text alone, fit the table alone; print all three results.

    Returns:
        The exit code of the first job that failed, else 0.
    """
    set_up_logging()
    started = time.monotonic()
    text_only = JobPaths(paths.root / "text_only")
    for job, overrides in ((paths, {}), (text_only, {"tab_field_list": [], "cat_field_list": []})):
        write_demo_data(job.root, rows=ROWS, seed=SEED)
        job.config.mkdir(parents=True, exist_ok=True)
        # SageMaker passes every value as a string.
        values = {name: json.dumps(value) for name, value in {**CONFIGURATION, **overrides}.items()}
        (job.config / "hyperparameters.json").write_text(json.dumps(values, indent=2))
        logger.info("demo: %s", "text alone" if overrides else "text and table")
        exit_code = train(job)
        if exit_code != COMPLETED:
            return exit_code
    full = _metrics(paths)
    print(f"\nThe demo took {time.monotonic() - started:.0f} s. Area under the ROC curve on test:\n")
    for name, value in (
        ("table alone (gradient boosting)", table_only_auroc(paths.root)),
        ("text alone", _metrics(text_only)["test/auroc"]),
        ("text and table", full["test/auroc"]),
    ):
        print(f"  {name:34s} {_format(value)}")
    print("\nMetrics of text and table:\n")
    for name in METRICS:
        print(f"  {name:20s} val {_format(full[f'val/{name}'])}   test {_format(full[f'test/{name}'])}")
    print(f"\nReport:  {paths.output_data / artifacts.REPORT}\nModel:   {paths.model}")
    return COMPLETED


def _metrics(paths: JobPaths) -> dict[str, Any]:
    return json.loads((paths.output_data / artifacts.METRICS).read_text())


def _format(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"
