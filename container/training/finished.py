"""Tell which networks of an ensemble are trained, by their checkpoints: there is no other record of it."""

from collections.abc import Sequence

from container.job.job import Member
from container.training import state
from container.training.checkpoint_files import complete_checkpoints
from container.training.state import EarlyStopping, TrainingState


def state_of(member: Member) -> TrainingState | None:
    """Return the state of the newest checkpoint of a network."""
    complete = complete_checkpoints(member.checkpoints)
    return TrainingState(**complete[-1].content["state"]) if complete else None


def is_finished(member: Member) -> bool:
    """Return whether training from the newest checkpoint of a network would take no step."""
    newest, hp = state_of(member), member.hp
    return newest is not None and state.is_finished(newest, max_epochs=hp.max_epochs, stopping=EarlyStopping.of(hp))


def describe_finished(members: Sequence[Member]) -> str:
    """Return how many networks are trained, for the log."""
    return f"{sum(map(is_finished, members))} of {len(members)} networks are trained"
