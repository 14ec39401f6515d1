"""The pipeline's graph: the output that each input reads. The definition, the local run and docs/ use it."""

from dataclasses import dataclass

from contracts.step_contract import StepContract, StepFolder
from contracts.steps import (
    BATCH_SCORE,
    CHAMPION,
    DATA_LOADING,
    MODEL_METRICS,
    MONITOR,
    PACKAGE,
    PAYLOAD,
    PYTORCH_TRAINING,
    REGISTRATION,
    STEPS,
    TABULAR_PREPROCESSING,
    TRACKING,
    TRAINING_SPLITS,
)

CONDITION = "MetricCondition"
FAIL = "MetricTooLow"
WRITTEN_INPUTS = ("hyperparameters", "settings", CHAMPION)  # from the configuration and the registry; not the user's


@dataclass(frozen=True)
class Source:
    """The output that an input reads.

    Attributes:
        step: the contract of the step that writes the output.
        output: the output's logical name.
        subfolder: the folder of the output that is read; empty: all of it.
    """

    step: StepContract
    output: str
    subfolder: str = ""


_PREDICTIONS = Source(PYTORCH_TRAINING, "evaluation_output")
_PROCESSED = Source(TABULAR_PREPROCESSING, "processed_data")

EDGES: dict[tuple[str, str], Source] = {
    (TABULAR_PREPROCESSING.name, "DATA"): Source(DATA_LOADING, "DATA"),
    (TABULAR_PREPROCESSING.name, "SIGNATURE"): Source(DATA_LOADING, "SIGNATURE"),
    **{
        (PYTORCH_TRAINING.name, split): Source(TABULAR_PREPROCESSING, "processed_data", split)
        for split in TRAINING_SPLITS
    },
    (TRACKING.name, "model_input"): Source(PYTORCH_TRAINING, "model_output"),
    (TRACKING.name, "eval_output"): _PREDICTIONS,
    (MODEL_METRICS.name, "eval_output"): _PREDICTIONS,
    (MODEL_METRICS.name, "processed_data"): _PROCESSED,
    (PACKAGE.name, "model_input"): Source(PYTORCH_TRAINING, "model_output"),
    (PAYLOAD.name, "model_input"): Source(PACKAGE, "packaged_model"),
    (PAYLOAD.name, "processed_data"): _PROCESSED,
    (PAYLOAD.name, "eval_output"): _PREDICTIONS,
    (REGISTRATION.name, "packaged_model"): Source(PACKAGE, "packaged_model"),
    (REGISTRATION.name, "payload_sample"): Source(PAYLOAD, "payload_sample"),
    (REGISTRATION.name, "metrics_output"): Source(MODEL_METRICS, "metrics_output"),
    (BATCH_SCORE.name, "packaged_model"): Source(PACKAGE, "packaged_model"),
    (MONITOR.name, "model_input"): Source(PACKAGE, "packaged_model"),
}

BEFORE_CONDITION = (DATA_LOADING, TABULAR_PREPROCESSING, PYTORCH_TRAINING, TRACKING, MODEL_METRICS)
AFTER_CONDITION = (PACKAGE, PAYLOAD, REGISTRATION, BATCH_SCORE, MONITOR)
ORDER = (*BEFORE_CONDITION, *AFTER_CONDITION)

# Steps that need a section, with its name.
OPTIONAL = {TRACKING.name: "mlflow", BATCH_SCORE.name: "batch_score", MONITOR.name: "monitor"}
SEVERAL_INSTANCES = (TABULAR_PREPROCESSING.name, PYTORCH_TRAINING.name, BATCH_SCORE.name)


def source(step: StepContract, folder: StepFolder) -> Source | None:
    """Return the output that an input reads; None for an external input, which no step writes."""
    return EDGES.get((step.name, folder.name))


def upstream(step: StepContract) -> set[StepContract]:
    """Return `step` and every step that it depends on, directly or indirectly."""
    origins = [origin for folder in step.inputs if (origin := source(step, folder)) is not None]
    return {step}.union(*(upstream(origin.step) for origin in origins))


def outside_inputs() -> dict[str, tuple[StepContract, StepFolder]]:
    """Return the inputs that a user may provide and no step writes, by logical name."""
    inputs: dict[str, tuple[StepContract, StepFolder]] = {}
    for step in ORDER:
        for folder in step.inputs:
            if source(step, folder) is None and folder.name not in WRITTEN_INPUTS:
                assert folder.name not in inputs, f"two external inputs are called {folder.name}"
                inputs[folder.name] = (step, folder)
    return inputs


def inputs_of(step: StepContract) -> set[str]:
    """Return the logical names of the inputs that a user may provide for a step."""
    return {name for name, (reader, _) in outside_inputs().items() if reader is step}


assert set(ORDER) == set(STEPS), "ORDER has every step of the contract"
assert all(step.input("settings") for step in ORDER if step.command), "every job can read settings from a file"
