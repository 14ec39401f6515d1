"""Find the channels under their names in the job; check their settings in input/config/inputdataconfig.json."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from container.job.hosts.topology import Topology
from contracts.errors import ContractError
from contracts.input_files import exists, expected_content, read_object
from contracts.paths import CHANNEL_ALIASES, SPLITS, JobPaths

_FIX = "Write an object of settings for each channel, or remove the file: then every host has all files."
REPLICATED, SHARDED = "FullyReplicated", "ShardedByS3Key"


def find_channels(paths: JobPaths) -> JobPaths:
    """Return `paths` with the channels that have an alias; raise ContractError if one has two names."""
    folder = paths.channel("")
    given = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return replace(paths, aliases=_aliases(given, where=folder))


def _aliases(given: Iterable[str], *, where: Path) -> frozenset[str]:
    aliases = CHANNEL_ALIASES.keys() & given
    for alias in sorted(aliases):
        if CHANNEL_ALIASES[alias] in given:
            raise ContractError(
                f"channel {CHANNEL_ALIASES[alias]}: {where} also has the channel {alias}, which is another name of it",
                "Give the job one of the two channels.",
            )
    return frozenset(aliases)


def check_channels(paths: JobPaths, topology: Topology) -> None:
    """Check that every host has all files of every channel, and can read them several times.

    Raises:
        ContractError: not an input data configuration, or an unsupported input mode or distribution of a channel.
    """
    path = paths.config / "inputdataconfig.json"
    if not exists(path):
        return
    content = read_object(path, _FIX)
    with expected_content(path, _FIX):
        channels = {name: dict(settings) for name, settings in content.items()}
    aliases = _aliases(channels, where=path)
    hosts = topology.size + len(topology.idle)
    inputs = (paths.pretrained, paths.precomputed_artifacts, paths.settings, paths.initial_model)
    for name in (*SPLITS, *aliases, *(path.name for path in inputs)):
        if name in channels:
            _check_readable(name, channels[name], hosts=hosts, where=str(path))


def _check_readable(name: str, settings: Mapping[str, Any], *, hosts: int, where: str) -> None:
    if settings.get("TrainingInputMode") == "Pipe":
        raise ContractError(
            f"channel {name}: has the input mode Pipe, a stream that can be read once, but preparing "
            f"reads the data twice: to fit, and to transform ({where})",
            "Set its input mode to File, or to FastFile, which downloads nothing in advance.",
        )
    distribution = settings.get("S3DistributionType") or REPLICATED
    if distribution != REPLICATED and (hosts > 1 or distribution != SHARDED):
        raise ContractError(
            f"channel {name}: has the distribution {distribution!r}, but each of the {hosts} hosts needs all of its "
            f"files ({where})",
            f"Set its distribution to {REPLICATED}: each rank trains on its share of the rows. Set its input mode to "
            "FastFile to download nothing in advance.",
        )
