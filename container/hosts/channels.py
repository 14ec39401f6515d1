"""Read from input/config/inputdataconfig.json which channels are sharded over hosts."""

from collections.abc import Mapping
from typing import Any

from container.hosts.topology import Topology
from contracts.errors import ContractError
from contracts.input_files import exists, expected_content, read_object
from contracts.paths import SPLITS, JobPaths

_FIX = "Write an object of settings for each channel, or remove the file: then every host has all files."
REPLICATED, SHARDED = "FullyReplicated", "ShardedByS3Key"


def sharded_channels(paths: JobPaths, topology: Topology) -> tuple[str, ...]:
    """Return the splits that are sharded over hosts, in the order of SPLITS; none on a single host.

    Raises:
        ContractError: not an input data configuration, or an unsupported input mode or distribution of a channel.
    """
    path = paths.config / "inputdataconfig.json"
    if not exists(path):
        return ()
    content = read_object(path, _FIX)
    with expected_content(path, _FIX):
        channels = {name: dict(settings) for name, settings in content.items()}
    read_whole = (paths.pretrained.name, paths.precomputed_artifacts.name, paths.settings.name)
    for name in (*SPLITS, *read_whole):
        if name in channels:
            _check_readable(name, channels[name], where=str(path))
    if topology.size == 1 and not topology.idle:
        return ()
    sharded = [name for name, settings in channels.items() if settings.get("S3DistributionType") == SHARDED]
    for name in sharded:
        if name in read_whole:
            raise ContractError(
                f"channel {name}: is {SHARDED} over {topology.size + len(topology.idle)} hosts, but every host needs "
                f"all of its files ({path})",
                f"Set its distribution to {REPLICATED}; only {', '.join(SPLITS)} can be sharded.",
            )
        if name in SPLITS and topology.idle:
            raise ContractError(
                f"channel {name}: is {SHARDED}, and {', '.join(topology.idle)} receive parts but do not train: the job "
                f"would lose these rows ({path})",
                f"Set its distribution to {REPLICATED}, or let all instance groups train.",
            )
    return tuple(name for name in SPLITS if name in sharded)


def _check_readable(name: str, settings: Mapping[str, Any], *, where: str) -> None:
    if settings.get("TrainingInputMode") == "Pipe":
        raise ContractError(
            f"channel {name}: has the input mode Pipe, a stream that can be read once, but preparing "
            f"reads the data twice: to fit, and to transform ({where})",
            "Set its input mode to File, or to FastFile, which downloads nothing in advance.",
        )
    distribution = settings.get("S3DistributionType")
    if distribution not in (None, REPLICATED, SHARDED):
        raise ContractError(
            f"channel {name}: has the distribution {distribution!r}, not {REPLICATED} or {SHARDED} ({where})",
            f"Set its distribution to {REPLICATED}: every host reads all rows, and each rank trains on its share.",
        )
