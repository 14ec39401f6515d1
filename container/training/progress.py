"""Report the progress of training: log lines, a bar on a terminal, TensorBoard scalars."""

import json
import logging
import math
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from tqdm import tqdm

from container.log_once import log_detail
from container.timeline import duration
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

_FINISH_SECONDS = 8.0  # of the companion, the export and the report of a small job, on 2 cores


def metric_line(values: Mapping[str, Any]) -> str:
    """Return a line for SageMaker metric definitions: `name=([0-9.eE+-]+)` matches the value of `name`."""
    return "metrics: " + " ".join(f"{name}={_number(value)};" for name, value in values.items())


class Progress:
    """Count rows and tokens, and report the rates; do nothing on ranks that do not report.

    Args:
        total_steps: optimizer steps of the run.
        tensorboard: folder of the scalars.
    """

    def __init__(self, *, reports: bool, total_steps: int, max_epochs: int, step: int, tensorboard: Path) -> None:
        self._reports = reports
        self._total_steps = total_steps
        self._max_epochs = max_epochs
        self._writer = SummaryWriter(str(tensorboard), purge_step=step or None) if reports else None
        bar = reports and sys.stderr.isatty()
        self._bar = tqdm(total=total_steps, initial=step, unit="step", file=sys.stderr) if bar else None
        self._left = _TimeLeft(total_steps, step)
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
        self._left.step()
        if self._bar is not None:
            self._bar.update()

    def validated(self, values: Mapping[str, Any], *, records: int, seconds: float, best: bool) -> None:
        """Log the metrics of a validation. On a terminal with a bar, only the best so far has a line."""
        self._left.validation_seconds = seconds
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
        left = self._left.seconds(step)
        log = logger.info if self._bar is None else partial(log_detail, logger)
        if self._bar is not None:
            shown = {"loss": _number(values["train/loss"]), "left": duration(left)}
            self._bar.set_postfix(shown, refresh=False)
        log(
            "step %d/%d, epoch %.2f/%d, train/loss=%s; lr=%.3g; %.1f rows/s, %.0f tokens/s, %.1f %% padding, %s left",
            step, self._total_steps, epoch, self._max_epochs, _number(values["train/loss"]), values["lr"],
            rates["rows_per_second"], rates["tokens_per_second"], rates["padding_percent"], duration(left),
        )  # fmt: skip
        self.scalars(step, {**values, **rates})
        self.restart()
        return rates

    def hyperparameters(self, hp: Hyperparameters) -> None:
        """Write the hyperparameters for TensorBoard's HPARAMS tab, which shows them with the validation metrics."""
        if self._writer is None:
            return
        values = {
            name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for name, value in hp.model_dump(mode="json").items()
        }
        metrics = {f"val/{name}": math.nan for name in ("loss", *hp.metric_choices)}
        for summary in hparams(values, metrics):
            self._writer.file_writer.add_summary(summary)  # type: ignore[union-attr]  # open until close()
        self._writer.flush()

    def scalars(self, step: int, values: dict[str, Any]) -> None:
        if self._writer is None:
            return
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._bar is not None:
            self._bar.close()


class _TimeLeft:
    """Estimate the time until the end of the job.

    A step counts with its share of the validations and checkpoints so far, because the mean over the whole run is
    smooth. The predictions of val and test take about two validations; the companion, the export and the report
    follow.

    Attributes:
        validation_seconds: of the last validation.
    """

    def __init__(self, total_steps: int, step: int) -> None:
        self.validation_seconds = 0.0
        self._total_steps = total_steps
        self._first = step + 1
        self._began: float | None = None

    def step(self) -> None:
        """Begin to measure at the end of the first step, which takes longer than the others."""
        if self._began is None:
            self._began = time.perf_counter()

    def seconds(self, step: int) -> float:
        """Return the seconds left after `step`; infinite before the second step."""
        if self._began is None or step <= self._first:
            return math.inf if step < self._total_steps else self._after()
        per_step = (time.perf_counter() - self._began) / (step - self._first)
        return (self._total_steps - step) * per_step + self._after()

    def _after(self) -> float:
        return 2 * self.validation_seconds + _FINISH_SECONDS


def _number(value: Any) -> str:
    return "nan" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
