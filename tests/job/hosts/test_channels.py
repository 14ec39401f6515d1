"""The channels' settings in inputdataconfig.json: which ones a job of several hosts accepts."""

import json

import pytest

from container.job.hosts.channels import check_channels, find_channels
from container.job.hosts.topology import Topology
from contracts.errors import ContractError
from contracts.paths import JobPaths
from tests.job.hosts.test_control import GROUPS, HOSTS, resources

SEVERAL = Topology(HOSTS, HOSTS[0])


def configured(tmp_path, **channels) -> JobPaths:
    paths = JobPaths(tmp_path)
    paths.config.mkdir(parents=True, exist_ok=True)
    (paths.config / "inputdataconfig.json").write_text(json.dumps(channels))
    return paths


def kind(name="ShardedByS3Key", mode="File"):
    return {"TrainingInputMode": mode, "S3DistributionType": name, "RecordWrapperType": "None"}


@pytest.mark.parametrize("name", ["train", "val", "test", "pretrained", "model_artifacts_input", "settings"])
def test_a_channel_sharded_over_hosts_is_refused_with_the_alternative(tmp_path, name):
    expected = rf"channel {name}: has the distribution 'ShardedByS3Key', but each of the 3 hosts .*\n.*FullyReplicated"
    with pytest.raises(ContractError, match=expected):
        check_channels(configured(tmp_path, **{name: kind()}), SEVERAL)


def test_hosts_that_do_not_train_count_as_hosts_of_a_sharded_channel(tmp_path, monkeypatch):
    monkeypatch.setenv("INSTANCE_GROUP", "data")
    paths = resources(tmp_path, current_host="algo-1", hosts=["algo-1", "algo-2", "algo-3"], instance_groups=GROUPS)
    configured(tmp_path, train=kind())
    with pytest.raises(ContractError, match="channel train: .* each of the 3 hosts"):
        check_channels(paths, Topology.read(paths.resource_config))


def test_a_single_host_has_all_of_a_sharded_channel(tmp_path):
    check_channels(configured(tmp_path, train=kind(), pretrained=kind()), Topology())


def test_replicated_channels_unused_ones_and_those_of_local_mode_are_accepted(tmp_path):
    local_mode = {"TrainingInputMode": "File"}
    check_channels(configured(tmp_path, train=local_mode, val=kind("FullyReplicated"), extra=kind()), SEVERAL)
    check_channels(JobPaths(tmp_path / "none"), SEVERAL)


def test_a_channel_is_refused_under_the_name_that_the_job_gives_it(tmp_path):
    with pytest.raises(ContractError, match="channel training: has the distribution 'ShardedByS3Key'"):
        check_channels(configured(tmp_path, training=kind()), SEVERAL)


def test_a_channel_with_two_names_is_an_error(tmp_path):
    expected = "channel val: .* also has the channel validation, which is another name of it"
    with pytest.raises(ContractError, match=expected):
        check_channels(configured(tmp_path, val=kind(), validation=kind()), SEVERAL)
    for name in ("val", "validation"):
        JobPaths(tmp_path).channel(name).mkdir(parents=True)
    with pytest.raises(ContractError, match=expected):
        find_channels(JobPaths(tmp_path))


@pytest.mark.parametrize("hosts", [("localhost",), HOSTS])
def test_a_pipe_and_an_unknown_distribution_are_refused_with_the_reason(tmp_path, hosts):
    topology = Topology(hosts, hosts[0])
    with pytest.raises(ContractError, match="channel train: .* input mode Pipe, .*reads the data twice.*\n.*FastFile"):
        check_channels(configured(tmp_path, train=kind(mode="Pipe")), topology)
    with pytest.raises(ContractError, match="channel val: has the distribution 'ByHash'"):
        check_channels(configured(tmp_path, val=kind("ByHash")), topology)
    with pytest.raises(ContractError, match=r"inputdataconfig\.json: "):
        check_channels(configured(tmp_path, val=3), topology)
