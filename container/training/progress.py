"""Report the progress of training: log lines, a bar on a terminal, TensorBoard scalars."""

import logging
import math
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from container.job.log_once import log_detail
from container.job.timeline import duration

logger = logging.getLogger(__name__)

_FINISH_SECONDS = 8.0  # of the companion, the export and the report of a small job, on 2 cores


def metric_line(values: Mapping[str, Any]) -> str:
    """Return a line for SageMaker metric definitions: `name=([0-9.eE+-]+)` matches the value of `name`."""
    return "metrics: " + " ".join(f"{name}={_number(value)};" for name, value in values.items())


def summary_writer(folder: Path, *, purge_step: int | None = None) -> SummaryWriter:
    """Return a writer of TensorBoard's files, whose thread prints no error: the next write or the end raises it."""
    threading.excepthook = _print_unless_of_tensorboard
    return SummaryWriter(str(folder), purge_step=purge_step)


def _print_unless_of_tensorboard(arguments: threading.ExceptHookArgs) -> None:
    if not type(arguments.thread).__module__.startswith("tensorboard."):
        threading.__excepthook__(arguments)


class Progress:
    """Count rows and tokens, and report the rates; do nothing on ranks that do not report.

    Args:
        total_steps: optimizer steps of the run.
        tensorboard: folder of the scalars.
        ends_job: whether the predictions, the export and the report follow, and no other network or trial.
    """

    def __init__(
        self,
        *,
        reports: bool,
        total_steps: int,
        max_epochs: int,
        step: int,
        tensorboard: Path,
        ends_job: bool = True,
    ) -> None:
        self._reports = reports
        self._ends_job = ends_job
        self._total_steps = total_steps
        self._max_epochs = max_epochs
        self._writer = summary_writer(tensorboard, purge_step=step or None) if reports else None
        bar = reports and sys.stderr.isatty()
        self._bar = tqdm(total=total_steps, initial=step, unit="step", file=sys.stderr) if bar else None
        self._first = step + 1
        self._began: float | None = None  # the end of the first step, which takes longer than the others
        self._validation_seconds = 0.0
        self.restart()

    def restart(self) -> None:
        """Restart the measurement of rates, e.g. after a validation."""
        self._since = time.perf_counter()
        self._steps = self._rows = self._tokens = self._computed = 0

    def step(self, *, rows: int, tokens: int, computed: int) -> None:
        """Count an optimizer step: rows, tokens, and tokens computed with padding, over all ranks."""
        self._steps += 1
        self._rows += rows
        self._tokens += tokens
        self._computed += computed
        if self._began is None:
            self._began = time.perf_counter()
        if self._bar is not None:
            self._bar.update()

    def validated(self, values: Mapping[str, Any], *, records: int, seconds: float, best: bool) -> None:
        """Log the metrics of a validation. On a terminal with a bar, only the best so far has a line."""
        self._validation_seconds = seconds
        line = f"{metric_line(values)}{' best so far' if best else ''}"
        if best or self._bar is None:
            logger.info("%s", line)
        else:
            log_detail(logger, "%s", line)
        log_detail(logger, "validated %d records in %.1f s", records, seconds)

    def report(self, step: int, epoch: float, values: dict[str, float]) -> dict[str, float]:
        """Log a line, write scalars and return the rates. `values` has train/loss and lr."""
        seconds = time.perf_counter() - self._since
        rates = {
            "rows_per_second": self._rows / seconds,
            "tokens_per_second": self._tokens / seconds,
            "padding_percent": 100 * (1 - self._tokens / max(1, self._computed)),
        }
        left = self._seconds_left(step)
        log = logger.info if self._bar is None else partial(log_detail, logger)
        if self._bar is not None:
            shown = {"loss": _number(values["train/loss"]), "left": duration(left)}
            self._bar.set_postfix(shown, refresh=False)
        log(
            f"step {step}/{self._total_steps}, epoch {epoch:.2f}/{self._max_epochs}, "
            f"train/loss={_number(values['train/loss'])}; lr={values['lr']:.3g}; {rates['rows_per_second']:.1f} "
            f"rows/s, {rates['tokens_per_second']:.0f} tokens/s, {rates['padding_percent']:.1f} % padding, "
            f"{duration(left)} left{'' if self._ends_job else ' of this training'}"
        )
        self.scalars(step, {**values, **rates})
        self.restart()
        return rates

    def scalars(self, step: int, values: dict[str, Any]) -> None:
        if self._writer is None:
            return
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def _seconds_left(self, step: int) -> float:
        """Estimate the time until the end of the job, or of this training; infinite before the second step.

        A step counts with its share of the validations and checkpoints so far, because the mean over the whole run is
        smooth. The predictions of val and test take about two validations; the companion, the export and the report
        follow.
        """
        if self._began is None or step <= self._first:
            return math.inf
        per_step = (time.perf_counter() - self._began) / (step - self._first)
        following = 2 * self._validation_seconds + _FINISH_SECONDS if self._ends_job else 0.0
        return (self._total_steps - step) * per_step + following

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._bar is not None:
            self._bar.close()


def _number(value: Any) -> str:
    return "nan" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
