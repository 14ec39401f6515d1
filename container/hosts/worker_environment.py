"""Set the SM_* variables that SageMaker training scripts expect in worker processes."""

import json
from pathlib import Path
from typing import Any

from container.hosts.topology import Topology
from container.processes import available_cores
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import is_foreign
from contracts.json_text import parse_json
from contracts.paths import JobPaths


def sm_variables(paths: JobPaths, hp: Hyperparameters, topology: Topology, *, num_gpus: int) -> dict[str, str]:
    """Return the variables of the SageMaker training toolkit that apply to this trainer."""
    data = paths.root / "input" / "data"
    channels = [path.name for path in sorted(data.glob("*")) if path.is_dir() and not is_foreign(path.name)]
    resources = _content(paths.resource_config)
    variables: dict[str, Any] = {
        "SM_HOSTS": json.dumps(topology.hosts),
        "SM_CURRENT_HOST": topology.current,
        "SM_MASTER_ADDR": topology.leader,
        "SM_HOST_COUNT": topology.size,
        "SM_NUM_GPUS": num_gpus,
        "SM_NUM_CPUS": available_cores(),
        "SM_NETWORK_INTERFACE_NAME": topology.interface or "",
        "SM_CURRENT_INSTANCE_TYPE": resources.get("current_instance_type", ""),
        "SM_CURRENT_INSTANCE_GROUP": resources.get("current_group_name", ""),
        "SM_RESOURCE_CONFIG": json.dumps(resources),
        "SM_INPUT_DATA_CONFIG": json.dumps(_content(paths.config / "inputdataconfig.json")),
        "SM_HPS": hp.model_dump_json(exclude_unset=True),
        "SM_INPUT_DIR": paths.root / "input",
        "SM_INPUT_CONFIG_DIR": paths.config,
        "SM_MODEL_DIR": paths.model,
        "SM_OUTPUT_DIR": paths.root / "output",
        "SM_OUTPUT_DATA_DIR": paths.output_data,
        "SM_CHANNELS": json.dumps(channels),
        **{f"SM_CHANNEL_{name.upper()}": data / name for name in channels},
    }
    # Linux starts no process with a longer variable; with precomputed risk tables, SM_HPS can be longer.
    return {name: str(value) for name, value in variables.items() if len(f"{name}={value}".encode()) < 131_072}


def _content(path: Path) -> dict[str, Any]:
    return parse_json(path.read_bytes()) if path.is_file() else {}
