"""Files of a local run that a user or a full disk damaged are named, or computed again."""

import json

import pytest

from contracts.errors import ContractError
from pipeline.commands import main
from pipeline.local.registry import PACKAGE_FILE, LocalRegistry
from testing.pipelines import CONFIG, write_config

PACKAGE = {
    "ModelPackageVersion": 1,
    "ModelApprovalStatus": "Approved",
    "CustomerMetadataProperties": {"condition_metric": "test/auroc", "package_digest": "0"},
}


@pytest.fixture
def version(tmp_path):
    folder = tmp_path / "registry" / "claims" / "1"
    folder.mkdir(parents=True)
    (folder / PACKAGE_FILE).write_text(json.dumps(PACKAGE))
    return folder


@pytest.mark.parametrize(
    ("text", "cause"), [('{"a": 1,}', "not JSON"), ("{}", "lacks 'ModelPackageVersion'"), (None, "does not exist")]
)
def test_a_damaged_description_of_a_version_is_named(version, text, cause):
    (version / PACKAGE_FILE).unlink() if text is None else (version / PACKAGE_FILE).write_text(text)
    with pytest.raises(ContractError, match=cause) as raised:
        LocalRegistry(version.parents[2], "claims").versions()
    assert str(version / PACKAGE_FILE) in raised.value.cause


def test_a_root_that_is_a_file_is_named(tmp_path, capsys):
    (tmp_path / "root").touch()
    assert main(["run", "--config", str(write_config(tmp_path, CONFIG)), "--root", str(tmp_path / "root")]) == 1
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'root'}: is no folder")
