"""Declare validations, checkpoints, early stopping, and the number of networks."""

from typing import Literal

from contracts.declaration import Settings, declare
from contracts.metrics import MetricName
from contracts.tuning import EnsembleModel, Tuning


class ControlSettings(Settings):
    """The settings of validations, checkpoints, early stopping, and the number of networks."""

    early_stop_metric: str = declare("val/f1_score", scope="train")
    """Metric that decides which weights are best and when to stop: val/loss, or val/ and a metric, e.g. val/auroc. Of
    equal values, the lower val/loss decides.
    """

    early_stop_patience: int = declare(3, scope="run", ge=1, le=1_000_000)
    """Epochs without a better early_stop_metric before training stops."""

    max_minutes: float | None = declare(None, scope="run", gt=0, le=1_000_000)
    """Minutes until the job ends with all artifacts: fewer epochs and trials, then fewer optional results. The log says
    what was left out (docs/training.md).
    """

    val_check_interval: float = declare(0.25, scope="run", gt=0, le=1_000_000_000)
    """Interval of validations: a fraction of an epoch (up to 1), or a number of optimizer steps (above 1)."""

    metric_choices: list[MetricName] = declare(["auroc", "f1_score"], scope="run", min_length=1)
    """Metrics of each validation during training. The final evaluation computes all metrics."""

    load_ckpt: bool = declare(True, scope="after")
    """Evaluate and save the best weights; false = the last weights."""

    resume: bool = declare(True, scope="run")
    """Resume from the newest complete checkpoint in checkpoints/."""

    keep_checkpoints: int = declare(2, scope="run", ge=1, le=1_000_000)
    """Number of newest checkpoints to keep; the best one is kept in addition."""

    checkpoint_every_n_steps: int = declare(0, scope="run", ge=0, le=1_000_000_000)
    """Also save a checkpoint every n optimizer steps; 0 = only at validations."""

    log_every_n_steps: int = declare(20, scope="run", ge=1, le=1_000_000_000)
    """Optimizer steps between progress lines."""

    tuning: Tuning | None = declare(None, scope="run")
    """Search for the best values of other settings before the training: an object with the keys metric, trials,
    max_hours, parallel, space and final_seeds (docs/tuning.md).
    """

    ensemble: int = declare(1, scope="train", ge=1, le=100)
    """Number of networks, trained with the seeds seed, seed + 1, ...; ensemble_model makes one model of them
    (docs/ensembles.md).
    """

    cross_fit: int = declare(0, scope="train", ge=0, le=100)
    """Number of networks, each trained without one fold of train; 0 = off. ensemble_model makes one model of them.
    output/data/train_out_of_fold.parquet gets the probabilities of each training row by the network that did not train
    on it (docs/ensembles.md).
    """

    cross_fit_repeats: int = declare(1, scope="train", ge=1, le=20)
    """Number of times that train is divided into other folds: cross_fit networks each time."""

    choose_on: Literal["val", "out_of_fold"] = declare("val", scope="train")
    """Rows whose predictions choose the factors of the companion, the calibration and the threshold. out_of_fold = all
    rows of train and val together, each predicted by the networks of cross_fit that did not train on it. The networks
    then train on val as well, for max_epochs, and val's predictions and metrics are those out of fold.
    """

    ensemble_model: EnsembleModel = declare("average", scope="train")
    """The model of the networks of ensemble, cross_fit or final_seeds: average = all of them in one graph, with the
    average of their probabilities. distill = one more network, trained on the labels and on their probabilities of
    train.
    """

    max_nonfinite_steps: int = declare(5, scope="run", ge=1, le=1_000_000)
    """Consecutive optimizer steps with a non-finite loss or gradient before the job fails; such steps are skipped."""
