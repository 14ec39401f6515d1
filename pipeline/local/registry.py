"""A model registry in a folder: registry/GROUP/VERSION/, complete versions only."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from contracts.atomic_files import atomic_folder
from contracts.errors import ContractError
from contracts.file_systems import link_or_copy
from contracts.fingerprint import digest_of_file
from contracts.input_files import is_foreign, read_object
from contracts.serving import REQUEST_TYPES, RESPONSE_TYPES
from contracts.steps import ARCHIVED_MODEL, REGISTRATION
from pipeline.card import DOMAIN, TASK, model_card
from pipeline.condition import ConditionOutcome, version_facts
from pipeline.config import PipelineConfig
from pipeline.plan import Plan
from pipeline.versions import Version, no_version

PACKAGE_FILE = "model_package.json"
_FIX = "Correct the file, or delete the folder of this version."


@dataclass(frozen=True)
class RegisteredModel(Version):
    """A version in the registry, in a folder of its own.

    Attributes:
        archive_digest: of its model.tar.gz; None for a version of an earlier release.
    """

    folder: Path
    archive_digest: str | None

    @classmethod
    def read(cls, folder: Path) -> "RegisteredModel":
        """Read a version; raise ContractError for a damaged one."""
        package = read_object(folder / PACKAGE_FILE, _FIX)
        try:
            number, properties = package["ModelPackageVersion"], package["CustomerMetadataProperties"]
            return cls(
                number=number,
                created=package.get("CreationTime", ""),
                approval=package["ModelApprovalStatus"],
                reason=package.get("ApprovalDescription", ""),
                metric=properties["condition_metric"],
                properties=properties,
                folder=folder,
                archive_digest=package["InferenceSpecification"]["Containers"][0].get("ModelDataETag"),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ContractError(f"{folder / PACKAGE_FILE}: lacks {error}", _FIX) from None


class LocalRegistry:
    """The versions of one model package group."""

    def __init__(self, root: Path, group: str) -> None:
        self.folder = root / "registry" / group

    def numbers(self) -> list[int]:
        """Return the numbers of all versions, the newest first."""
        return sorted((int(folder.name) for folder in self.folder.glob("[0-9]*")), reverse=True)

    def version(self, number: int) -> RegisteredModel:
        """Return a version; raise ContractError if it does not exist or is damaged."""
        if number not in self.numbers():
            raise no_version(self.folder.name, number, self.numbers()[::-1])
        return RegisteredModel.read(self.folder / str(number))

    def versions(self) -> list[RegisteredModel]:
        """Return all versions, the newest first."""
        return [self.version(number) for number in self.numbers()]

    def to_beat(self, config: PipelineConfig, *, package_digest: str | None) -> RegisteredModel | None:
        """Return the version that a new model must beat; a model need not beat itself.

        Args:
            package_digest: of the new model's package; None if it is not packaged yet.
        """
        if config.condition.beat == "nothing":
            return None
        for model in self.versions():
            approved = config.condition.beat == "newest" or model.approval == "Approved"
            if approved and model.properties.get("package_digest") != package_digest:
                return model
        return None

    def register(
        self,
        config: PipelineConfig,
        *,
        inputs: Mapping[str, Path],
        environment: Mapping[str, str],
        package_digest: str,
        outcome: ConditionOutcome,
        plan: Plan,
        made_of: Mapping[str, str],
    ) -> RegisteredModel:
        """Add a version atomically.

        Args:
            made_of: the image, the key of the data, the training job and the execution.
            inputs: folder of each input of the registration, by logical name.
            environment: the served model's variables.
        """
        version = max(self.numbers(), default=0) + 1
        registration = config.registration
        package = {
            "ModelPackageGroupName": config.group,
            "ModelPackageVersion": version,
            "CreationTime": datetime.now(UTC).isoformat(timespec="seconds"),
            "ModelApprovalStatus": registration.approval,
            "Domain": DOMAIN,
            "Task": TASK,
            "InferenceSpecification": {
                "Containers": [{"ModelDataUrl": ARCHIVED_MODEL, "Environment": dict(environment)}],
                "SupportedContentTypes": list(REQUEST_TYPES),
                "SupportedResponseMIMETypes": list(RESPONSE_TYPES),
                "SupportedRealtimeInferenceInstanceTypes": list(registration.inference_instances),
                "SupportedTransformInstanceTypes": list(registration.transform_instances),
            },
            "CustomerMetadataProperties": {
                "condition_metric": config.condition.metric,
                **version_facts(inputs["metrics_output"]),
                **made_of,
                "decision": outcome.sentence(),
                "package_digest": package_digest,
            },
            "ModelCard": json.loads(model_card(config, plan, outcome, image=None)),
        }
        target = self.folder / str(version)
        with atomic_folder(target) as temporary:
            temporary.mkdir(parents=True)
            for folder in REGISTRATION.inputs:
                for path in sorted(inputs[folder.name].iterdir()):
                    if path.is_file() and not is_foreign(path.name):
                        link_or_copy(path, temporary / path.name)
            package["InferenceSpecification"]["Containers"][0]["ModelDataETag"] = digest_of_file(
                temporary / ARCHIVED_MODEL
            )
            (temporary / PACKAGE_FILE).write_text(json.dumps(package, indent=1))
        return RegisteredModel.read(target)
