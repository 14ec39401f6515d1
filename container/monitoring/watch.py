"""Compare the columns of records with those of train while they are predicted."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from container.monitoring.baseline import Baseline
from container.monitoring.checks import check_columns
from container.monitoring.profile import RecordProfile
from container.preprocessing.fitted import FittedPreprocessing
from container.tables.channel_files import TableSlice
from contracts import artifacts
from contracts.input_files import exists
from contracts.steps import MonitorSettings

logger = logging.getLogger(__name__)

_SHOWN = 3


@dataclass(frozen=True)
class ColumnWatch:
    """What the records so far have in the model's columns; nothing for a model without a baseline."""

    found: tuple[FittedPreprocessing, Baseline, RecordProfile] | None

    @classmethod
    def of(cls, model: Path) -> Self:
        if not exists(model / artifacts.BASELINE):
            return cls(None)
        fitted, baseline = FittedPreprocessing.load(model), Baseline.load(model)
        return cls((fitted, baseline, RecordProfile(fitted, baseline.table.categories)))

    def add(self, piece: TableSlice) -> None:
        if self.found is not None:
            self.found[2].add(piece.table, piece.origin)

    def report(self) -> None:
        """Log the columns that differ most from train, and warn of those that are out of bounds."""
        if self.found is None:
            return
        fitted, baseline, profile = self.found
        checks = check_columns(baseline, profile, fitted, MonitorSettings.from_environment({}))
        most = {check.subject: check for check in reversed(checks)}  # the last one is the largest
        shown = sorted(most.values(), key=lambda check: -check.distance)[:_SHOWN]
        moved = "; ".join(f"{check.subject} {check.distance:.3f} ({check.what}: {check.about})" for check in shown)
        logger.info("compared with train, these columns differ most: %s", moved or "none")
        for check in checks:
            if check.violated:
                logger.warning("column %r differs from train, %s: %s", check.subject, check.what, check.about)
