"""The section `tuning` of a pipeline's configuration: a search by the training job itself or by SageMaker's tuner."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from contracts.tuning import Tuning, TuningSection

TuningJobName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,31}$")]
_SHARED: tuple[str, ...] = ("metric", "trials", "max_hours", "parallel", "space")  # settings of both engines
_TUNER_HOURS = (1 / 30, 4380)  # MaxRuntimeInSeconds: 120 to 15,768,000


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
        lowest, highest = _TUNER_HOURS
        if tuner and self.max_hours is not None and not lowest <= self.max_hours <= highest:
            raise ValueError(f"max_hours must be from {lowest:.3f} to {highest:,} with engine: sagemaker")
        return self

    @property
    def by_tuner(self) -> bool:
        """Whether SageMaker's tuner runs the trials."""
        return self.engine == "sagemaker"

    def in_container(self) -> "Search":
        """Return the search as a training job runs it: the tuner takes the model of the best trial."""
        shared = self.model_dump(mode="json", exclude_unset=True, include=set(_SHARED))
        return Search(**shared, final_seeds=1) if self.by_tuner else self

    def hyperparameter(self) -> dict[str, Any]:
        """Return the hyperparameter `tuning` of the training job."""
        return self.model_dump(mode="json", exclude_unset=True, include=set(Tuning.model_fields))
