"""A folder per step and content: what a step read decides where it lies, and whether it must run at all."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contracts.atomic_files import write_text_atomically
from contracts.step_contract import StepContract
from pipeline.local.digests import ContentDigests, digest_of, files_in

RECORD = "step.json"
LOG = "log.txt"
KEY_LENGTH = 16


@dataclass(frozen=True)
class Completed:
    """A step that ended well, as its record says.

    Attributes:
        outputs: digest of each output, by logical name.
        files: size and time of every output file, relative to the step's folder, as they were written.
        seconds: how long it ran.
        result: what a step without output folders leaves, e.g. the version that a registration made.
    """

    outputs: Mapping[str, str]
    files: Mapping[str, list[int]]
    seconds: float
    result: Mapping[str, Any]


@dataclass(frozen=True)
class StepFolderOnDisk:
    """Where one step with one content lies."""

    folder: Path

    @property
    def ml(self) -> Path:
        """The root that its program sees instead of /opt/ml."""
        return self.folder / "ml"

    @property
    def log(self) -> Path:
        return self.folder / LOG

    def output(self, contract: StepContract, name: str) -> Path:
        return contract.output(name).path(self.ml)

    def completed(self) -> Completed | None:
        """The record, if the step completed and its outputs are as it left them."""
        try:
            record = Completed(**json.loads((self.folder / RECORD).read_text())["completed"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return record if record.files == self._stamps(Path(name) for name in record.files) else None

    def complete(
        self,
        contract: StepContract,
        digests: ContentDigests,
        *,
        told: Mapping[str, Any],
        seconds: float,
        result: Mapping[str, Any],
    ) -> Completed:
        """Write the record, last and at once: a step without one did not complete.

        Args:
            told: what its key was made of, for a person who wonders why it ran.
        """
        folders = {folder.name: folder.path(self.ml) for folder in contract.outputs}
        written = [path for folder in folders.values() if folder.is_dir() for path in files_in(folder)]
        record = Completed(
            outputs={name: digests.of(folder) for name, folder in folders.items() if folder.is_dir()},
            files=self._stamps(path.relative_to(self.folder) for path in written),
            seconds=round(seconds, 3),
            result=result,
        )
        content = json.dumps({"completed": asdict(record), "told": told}, indent=1, sort_keys=True)
        write_text_atomically(self.folder / RECORD, content)
        return record

    def _stamps(self, names: Any) -> dict[str, list[int]]:
        stamps = {}
        for name in names:
            path = self.folder / name
            status = path.stat() if path.exists() else None
            stamps[str(name)] = [status.st_size, status.st_mtime_ns] if status else []
        return stamps


def step_folder(root: Path, step: str, told: Mapping[str, Any]) -> StepFolderOnDisk:
    """The folder of a step that was told `told`."""
    return StepFolderOnDisk(root / "steps" / step / digest_of(told)[:KEY_LENGTH])
