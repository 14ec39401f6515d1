"""Cache the steps of local runs: a folder per step and digest of everything that its outputs depend on."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contracts.atomic_files import write_text_atomically
from contracts.fingerprint import Fingerprint
from contracts.input_files import files_below
from contracts.step_contract import StepContract
from pipeline.local.digests import ContentDigests

RECORD = "step.json"
LOG = "log.txt"
KEY_LENGTH = 16


@dataclass(frozen=True)
class Completed:
    """The record of a completed step.

    Attributes:
        outputs: digest of each output, by logical name.
        files: size and modification time of every output file at the end of the step, by path in the step's folder.
        seconds: duration of the step.
        result: the result of a step without output folders, e.g. the version that a registration made.
    """

    outputs: Mapping[str, str]
    files: Mapping[str, list[int]]
    seconds: float
    result: Mapping[str, Any]


@dataclass(frozen=True)
class StepDirectory:
    """The folder of a step with one fingerprint."""

    folder: Path

    @property
    def ml(self) -> Path:
        """The root of the step's program, instead of /opt/ml."""
        return self.folder / "ml"

    @property
    def log(self) -> Path:
        return self.folder / LOG

    def output(self, contract: StepContract, name: str) -> Path:
        return contract.output(name).path(self.ml)

    def completed(self) -> Completed | None:
        """Return the record if the step completed and its outputs have not changed since."""
        try:
            record = Completed(**json.loads((self.folder / RECORD).read_text())["completed"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return record if record.files == self._stamps(self.folder / name for name in record.files) else None

    def complete(
        self,
        contract: StepContract,
        digests: ContentDigests,
        *,
        fingerprint: Fingerprint,
        seconds: float,
        result: Mapping[str, Any],
    ) -> Completed:
        """Write the record atomically, as the step's last file: a step without a record is incomplete.

        Args:
            fingerprint: of the step; its parts show why a step ran again.
        """
        outputs = {folder.name: folder.path(self.ml) for folder in contract.outputs}
        outputs = {name: folder for name, folder in outputs.items() if folder.is_dir()}
        record = Completed(
            outputs={name: digests.of(folder) for name, folder in outputs.items()},
            files=self._stamps(path for folder in outputs.values() for path in files_below(folder).files),
            seconds=round(seconds, 3),
            result=result,
        )
        parts = dict(fingerprint.parts)
        content = json.dumps({"completed": asdict(record), "fingerprint": parts}, indent=1, sort_keys=True)
        write_text_atomically(self.folder / RECORD, content)
        return record

    def _stamps(self, paths: Iterable[Path]) -> dict[str, list[int]]:
        stamps = {}
        for path in paths:
            status = path.stat() if path.exists() else None
            stamps[str(path.relative_to(self.folder))] = [status.st_size, status.st_mtime_ns] if status else []
        return stamps


def step_folder(root: Path, step: str, fingerprint: Fingerprint) -> StepDirectory:
    """Return the folder of a step with this fingerprint."""
    return StepDirectory(root / "steps" / step / fingerprint.digest(KEY_LENGTH))
