"""Cache the steps of local runs: a folder per step and digest of everything that its outputs depend on."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from re import match
from typing import Any

import contracts
from contracts.atomic_files import write_text_atomically
from contracts.fingerprint import ContentDigests, Fingerprint, digest_of, digest_of_file
from contracts.step_contract import StepContract

DISTRIBUTION = "text-table-trainer"
REPOSITORY = Path(contracts.__file__).parents[1]  # contains the packages contracts and container


def code_digest(packages: Sequence[str] = ("contracts", "container")) -> str:
    """Return a digest of the code that steps run and the versions of its dependencies; it replaces the image's."""
    files = [
        [str(path.relative_to(REPOSITORY)), digest_of_file(path)]
        for package in packages
        for path in sorted((REPOSITORY / package).rglob("*"))
        if path.suffix in (".py", ".html", ".css", ".json")
    ]
    return digest_of([files, _versions()])


def _versions() -> list[list[str]]:
    versions = []
    with suppress(PackageNotFoundError):
        for line in requires(DISTRIBUTION) or []:
            name = match(r"[A-Za-z0-9._-]+", line)
            if name is not None and "extra ==" not in line:
                with suppress(PackageNotFoundError):
                    versions.append([name[0], version(name[0])])
    return versions


RECORD = "step.json"
LOG = "log.txt"
KEY_LENGTH = 16


@dataclass(frozen=True)
class Completed:
    """The record of a completed step.

    Attributes:
        outputs: digest of each output, by logical name.
        seconds: duration of the step.
        result: the result of a step without output folders, e.g. the version that a registration made.
    """

    outputs: Mapping[str, str]
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

    def outputs(self, contract: StepContract) -> dict[str, Path]:
        """Return the folder of each output that exists, by logical name."""
        folders = {folder.name: folder.path(self.ml) for folder in contract.outputs}
        return {name: folder for name, folder in folders.items() if folder.is_dir()}

    def completed(self, contract: StepContract, digests: ContentDigests) -> Completed | None:
        """Return the record if the step completed and its outputs have not changed since."""
        try:
            record = Completed(**json.loads((self.folder / RECORD).read_text())["completed"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        present = {name: digests.of(folder) for name, folder in self.outputs(contract).items()}
        return record if record.outputs == present else None

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
        outputs = {name: digests.of(folder) for name, folder in self.outputs(contract).items()}
        record = Completed(outputs, round(seconds, 3), result)
        parts = dict(fingerprint.parts)
        content = json.dumps({"completed": asdict(record), "fingerprint": parts}, indent=1, sort_keys=True)
        write_text_atomically(self.folder / RECORD, content)
        return record


def step_folder(root: Path, step: str, fingerprint: Fingerprint) -> StepDirectory:
    """Return the folder of a step with this fingerprint."""
    return StepDirectory(root / "steps" / step / fingerprint.digest(KEY_LENGTH))
