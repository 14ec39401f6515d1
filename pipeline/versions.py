"""Registered versions, and the table of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.errors import ContractError
from contracts.spelling import aligned

APPROVED = "Approved"
DECISIONS = {"approve": APPROVED, "reject": "Rejected"}  # approval status, by command
_SHOWN = 10  # characters of a data key
_WORDS = {APPROVED: "approved", "Rejected": "rejected", "PendingManualApproval": "waits"}


@dataclass(frozen=True)
class Version:
    """A registered version.

    Attributes:
        created: date in ISO 8601.
        reason: why it was approved or rejected.
        properties: the metadata of the package: what it was made of, and its metric.
    """

    number: int
    created: str
    approval: str
    reason: str
    metric: str
    properties: Mapping[str, str]

    def require_approved(self) -> None:
        """Raise ContractError if the version is not approved."""
        if self.approval != APPROVED:
            why = f": {self.reason}" if self.reason else ""
            raise ContractError(
                f"version {self.number}: is not approved ({self.approval}{why})",
                f"Approve it: python -m pipeline approve {self.number} --why REASON",
            )


def table(versions: Sequence[Version], *, group: str, in_service: int | None, service: str) -> str:
    """Return the table of versions.

    Args:
        in_service: the version that `service` has; None: none.
    """
    if not versions:
        return f"{group} has no registered version."
    metrics = {version.metric.partition("/")[2] for version in versions}
    metric = metrics.pop() if len(metrics) == 1 else "metric"
    rows = [["no.", "date", "approval", metric, "95 %", "rows", "commit", "data"]]
    for version in versions:
        number = f"{version.number} *" if version.number == in_service else str(version.number)
        approval = _WORDS.get(version.approval, version.approval)
        numbers = [_rounded(version.properties.get(name, "-")) for name in ("metric_value", "metric_interval_95")]
        count, commit, data = (version.properties.get(name, "-") for name in ("training_rows", "commit", "data_key"))
        rows.append([number, version.created[:10], approval, *numbers, count, commit[:7], _end(data)])
    where = (
        f"* {service} has version {in_service}." if in_service is not None else f"{service}: no version is in service."
    )
    reasons = [f"{version.number}: {version.reason}" for version in versions if version.reason]
    return "\n".join([*aligned(rows), *reasons, where])


def _end(text: str) -> str:
    """Return a text, or its end: keys such as dates differ there."""
    return text if len(text) <= _SHOWN else f"…{text[1 - _SHOWN :]}"


def _rounded(text: str) -> str:
    """Return a text in which each decimal number has four digits after the point."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.4f}", text)


def no_version(group: str, number: int, numbers: Sequence[int]) -> ContractError:
    """Return the error of a version that does not exist."""
    listed = f"Use one of: {', '.join(map(str, numbers))}." if numbers else "Run the pipeline, which registers one."
    return ContractError(f"version {number}: {group} has no such version", listed)
