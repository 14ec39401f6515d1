"""The state of a run, and the report of its end."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from contracts import artifacts
from contracts.step_contract import StepContract
from contracts.steps import (
    DATA_PROFILE_TEXT,
    METRICS_SUMMARY,
    MODEL_METRICS,
    PYTORCH_TRAINING,
    REGISTRATION,
    TABULAR_PREPROCESSING,
)
from pipeline.config import PipelineConfig
from pipeline.decision import ConditionOutcome, decide, read_decision_value
from pipeline.graph import source
from pipeline.local.cache import Completed, StepFolderOnDisk
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
        places: the folder of each completed step, by name.
        records: the record of each completed step, by name.
    """

    config: PipelineConfig
    plan: Plan
    root: Path
    digests: ContentDigests
    code: str
    progress: Progress
    places: dict[str, StepFolderOnDisk] = field(default_factory=dict)
    records: dict[str, Completed] = field(default_factory=dict)
    decision: ConditionOutcome | None = None

    @property
    def registry(self) -> LocalRegistry:
        return LocalRegistry(self.root, self.config.group)

    def inputs(self, contract: StepContract) -> dict[str, Path]:
        """Return the folder or file of each input of a step that exists."""
        paths = {}
        outside = self.plan.step(contract).outside
        for folder in contract.inputs:
            origin = source(contract, folder)
            if origin is not None:
                paths[folder.name] = self.places[origin.step.name].output(origin.step, origin.output) / origin.subfolder
            elif folder.name in outside:
                paths[folder.name] = Path(outside[folder.name])
        return paths

    def decide(self, registered: RegisteredModel | None) -> ConditionOutcome:
        """Compare the metric with the condition."""
        metrics = self.places[MODEL_METRICS.name].output(MODEL_METRICS, "metrics_output")
        self.decision = decide(self.config.condition, read_decision_value(metrics), registered and registered.value)
        return self.decision

    def register(self, package_digest: str) -> RegisteredModel:
        """Add the model to the registry."""
        assert self.decision is not None
        return self.registry.register(
            self.config,
            self.plan.hyperparameters,
            inputs=self.inputs(REGISTRATION),
            package_digest=package_digest,
            decision=self.decision,
        )

    def finish(self, failure: str | None, *, seconds: float) -> None:
        """Print how the run ended, and write report.md under the root."""
        table = "\n".join(line.rstrip() for line in self.progress.lines())
        refused = self.decision is not None and not self.decision.holds
        if self.decision is not None and (refused or failure is None):
            outcome = self.decision.sentence()
        else:
            outcome = failure or ""
        summary = self._file(MODEL_METRICS, "metrics_output", METRICS_SUMMARY)
        links: dict[str, Path | None] = {
            "profile of the data": self._file(TABULAR_PREPROCESSING, "processed_data", DATA_PROFILE_TEXT),
            "evaluation": self._file(PYTORCH_TRAINING, "evaluation_output", artifacts.REPORT),
            "metrics": summary,
            "plots": self._file(MODEL_METRICS, "plots_output", ""),
            **{f"log of {name}": place.log for name, place in self.places.items() if place.log.is_file()},
        }
        page = [f"# {self.config.name}\n", f"```\n{table}\n```\n", f"{outcome}\n", "## Where to look\n"]
        page += [f"* {name}: {path}" for name, path in links.items() if path is not None]
        if summary is not None:
            page += ["\n## Metrics\n", f"```\n{summary.read_text(encoding='utf-8').rstrip()}\n```"]
        report = self.root / REPORT
        report.write_text("\n".join(page) + "\n", encoding="utf-8")
        print(f"\n{table}\n\n{outcome}\nThe run took {seconds:.1f} s.\n\nReport: {report}")
        if failure and not refused:
            print(failure, file=sys.stderr)

    def _file(self, contract: StepContract, output: str, name: str) -> Path | None:
        if contract.name not in self.places:
            return None
        path = self.places[contract.name].output(contract, output) / name
        return path if path.exists() else None
