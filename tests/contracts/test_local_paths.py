"""The folders that a request to SageMaker chooses, in the files that the service writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import ContractError
from contracts.local_paths import with_local_paths
from contracts.paths import JobPaths


def paths_with(root: Path, **files: Any) -> JobPaths:
    paths = JobPaths(root)
    paths.config.mkdir(parents=True)
    for name, content in files.items():
        (paths.config / f"{name}.json").write_text(json.dumps(content))
    return with_local_paths(paths)


@pytest.mark.parametrize(
    ("local_path", "folder"),
    [
        ("/opt/ml/checkpoints/", "/jobs/7/checkpoints"),
        ("/opt/ml/state/of/training", "/jobs/7/state/of/training"),
        ("/opt/ml/../ml/state", "/jobs/7/state"),
        ("/tmp/state", "/tmp/state"),
        ("/opt/mlx", "/opt/mlx"),
        ("", "/jobs/7/checkpoints"),
        (None, "/jobs/7/checkpoints"),
    ],
)
def test_a_path_of_the_service_is_below_the_root_if_it_is_below_opt_ml(tmp_path, local_path, folder):
    paths = paths_with(tmp_path, checkpointconfig={"S3Uri": "s3://bucket/x", "LocalPath": local_path})
    assert str(paths.checkpoints).replace(str(tmp_path), "/jobs/7") == folder
    assert paths.tuning == paths.checkpoints / "tuning"


def test_tensorboard_has_the_folder_of_its_request(tmp_path):
    paths = paths_with(
        tmp_path, tensorboardoutputconfig={"S3OutputPath": "s3://b", "LocalPath": "/opt/ml/output/curves"}
    )
    assert paths.tensorboard == tmp_path / "output" / "curves"
    assert paths.checkpoints == tmp_path / "checkpoints"


def test_without_the_files_the_folders_are_the_default_ones(tmp_path):
    assert paths_with(tmp_path) == JobPaths(tmp_path)


@pytest.mark.parametrize("local_path", ["checkpoints", 3, ["/opt/ml/checkpoints"]])
def test_a_path_that_is_not_absolute_is_named(tmp_path, local_path):
    with pytest.raises(ContractError, match=r"checkpointconfig\.json: LocalPath is .*, which is no absolute path"):
        paths_with(tmp_path, checkpointconfig={"LocalPath": local_path})
