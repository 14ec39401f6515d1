"""report.html: the evaluation as one page that needs nothing else."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from container.evaluation.analysis import SplitAnalysis

if TYPE_CHECKING:
    from container.evaluation.evaluate import EvaluationInput


def render_report(
    evaluation: "EvaluationInput", analyses: Mapping[str, SplitAnalysis], *, threshold: float | None
) -> str:
    """The page's HTML; everything that comes from data is escaped."""
    environment = Environment(
        loader=PackageLoader("container.evaluation", "."), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("report.html").render(evaluation=evaluation, analyses=analyses, threshold=threshold)
