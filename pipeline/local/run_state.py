"""What is known of a run under way."""

from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import PipelineConfig
from pipeline.decision import ConditionOutcome
from pipeline.local.cache import Completed, StepFolderOnDisk
from pipeline.local.digests import ContentDigests
from pipeline.local.progress import Progress
from pipeline.plan import Plan


@dataclass
class Run:
    """A run under way.

    Attributes:
        places: the folder of each step that is done, by name.
        records: its record.
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
