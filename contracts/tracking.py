"""Define the settings and the output of the step that sends a training job's results to an MLflow server."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from contracts.step_contract import StepSettings, parsed
from contracts.value_types import Tags, TrackingName, TrackingUri

TRACKED = "tracked.json"  # {"problem": why the results were not sent, or null}


class TrackingSettings(StepSettings):
    """Environment of Tracking: the hyperparameters of the same names, for a job that cannot send its results itself."""

    mlflow_tracking_uri: TrackingUri = Field(description="The MLflow server.")
    mlflow_experiment: TrackingName = Field("Default", description="Experiment of the run.")
    mlflow_run_name: TrackingName | None = Field(None, description="Name of the run. Default: MLflow chooses one.")
    mlflow_tags: Annotated[Tags, BeforeValidator(parsed)] = Field({}, description="Tags of the run.")
