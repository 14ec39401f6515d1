"""Read from input/config/inputdataconfig.json which channels are sharded over hosts; refuse those that cannot be."""

import json
from collections.abc import Mapping
from typing import Any

from container.hosts.topology import Topology
from contracts.errors import ContractError
from contracts.paths import SPLITS, JobPaths

REPLICATED, SHARDED = "FullyReplicated", "ShardedByS3Key"


def sharded_channels(paths: JobPaths, topology: Topology) -> tuple[str, ...]:
    """Return the splits of which each host got a part, in the order of SPLITS. A single host gets everything: none.

    Raises:
        ContractError: not an input data configuration, or a channel whose input mode or distribution cannot be used.
    """
    path = paths.config / "inputdataconfig.json"
    if not path.is_file():
        return ()
    try:
        channels = {name: dict(about) for name, about in json.loads(path.read_text()).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ContractError(f"{path}: is not an input data configuration: {error}") from None
    read_whole = (paths.pretrained.name, paths.precomputed_artifacts.name)
    for name, about in channels.items():
        if name in (*SPLITS, *read_whole):
            _check_readable(name, about, where=str(path))
    if topology.size == 1 and not topology.idle:
        return ()
    sharded = [name for name, about in channels.items() if about.get("S3DistributionType") == SHARDED]
    for name in sharded:
        if name in read_whole:
            raise ContractError(
                f"channel {name}: is {SHARDED} over {topology.size + len(topology.idle)} hosts, but its files belong "
                f"together, and each host would get only some of them ({path})",
                f"Set its distribution to {REPLICATED}; only {', '.join(SPLITS)} can be sharded.",
            )
        if name in SPLITS and topology.idle:
            raise ContractError(
                f"channel {name}: is {SHARDED} over hosts of which {', '.join(topology.idle)} do not train: the rows "
                f"of their parts would be lost ({path})",
                f"Set its distribution to {REPLICATED}, or let all instance groups train.",
            )
    return tuple(name for name in SPLITS if name in sharded)


def _check_readable(name: str, about: Mapping[str, Any], *, where: str) -> None:
    if about.get("TrainingInputMode") == "Pipe":
        raise ContractError(
            f"channel {name}: has the input mode Pipe, a stream that can be read once, but preparing "
            f"reads the data twice: to fit, and to transform ({where})",
            "Set its input mode to File, or to FastFile, which copies nothing beforehand.",
        )
    kind = about.get("S3DistributionType")
    if kind not in (None, REPLICATED, SHARDED):
        raise ContractError(
            f"channel {name}: has the distribution {kind!r}, which is neither {REPLICATED} nor {SHARDED} ({where})",
            f"Set its distribution to {REPLICATED}: every host reads all rows, and each rank trains on its share.",
        )
