"""Settings that name a file of a channel cannot name another file."""

import pytest

from contracts.errors import ContractError
from testing.table_jobs import settings


@pytest.mark.parametrize("name", ["../val/val.csv", "/etc/passwd", "part/../../val/val.csv", ".."])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_file_outside_the_channel_is_refused(split: str, name: str) -> None:
    with pytest.raises(ContractError, match=rf"{split}_filename: '{name}' leads out of the channel {split}"):
        settings(**{f"{split}_filename": name})


@pytest.mark.parametrize("name", ["a.csv", "part/a.csv", "a..b.csv"])
def test_a_file_of_the_channel_or_of_a_folder_in_it_is_accepted(name: str) -> None:
    assert settings(train_filename=name).train_filename == name
