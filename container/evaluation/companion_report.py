"""Describe the companion of a network for metrics.json and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from container.evaluation.bootstrap import Estimate

TREES = "boosted trees"
MODEL_IS_THE_TREES = "the network has less than a tenth of the weight in the blend"


@dataclass(frozen=True)
class CompanionReport:
    """A companion and what each part of the model is worth.

    Attributes:
        kept: whether it is part of the model.
        reason: why it is not; empty if it is.
        factors: of the network's and of the companion's logits in the blend; None if none was fitted.
        improvement, standard_error: mean decrease of the log loss by the blend, cross-fitted.
        uses_texts: whether its trees read the texts, or the table alone.
        rounds: of boosting.
        leaves: the most leaves of a tree.
        rows: training rows that it was fitted on.
        num_bytes: of its graph.
        seconds: to fit and measure it.
        parts: the metrics of each part of the model alone, by part, split and metric.
        rarer_class: id of the rarest class there; of two classes, average precision is that of this class.
        where: on val or out of fold: the rows that chose the factors.
        models: what it blends.
    """

    kept: bool
    reason: str = ""
    factors: tuple[float, float] | None = None
    improvement: float | None = None
    standard_error: float | None = None
    uses_texts: bool = True
    rounds: int = 0
    leaves: int = 0
    rows: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    parts: Mapping[str, Mapping[str, Mapping[str, Estimate]]] = field(default_factory=dict)
    rarer_class: int = 0
    where: str = "on val"
    models: str = TREES

    @property
    def is_the_model(self) -> bool:
        """Return whether the network hardly counts."""
        return model_is_the_trees(self.kept, self.factors)

    def __str__(self) -> str:
        if self.factors is None:
            return f"companion: none, because {self.reason}"
        assert self.improvement is not None, "a blend was fitted"
        change = f"{-self.improvement:+z.5f}, standard error {self.standard_error:.5f}"
        figures = f"log loss {self.where} {change}, cross-fitted, compared with the network's logits times a factor"
        features = "" if self.uses_texts else " of the table alone"
        rounds = f", {self.rounds} rounds of {self.leaves} leaves" if TREES in self.models else ""
        fitted = (
            f"{self.models}{rounds} on {self.rows} rows{features}, {self.num_bytes / 1e6:.1f} MB, {self.seconds:.1f} s"
        )
        if not self.kept:
            return f"companion: not used, because {self.reason} ({figures}; {fitted})"
        network, companion = self.factors
        trees = f"; the model is the {kind_of(self.models)}: {MODEL_IS_THE_TREES}" if self.is_the_model else ""
        return f"companion: logits = {network:.3g} * network + {companion:.3g} * companion{trees} ({figures}; {fitted})"


def kind_of(models: str) -> str:
    """Return what a companion of these parts is, in words."""
    return "companion" if "linear" in models else "trees"


def model_is_the_trees(kept: bool, factors: Sequence[float] | None) -> bool:
    """Return whether the companion is nearly all of the blend; the first factor is the network's."""
    return kept and factors is not None and factors[0] < 0.1 * sum(factors)


def companion_sentences(report: CompanionReport) -> list[str]:
    """Describe the companion, for the report."""
    if report.factors is None:
        return [f"The model is the network alone: {report.reason}."]
    assert report.improvement is not None, "a blend was fitted"
    network, companion = report.factors
    change = (
        f"The blend changes the log loss {report.where} by {-report.improvement:+.4f} (standard error "
        f"{report.standard_error:.4f}), cross-fitted and compared with the network's logits times a factor that is "
        "also fitted there"
    )
    features = (
        "the table, and a linear score and the number of tokens of each text"
        if report.uses_texts
        else "the table alone, because the texts do not decrease the log loss of held-out training rows by "
        "more than its standard error"
    )
    rounds = f"The {TREES} have {report.rounds:,} rounds of {report.leaves} leaves. " if TREES in report.models else ""
    fitted = (
        f"The companion is {report.models}, over {features}. {rounds}It was fitted on {report.rows:,} training rows. "
        f"Its graph has {report.num_bytes / 1e6:.1f} MB. It took "
        f"{report.seconds:.1f} s."
    )
    used = (
        f"The logits of the model are {network:.3g} * network + {companion:.3g} * companion. {change}."
        if report.kept
        else f"The companion is not part of the model: {report.reason}. {change}."
    )
    rest = (
        "Small numbers are standard errors, by bootstrap. The parts are measured before calibration, and their log "
        "loss without class_weights."
    )
    return [used, fitted, rest]


def metric_titles(class_labels: Sequence[int | str], rarer_class: int) -> dict[str, str]:
    """Return the titles of the metrics of `estimate_metrics`, by name."""
    binary = len(class_labels) == 2
    return {
        "loss": "log loss",
        "auroc": "AUROC",
        "average_precision": "average precision"
        + (f" of class {class_labels[rarer_class]}" if binary else ", mean of classes"),
        "accuracy": "accuracy",
        "f1_score": f"F1 of class {class_labels[1]} at 0.5" if binary else "F1, mean of classes",
    }
