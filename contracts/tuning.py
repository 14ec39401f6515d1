"""Define the hyperparameter `tuning`: a search for the best values of other hyperparameters."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from contracts.declaration import StrictModel
from contracts.value_types import LARGEST_INTEGER, Hours, Json, Number, Trials

_WholeNumber = Annotated[int, Field(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER, strict=True)]
Limit = _WholeNumber | Number
Choices = Annotated[list[Json], Field(min_length=1, max_length=100)]
EnsembleModel = Literal["average", "distill"]


class Range(StrictModel):
    """The numbers from `low` to `high`, both included."""

    low: Limit
    high: Limit
    scale: Literal["linear", "log"] = "linear"
    step: None = None  # of earlier versions, whose files have it

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"low is {self.low:g}, but a log scale needs a number above 0")
        return self


KINDS = _RANGE, _LIST = "a range", "a list"  # of values; pydantic has them in the place of an error


def _kind(values: Any) -> str | None:
    return _LIST if isinstance(values, list) else _RANGE if isinstance(values, (dict, Range)) else None


Values = Annotated[
    Annotated[Range, Tag(_RANGE)] | Annotated[Choices, Tag(_LIST)],
    Discriminator(
        _kind,
        custom_error_type="values",
        custom_error_message="Input should be a list of values, or an object with low and high",
    ),
]
Space = dict[str, Values]


class Tuning(StrictModel):
    """The settings of a search."""

    metric: str | None = Field(
        None,
        description="Metric that compares trials, e.g. val/auroc. Default: early_stop_metric, which it sets.",
    )
    trials: Trials = Field(30, description="Number of trials, pruned and failed ones included.")
    max_hours: Hours | None = Field(
        None, description="No trial starts that cannot finish in this time, together with final_seeds."
    )
    parallel: int | None = Field(
        None,
        ge=1,
        le=1_024,
        description="Trials at a time. Default: number of GPUs / nproc_per_node, at least 1.",
    )
    space: Annotated[Space, Field(min_length=1)] | None = Field(
        None, description="Values of each setting. Default: by model class and kind of encoder."
    )
    final_seeds: int = Field(
        1,
        ge=1,
        le=100,
        description="Networks with the best settings that become the model: 1 = that of the best trial; more = an "
        "ensemble of as many seeds, of which ensemble_model makes the model.",
    )
