"""The section `tuning` of a pipeline's configuration: a search by the training job itself or by SageMaker's tuner."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from contracts.tuning import Tuning, TuningSection
from pipeline.config_types import TuningJobName

_SHARED: tuple[str, ...] = ("metric", "trials", "max_hours", "parallel", "space")  # settings of both engines
# Quotas of the service that cannot be raised: https://docs.aws.amazon.com/sagemaker/latest/dg/automatic-model-tuning-limits.html
_TUNER_HOURS = (1 / 30, 30 * 24)  # MaxRuntimeInSeconds is at least 120
_MOST_TRIALS = {"Bayesian": 750, "Hyperband": 750, "Random": 10_000}
_MOST_PARALLEL = 100
_MOST_SETTINGS = 30


class WarmStart(TuningSection):
    """Results of earlier tuning jobs that the tuner begins with."""

    parents: tuple[TuningJobName, ...] = Field(
        min_length=1, max_length=5, description="Names of the tuning jobs, with the same number of hyperparameters."
    )
    type: Literal["IdenticalDataAndAlgorithm", "TransferLearning"] = Field(
        default="IdenticalDataAndAlgorithm",
        description="TransferLearning: data, image or ranges differ from those of the parents.",
    )


class Search(Tuning):
    """The search of hyperparameters before the training. docs/tuning.md describes the keys."""

    engine: Literal["container", "sagemaker"] = Field(
        default="container",
        description="Where trials run: container = all within the training job; sagemaker = each is a training job of "
        "SageMaker's tuner, and `run` searches as container does.",
    )
    strategy: Literal["Bayesian", "Random", "Hyperband"] = Field(
        default="Bayesian", description="With engine sagemaker: how the tuner chooses and stops trials."
    )
    warm_start: WarmStart | None = Field(
        default=None, description="With engine sagemaker: begin with the results of earlier tuning jobs."
    )

    @model_validator(mode="after")
    def _belongs_to_the_engine(self) -> Self:
        tuner = self.engine == "sagemaker"
        others = set(Tuning.model_fields).difference(_SHARED) if tuner else {"strategy", "warm_start"}
        wrong = sorted(others & self.model_fields_set)
        if wrong:
            raise ValueError(f"{', '.join(wrong)} cannot be set with engine: {self.engine}")
        if tuner:
            self._check_quotas()
        return self

    def _check_quotas(self) -> None:
        lowest, highest = _TUNER_HOURS
        if self.max_hours is not None and not lowest <= self.max_hours <= highest:
            raise ValueError(f"max_hours must be from {lowest:.3f} to {highest:,} with engine: sagemaker")
        for name, value, most in (
            ("trials", self.trials, _MOST_TRIALS[self.strategy]),
            ("parallel", self.parallel or 1, _MOST_PARALLEL),
            ("the number of settings in space", len(self.space or {}), _MOST_SETTINGS),
        ):
            if value > most:
                job = f"a tuning job of SageMaker with strategy {self.strategy}"
                raise ValueError(f"{name} is {value:,}, but {job} has at most {most:,}")

    @property
    def by_tuner(self) -> bool:
        """Whether SageMaker's tuner runs the trials."""
        return self.engine == "sagemaker"

    def in_container(self) -> "Search":
        """Return the search as a training job runs it: the tuner takes the model of the best trial."""
        shared = self.model_dump(mode="json", exclude_unset=True, include=set(_SHARED))
        return Search(**shared) if self.by_tuner else self

    def hyperparameter(self) -> dict[str, Any]:
        """Return the hyperparameter `tuning` of the training job."""
        return self.model_dump(mode="json", exclude_unset=True, include=set(Tuning.model_fields))
