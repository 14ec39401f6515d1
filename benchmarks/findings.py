"""Count false and missed findings of the report on simulated jobs whose truth is known: make bench-findings.

    python -m benchmarks.findings [--jobs 200]

Nothing is trained: labels and scores are drawn, the product's functions decide. docs/findings.md has the conditions.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, logit, ndtri

from benchmarks.printing import print_machine, print_table
from container.decision.softmax import softmax
from container.evaluation.analysis import analyze
from container.evaluation.bootstrap import Scores, paired_differences
from container.evaluation.curves import areas, rank
from container.evaluation.evaluation_input import EvaluationInput, Explanation, Importance
from container.evaluation.findings import findings
from container.evaluation.predictions import SplitPredictions
from testing.evaluations import evaluation, split

JOBS = 200
MOST_FALSE, FEWEST_FOUND = 0.05, 0.8
Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    """A finding, with a job that has no reason for it and one that has.

    Attributes:
        text: a part of the finding's text.
        sound, faulty: functions that draw a job.
        about: the two jobs, in words.
    """

    name: str
    text: str
    sound: Callable[[Rng], EvaluationInput]
    faulty: Callable[[Rng], EvaluationInput]
    about: str

    def rates(self, jobs: int, *, seed: int = 0) -> tuple[float, float]:
        """Return the share of sound jobs with the finding, and that of faulty jobs."""
        rng = np.random.default_rng([seed, *self.name.encode()])
        return self._share(self.sound, jobs, rng), self._share(self.faulty, jobs, rng)

    def _share(self, draw: Callable[[Rng], EvaluationInput], jobs: int, rng: Rng) -> float:
        return float(np.mean([any(self.text in text for text in texts_of(draw(rng))) for _ in range(jobs)]))


def texts_of(made: EvaluationInput) -> list[str]:
    """Return the texts of the findings of a job."""
    threshold = 0.5 if made.decision.threshold is None else made.decision.threshold.value
    analyses, best = analyze(made.splits, class_labels=made.class_labels, threshold=threshold)
    return [finding.text for finding in findings(made, analyses, threshold=best)]


def rows_of(rng: Rng, fewest: int = 150, most: int = 1000) -> int:
    """Return a number of rows, each order of magnitude alike."""
    return int(np.exp(rng.uniform(np.log(fewest), np.log(most))))


def predictions(name: str, labels: np.ndarray, log_odds: np.ndarray) -> SplitPredictions:
    """Return predictions of two classes. [N], [N]"""
    scores = expit(log_odds)
    return replace(
        split(name, len(labels), labels=[0, 1]), labels=labels, probabilities=np.stack([1 - scores, scores], 1)
    )


def scored(
    rng: Rng, name: str, rows: int, auroc: float, *, rate: float = 0.5, sharpness: float = 1.0
) -> SplitPredictions:
    """Return calibrated scores with an expected AUROC; their log-odds are multiplied by `sharpness`."""
    labels = (rng.random(rows) < rate).astype(np.int64)
    labels[:4] = 0, 1, 0, 1
    distance = np.sqrt(2) * ndtri(auroc)  # of two normal distributions with this AUROC
    signal = rng.normal(size=rows) + distance * labels
    return predictions(name, labels, sharpness * (logit(rate) + distance * signal - distance**2 / 2))


def job(val: SplitPredictions, test: SplitPredictions, **replaced: Any) -> EvaluationInput:
    return evaluation({"val": val, "test": test}, labels=[0, 1], **{"history": [], "best_step": None, **replaced})


def of_quality(
    low: float, high: float, *, fall: float = 0.0, fewest: int = 150, **how: Any
) -> Callable[[Rng], EvaluationInput]:
    """Return a function that draws a job with an AUROC between two values, which falls on test."""

    def draw(rng: Rng) -> EvaluationInput:
        rows, auroc = rows_of(rng, fewest), rng.uniform(low, high)
        return job(scored(rng, "val", rows, auroc, **how), scored(rng, "test", rows, auroc - fall, **how))

    return draw


def guessing(rng: Rng) -> EvaluationInput:
    """Draw a job whose scores say nothing about the label."""
    made = of_quality(0.6, 0.7)(rng)
    return replace(
        made, splits={name: replace(of, labels=rng.permutation(of.labels)) for name, of in made.splits.items()}
    )


def explained(
    weights: Sequence[float], *, auroc: tuple[float, float], copies: bool = False, unused: bool = False
) -> Callable[[Rng], EvaluationInput]:
    """Return a function that draws a job of a linear model, with the importance of its columns as explain measures it.

    Args:
        weights: of the columns in the log-odds.
        auroc: the lowest and highest AUROC.
        copies: the first two columns have the same information, with noise.
        unused: the model adds noise of a modality that says nothing, else the last column is the modality.
    """

    def draw(rng: Rng) -> EvaluationInput:
        rows = rows_of(rng, 150, 500)
        distance = np.sqrt(2) * ndtri(rng.uniform(*auroc))
        share = np.array(weights) / np.sqrt(np.square(weights).sum())
        labels = np.arange(rows) % 2
        columns = rng.normal(size=(rows, len(weights))) + distance * share * labels[:, None]
        if copies:
            columns[:, 1] = columns[:, 0] + rng.normal(scale=0.1, size=rows)
        noise = rng.normal(scale=0.3, size=rows) * unused

        def log_odds(values: np.ndarray) -> np.ndarray:
            return values @ (share * distance) - distance**2 / 2

        def area(odds: np.ndarray) -> float:
            return areas(rank(labels == 1, odds))[0]

        def drop(names: Sequence[int]) -> Importance:
            drops = []
            for _ in range(3):
                shuffled = columns.copy()
                shuffled[:, names] = columns[rng.permutation(rows)][:, names]
                drops.append(area(all_inputs) - area(log_odds(shuffled) + noise))
            return Importance(" and ".join(f"x{i}" for i in names), "numeric", float(np.mean(drops)), 0.0)

        all_inputs = log_odds(columns) + noise
        alone = sorted((drop([i]) for i in range(len(weights))), key=lambda entry: -entry.drop)
        without = log_odds(columns if unused else np.where(np.arange(len(weights)) == len(weights) - 1, 0, columns))
        scores = (Scores(softmax(np.stack([0 * odds, odds], 1)), odds > 0) for odds in (without, all_inputs))
        interval = paired_differences(labels, *scores)["auroc"].interval
        explanation = Explanation(
            "auroc", area(all_inputs), rows, 3, 1.0, columns=tuple(alone),
            modalities=(
                Importance("the rest", "modality", 0.4, interval=(0.3, 0.5)),
                Importance("the table", "modality", area(all_inputs) - area(without), interval=interval),
            ),
            pair=drop([int(entry.name[1:]) for entry in alone[:2]]),
        )  # fmt: skip
        return job(
            predictions("val", labels, all_inputs), predictions("test", labels, all_inputs), explanation=explanation
        )

    return draw


def validated(slope: float) -> Callable[[Rng], EvaluationInput]:
    """Return a function that draws the validations of a job: a rise, then a further one per validation."""

    def draw(rng: Rng) -> EvaluationInput:
        values = np.append(0.6, 0.8 + slope * np.arange(rng.integers(4, 12))) + rng.normal(scale=0.01, size=1)
        values = values + rng.normal(scale=0.005, size=len(values))  # of validations on the same rows
        entries = [
            {"step": i, "epoch": i, "val/loss": 0.5, "val/auroc": value} for i, value in enumerate(values.tolist())
        ]
        made = of_quality(0.8, 0.9)(rng)
        return replace(made, history=entries, best_step=int(values.argmax()))

    return draw


def sampled(shift: float = 0.0, rate: float = 0.0) -> Callable[[Rng], EvaluationInput]:
    """Return a function that draws train and test, of which test has one column or class that differs."""

    def draw(rng: Rng) -> EvaluationInput:
        made = of_quality(0.8, 0.9, fewest=200)(rng)
        rows = {"train": rows_of(rng, 500, 3000), "test": len(made.splits["test"].labels)}
        for name in ("val", *rows):
            count = rows.get(name, 400)
            described = made.data_summary["splits"][name]
            numeric, moved = described["numeric"]["price"], name == "test"
            values = rng.normal(size=(20, count))
            values[0] += shift * moved
            described["rows"] = count
            described["numeric"] = {
                f"x{i}": {**numeric, "mean": float(of.mean()), "std": float(of.std())} for i, of in enumerate(values)
            }
            positive = int((rng.random(count) < 0.3 + rate * moved).sum())
            described["classes"] = {"0": count - positive, "1": positive}
        return made

    return draw


def decided(recall: float) -> Callable[[Rng], EvaluationInput]:
    """Return a function that draws a job with a rare class of three, which is found with this recall."""

    def draw(rng: Rng) -> EvaluationInput:
        rows, splits = rows_of(rng), {}
        for name in ("val", "test"):
            labels = rng.choice(3, rows, p=[0.5, 0.45, 0.05])
            labels[:6] = 2
            predicted = np.where((labels == 2) & (rng.random(rows) >= recall), 0, labels)
            made = split(name, rows, labels=["a", "b", "c"])
            splits[name] = replace(made, labels=labels, probabilities=softmax(2.0 * np.eye(3)[predicted]))
        return evaluation(splits, labels=["a", "b", "c"], history=[], best_step=None)

    return draw


_EVEN, _ONE = (1, 1, 1, 1, 1.2), (30, 1, 1, 1, 1)
CASES = (
    Case(
        "guessing",
        "Not shown to be better",
        of_quality(0.7, 0.9),
        guessing,
        "AUROC .7 to .9; scores without information",
    ),
    Case(
        "AUROC falls",
        "AUROC falls from",
        of_quality(0.6, 0.9),
        of_quality(0.8, 0.9, fall=0.15),
        "the same on val and test; lower by .15 on test",
    ),
    Case(
        "AUROC agrees",
        "agree.",
        of_quality(0.7, 0.9, fall=0.12, fewest=500),
        of_quality(0.8, 0.9, fewest=900),
        "lower by .12 on test; the same on both, 900 rows or more",
    ),
    Case("agreement of guessing", "agree.", guessing, of_quality(0.8, 0.9, fewest=900), "guessing; as above"),
    Case(
        "not calibrated",
        "Do not read the scores",
        of_quality(0.6, 0.9),
        of_quality(0.75, 0.9, sharpness=2.0),
        "calibrated; log-odds times 2",
    ),
    Case(
        "calibrated",
        "can be read as probabilities",
        of_quality(0.75, 0.9, sharpness=2.0),
        of_quality(0.6, 0.9),
        "log-odds times 2; calibrated",
    ),
    Case(
        "threshold",
        "The threshold with the best F1",
        of_quality(0.93, 0.97),
        of_quality(0.72, 0.8, rate=0.2, fewest=300),
        "classes of equal size; 20 % of class 1, 300 rows or more",
    ),
    Case(
        "perfect",
        "leakage first: AUROC",
        of_quality(0.7, 0.97),
        of_quality(0.999, 0.9999),
        "AUROC .7 to .97; .999 or more",
    ),
    Case(
        "one column",
        "leakage first: the model",
        explained(_EVEN, auroc=(0.7, 0.95)),
        explained(_ONE, auroc=(0.94, 0.98)),
        "five columns count, AUROC .7 to .95; one decides, AUROC .94 to .98",
    ),
    Case(
        "one column, honest",
        "leakage first",
        explained(_ONE, auroc=(0.6, 0.83)),
        explained(_ONE, auroc=(0.94, 0.98)),
        "one decides, AUROC .6 to .83; .94 to .98",
    ),
    Case(
        "two columns",
        "leakage first: the model",
        explained(_EVEN, auroc=(0.7, 0.95)),
        explained((30, 30, 1, 1, 1), auroc=(0.99, 0.999), copies=True),
        "as above; two copies decide",
    ),
    Case(
        "dominant column",
        "depends almost only on",
        explained(_EVEN, auroc=(0.65, 0.9)),
        explained(_ONE, auroc=(0.75, 0.83)),
        "five columns count; one decides",
    ),
    Case(
        "unnecessary modality",
        "may be unnecessary",
        explained(_EVEN, auroc=(0.75, 0.9)),
        explained(_EVEN, auroc=(0.75, 0.9), unused=True),
        "a modality with a quarter of the signal; one of noise",
    ),
    Case(
        "more epochs",
        "more epochs may help",
        validated(0.0),
        validated(0.02),
        "no rise after the first epoch; .02 per epoch",
    ),
    Case(
        "shifted column",
        "in test than in train",
        sampled(),
        sampled(shift=0.6),
        "20 columns alike; one shifted by .6 standard deviations",
    ),
    Case(
        "other class shares",
        "of train's rows and",
        sampled(),
        sampled(rate=0.2),
        "30 % of class 1 in both; 50 % in test",
    ),
    Case("never predicted", "ever predicted: c", decided(0.5), decided(0.0), "recall .5 of a class of 5 %; recall 0"),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    print_machine()
    rates: Mapping[str, tuple[float, float]] = {case.name: case.rates(options.jobs) for case in CASES}
    rows = [[case.name, case.about, *(f"{100 * rate:.1f} %" for rate in rates[case.name])] for case in CASES]
    title = f"Findings of {options.jobs} sound and {options.jobs} faulty jobs"
    print_table(title, ("finding", "sound jobs; faulty jobs", "false", "found"), rows)


if __name__ == "__main__":
    main()
