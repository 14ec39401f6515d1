"""The state of a run, and the report of its end."""

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from contracts import artifacts
from contracts.step_contract import StepContract
from contracts.steps import (
    BATCH_SCORE,
    DATA_PROFILE_TEXT,
    METRICS_SUMMARY,
    MODEL_METRICS,
    PYTORCH_TRAINING,
    REGISTRATION,
    TABULAR_PREPROCESSING,
)
from pipeline.condition import ConditionOutcome, check_condition, read_measured_value
from pipeline.config import PipelineConfig
from pipeline.graph import source
from pipeline.local.cache import Completed, StepDirectory
from pipeline.local.digests import ContentDigests
from pipeline.local.progress import Progress
from pipeline.local.registry import LocalRegistry, RegisteredModel
from pipeline.plan import Plan

REPORT = "report.md"


@dataclass
class Run:
    """A run of the pipeline on this machine.

    Attributes:
        code: digest of the steps' code, or the image.
        image: the image whose containers run the steps; None for processes.
        directories: the folder of each completed step, by name.
        records: the record of each completed step, by name.
    """

    config: PipelineConfig
    plan: Plan
    root: Path
    digests: ContentDigests
    code: str
    progress: Progress
    image: str | None = None
    directories: dict[str, StepDirectory] = field(default_factory=dict)
    records: dict[str, Completed] = field(default_factory=dict)
    outcome: ConditionOutcome | None = None

    @property
    def registry(self) -> LocalRegistry:
        return LocalRegistry(self.root, self.config.group)

    def output(self, contract: StepContract, name: str) -> Path:
        return self.directories[contract.name].output(contract, name)

    def inputs(self, contract: StepContract) -> dict[str, Path]:
        """Return the folder or file of each input of a step that exists."""
        paths = {}
        for folder in contract.inputs:
            origin = source(contract, folder)
            if origin is not None:
                paths[folder.name] = self.output(origin.step, origin.output) / origin.subfolder
            elif folder.name in self.config.inputs:
                paths[folder.name] = Path(self.config.inputs[folder.name])
        return paths

    def check_condition(self, registered: RegisteredModel | None) -> ConditionOutcome:
        """Compare the metric with the condition."""
        value = read_measured_value(self.output(MODEL_METRICS, "metrics_output"))
        self.outcome = check_condition(self.config.condition, value, registered and registered.value)
        return self.outcome

    def register(self, package_digest: str) -> RegisteredModel:
        """Add the model to the registry."""
        assert self.outcome is not None
        return self.registry.register(
            self.config,
            self.plan.hyperparameters,
            inputs=self.inputs(REGISTRATION),
            environment=self.plan.step(REGISTRATION).environment,
            package_digest=package_digest,
            outcome=self.outcome,
        )

    def finish(self, failure: str | None, *, seconds: float) -> None:
        """Print how the run ended, and write report.md under the root."""
        table = "\n".join(line.rstrip() for line in self.progress.lines())
        refused = self.outcome is not None and not self.outcome.holds
        ended = failure or ""
        if self.outcome is not None and (refused or not failure):
            ended = self.outcome.sentence()
        summary = self._file(MODEL_METRICS, "metrics_output", METRICS_SUMMARY)
        links: dict[str, Path | None] = {
            "profile of the data": self._file(TABULAR_PREPROCESSING, "processed_data", DATA_PROFILE_TEXT),
            "evaluation": self._file(PYTORCH_TRAINING, "evaluation_output", artifacts.REPORT),
            "metrics": summary,
            "plots": self._file(MODEL_METRICS, "plots_output", ""),
            "scores": self._file(BATCH_SCORE, "scores", ""),
        }
        logs = {f"log of {name}": directory.log for name, directory in self.directories.items()}
        page = [f"# {self.config.name}\n", f"```\n{table}\n```\n", f"{ended}\n", "## Where to look\n"]
        page += [f"* {name}: {path}" for name, path in (links | logs).items() if path is not None and path.exists()]
        if summary is not None:
            page += ["\n## Metrics\n", f"```\n{summary.read_text(encoding='utf-8').rstrip()}\n```"]
        report = self.root / REPORT
        report.write_text("\n".join(page) + "\n", encoding="utf-8")
        print(f"\n{table}\n\n{ended}\nThe run took {seconds:.1f} s.\n\nReport: {report}")
        if REGISTRATION.name in self.records or (failure is None and not refused):
            command = shlex.join([sys.executable, "-m", "pipeline", "serve", "--root", str(self.root)])
            print(f"Serve the newest registered model: {command}")
        if failure and not refused:
            print(failure, file=sys.stderr)

    def _file(self, contract: StepContract, output: str, name: str) -> Path | None:
        if contract.name in self.directories and (path := self.output(contract, output) / name).exists():
            return path
        return None
