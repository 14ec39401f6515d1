"""Declare tracking with MLflow."""

from contracts import conditions, value_types
from contracts.declaration import Settings, declare


class TrackingSettings(Settings):
    """The settings of tracking with MLflow."""

    mlflow_tracking_uri: value_types.TrackingUri | None = declare(None, scope="run")
    """MLflow server that gets the finished job's results. A name or password goes into MLFLOW_TRACKING_USERNAME and
    MLFLOW_TRACKING_PASSWORD. Default: none.
    """

    mlflow_experiment: str = declare("Default", scope="run", min_length=1, max_length=250, needs=(conditions.TRACKED,))
    """Experiment of the run; created if it does not exist."""

    mlflow_run_name: str | None = declare(None, scope="run", min_length=1, max_length=250, needs=(conditions.TRACKED,))
    """Name of the run. Default: the name of the SageMaker training job, or a name that MLflow chooses."""

    mlflow_tags: dict[value_types.TagKey, value_types.TagValue] = declare(
        {}, scope="run", max_length=50, needs=(conditions.TRACKED,)
    )
    """Tags of the run."""
