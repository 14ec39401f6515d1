"""The hosts of a job: their order, how they meet, and what each hears of the others."""

import contextlib
import errno
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from container.job.failure import FailedElsewhere, Failure
from container.job.hosts import control as control_module
from container.job.hosts.control import Control
from container.job.hosts.network import _efa_environment, check_interfaces, network_environment
from container.job.hosts.topology import Topology
from contracts.errors import ContractError
from contracts.paths import JobPaths
from contracts.ports import free_port
from testing.faults.shim.sitecustomize import refuse
from testing.jobs import REPOSITORY

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.10")  # Linux answers for all of 127.0.0.0/8


def resources(tmp_path, **content) -> JobPaths:
    paths = JobPaths(tmp_path)
    paths.config.mkdir(parents=True)
    paths.resource_config.write_text(json.dumps(content))
    return paths


def test_hosts_are_ranked_in_natural_order(tmp_path):
    paths = resources(tmp_path, current_host="algo-10", hosts=["algo-1", "algo-10", "algo-2"])
    topology = Topology.read(paths.resource_config)
    assert topology.hosts == ("algo-1", "algo-2", "algo-10")
    assert (topology.rank, topology.leader, topology.leads) == (2, "algo-1", False)


def test_a_host_name_may_have_any_digits(tmp_path):
    names = ["²", "algo-0", "algo-02", "algo-10", f"algo-{'9' * 5000}"]
    paths = resources(tmp_path, current_host="algo-0", hosts=names[::-1])
    assert Topology.read(paths.resource_config).hosts == tuple(names)


def test_without_a_resource_configuration_there_is_one_host(tmp_path):
    topology = Topology.read(JobPaths(tmp_path).resource_config)
    assert (topology.size, topology.rank, topology.leads) == (1, 0, True)


GROUPS = [
    {"instance_group_name": "gpu", "instance_type": "ml.g5.2xlarge", "hosts": ["algo-3", "algo-2"]},
    {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
]


@pytest.mark.parametrize(("current", "trains"), [("algo-1", False), ("algo-2", True), ("algo-3", True)])
def test_of_several_instance_groups_the_chosen_one_trains(tmp_path, monkeypatch, current, trains):
    monkeypatch.setenv("INSTANCE_GROUP", "gpu")
    paths = resources(tmp_path, current_host=current, hosts=["algo-1", "algo-2", "algo-3"], instance_groups=GROUPS)
    topology = Topology.read(paths.resource_config)
    assert topology.hosts == ("algo-2", "algo-3")
    assert topology.trains is trains


def test_several_instance_groups_of_which_none_is_chosen_are_an_error_that_names_them(tmp_path):
    paths = resources(tmp_path, current_host="algo-1", hosts=["algo-1", "algo-2", "algo-3"], instance_groups=GROUPS)
    with pytest.raises(ContractError, match=r"\['data', 'gpu'\].*\n.*INSTANCE_GROUP"):
        Topology.read(paths.resource_config)


def test_an_instance_group_that_does_not_exist_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("INSTANCE_GROUP", "gpus")
    paths = resources(tmp_path, current_host="algo-1", hosts=["algo-1", "algo-2", "algo-3"], instance_groups=GROUPS)
    with pytest.raises(ContractError, match="is 'gpus', but"):
        Topology.read(paths.resource_config)


def test_a_host_of_another_group_exits_with_0_and_writes_nothing(tmp_path):
    resources(tmp_path, current_host="algo-1", hosts=["algo-1", "algo-2", "algo-3"], instance_groups=GROUPS)
    done = subprocess.run(
        [sys.executable, "-m", "container", "train", "--root", str(tmp_path)],
        cwd=REPOSITORY, env={**os.environ, "INSTANCE_GROUP": "gpu"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "is not in the training group 'gpu'" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["input"]


class Together:
    """Controls of several hosts in this process, each with its news."""

    def __init__(self, monkeypatch, wait: float = 10) -> None:
        monkeypatch.setenv("CONTROL_PORT", str(free_port()))
        monkeypatch.setenv("HOST_WAIT_SECONDS", str(wait))
        self.news: dict[str, list[str]] = {host: [] for host in HOSTS}
        self.controls = {host: Control(Topology(HOSTS, host), self.news[host].append) for host in HOSTS}

    def each(self, act, hosts=HOSTS):
        """act(control) on every host at once; what each returned or raised."""
        results = {}

        def run(host):
            try:
                results[host] = act(self.controls[host])
            except BaseException as error:
                results[host] = error

        threads = [threading.Thread(target=run, args=(host,)) for host in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


@pytest.fixture
def together(monkeypatch):
    made = Together(monkeypatch)
    yield made
    made.each(lambda control: control.leave())


def test_hosts_that_connect_one_after_the_other_get_all_values_in_the_order_of_ranks(together):
    waits = dict(zip(HOSTS, (0.3, 0.0, 0.6)))

    def come(control):
        time.sleep(waits[control.topology.current])
        return control.connect({"host": control.topology.current})

    expected = {host: {"host": host} for host in HOSTS}
    results = together.each(come)
    assert results == dict.fromkeys(HOSTS, expected)
    assert list(results[HOSTS[1]]) == list(HOSTS)


def test_every_host_receives_and_is_notified_of_a_published_value(together):
    together.each(lambda control: control.connect({}))
    together.controls[HOSTS[2]].publish("stop", True)
    together.each(lambda control: control.gather("later", None))
    assert all(control.seen("stop") == {HOSTS[2]: True} for control in together.controls.values())
    assert "stop" in together.news[HOSTS[0]]
    assert "stop" in together.news[HOSTS[1]]


def test_a_host_that_fails_ends_the_wait_of_the_others_with_its_cause(together):
    together.each(lambda control: control.connect({}))
    failing = together.controls[HOSTS[1]]
    results = together.each(
        lambda control: control.fail(Failure("no such column")) if control is failing else control.gather("x", 1)
    )
    for host in (HOSTS[0], HOSTS[2]):
        assert isinstance(results[host], FailedElsewhere)
        assert results[host].failure.cause == "no such column"


def test_a_host_that_dies_is_lost_to_all_at_once_and_named(together):
    together.each(lambda control: control.connect({}))
    dying = together.controls[HOSTS[2]]
    started = time.monotonic()
    for connection in list(dying._connections.values()):
        connection.shutdown(socket.SHUT_RDWR)
    results = together.each(lambda control: control.gather("x", 1), hosts=HOSTS[:2])
    assert time.monotonic() - started < 5
    for result in results.values():
        assert result.failure.cause.startswith("host 127.0.0.10 was lost")


def test_a_host_that_falls_silent_is_lost(monkeypatch):
    monkeypatch.setattr(control_module, "SILENCE", 1.0)
    monkeypatch.setattr(control_module, "_BEAT", 0.2)
    made = Together(monkeypatch)
    made.each(lambda control: control.connect({}))
    monkeypatch.setattr(made.controls[HOSTS[1]], "_send", lambda *_, **__: None)  # a host that hangs
    results = made.each(lambda control: control.gather("x", 1), hosts=(HOSTS[0], HOSTS[2]))
    for result in results.values():
        assert result.failure.cause == "host 127.0.0.2 was lost: it sent nothing for 1 s"
    made.each(lambda control: control.leave())


def test_hosts_that_have_met_are_not_lost_while_they_wait_for_another_one_longer_than_the_silence(monkeypatch):
    monkeypatch.setattr(control_module, "SILENCE", 1.0)
    monkeypatch.setattr(control_module, "_BEAT", 0.2)
    made = Together(monkeypatch)

    def come(control):
        time.sleep(2.5 if control.topology.current == HOSTS[2] else 0.0)
        return control.connect({})

    expected = {host: {} for host in HOSTS}
    assert made.each(come) == dict.fromkeys(HOSTS, expected)
    made.each(lambda control: control.leave())


def test_a_host_that_never_comes_is_named_on_all_hosts(monkeypatch):
    made = Together(monkeypatch, wait=2)

    def come(control):
        try:
            return control.connect({})
        except ContractError as error:
            control.fail(Failure.from_exception(error))
            raise

    results = made.each(come, hosts=HOSTS[:2])
    why = "127.0.0.10: its name resolves to 127.0.0.10, but it never connected"
    cause = f"host 127.0.0.10 did not connect within 2 s ({why})"
    assert results[HOSTS[0]].cause == cause
    assert results[HOSTS[1]].failure.cause == cause
    made.each(lambda control: control.leave(), hosts=HOSTS[:2])


@pytest.mark.parametrize(
    ("leader", "why"), [("127.0.0.1", "Connection refused"), ("algo-1.invalid", "its name does not resolve")]
)
def test_a_first_host_that_never_comes_is_named_with_how_far_one_gets(monkeypatch, leader, why):
    monkeypatch.setenv("CONTROL_PORT", str(free_port()))
    monkeypatch.setenv("HOST_WAIT_SECONDS", "1")
    with pytest.raises(ContractError, match=f"host {leader}, the first host, could not be reached .*{why}"):
        Control(Topology((leader, "b"), "b"), print).connect({})


def test_a_connection_from_an_unknown_host_is_closed(together):
    meeting = threading.Thread(target=lambda: together.each(lambda control: control.connect({})))
    meeting.start()
    meeting.join(30)
    for line in (b'{"host": "evil", "key": "stop", "value": true}\n', b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection((HOSTS[0], int(os.environ["CONTROL_PORT"])), timeout=5) as stranger:
            stranger.sendall(line)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
    together.each(lambda control: control.gather("later", None))
    assert all(not control.seen("stop") for control in together.controls.values())


def test_hosts_leave_together(together):
    together.each(lambda control: control.connect({}))
    ended = {}

    def leave(control):
        time.sleep(0.5 if control.topology.leads else 0.0)
        control.leave()
        ended[control.topology.current] = time.monotonic()

    together.each(leave)
    assert max(ended.values()) - min(ended.values()) < 0.4
    assert all(control.trouble is None for control in together.controls.values())


def test_one_host_is_alone_and_opens_no_connection():
    control = Control(Topology(), print)
    assert control.connect({"a": 1}) == {"localhost": {"a": 1}}
    assert control.gather("x", 2) == {"localhost": 2}
    control.leave()


def test_the_interface_is_the_one_with_the_address_and_not_the_one_that_does_not_exist(caplog):
    caplog.set_level(logging.INFO)
    found = network_environment(Topology(("a", "b"), "a", interface="ethwe"), "127.0.0.1")
    assert found["GLOO_SOCKET_IFNAME"] == found["NCCL_SOCKET_IFNAME"] == "lo"
    assert "names ethwe, which does not exist" in caplog.text


def test_without_a_known_interface_nccl_keeps_off_docker_and_loopback():
    found = network_environment(Topology(("a", "b"), "a", interface="ethwe"), "192.0.2.7")
    assert found == {"NCCL_SOCKET_IFNAME": "^docker0,lo"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [("GLOO_SOCKET_IFNAME", "lo,eth77"), ("NCCL_SOCKET_IFNAME", "eth77"), ("NCCL_SOCKET_IFNAME", "=l,eth77")],
)
def test_a_variable_that_names_no_interface_is_an_error_with_those_that_exist(variable, value):
    with pytest.raises(ContractError, match=rf"^environment variable {variable}: names .*eth77, .* are .*\blo\b"):
        check_interfaces({variable: value}, num_gpus=1)


@pytest.mark.parametrize(
    ("value", "num_gpus"), [("lo", 1), ("=lo", 1), ("^docker0,lo", 1), ("eth77,l", 1), ("lo:1", 1), ("eth77", 0)]
)
def test_with_gpus_a_variable_of_nccl_may_have_beginnings_of_names_and_exclude_others(value, num_gpus):
    check_interfaces({"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": value}, num_gpus=num_gpus)


def test_a_machine_that_cannot_connect_to_itself_is_named_at_once(monkeypatch):
    refuse(socket, "create_connection", errno.ENETUNREACH, replace=monkeypatch.setattr)
    with pytest.raises(ContractError, match=r"^127\.0\.0\.1: this machine cannot connect to itself: .* unreachable"):
        check_interfaces({}, num_gpus=0)


def test_efa_is_set_up_where_its_devices_and_nccl_s_plugin_are_there(tmp_path, caplog):
    devices, plugin = tmp_path / "infiniband", tmp_path / "lib"
    devices.mkdir()
    plugin.mkdir()
    environment = {"LD_LIBRARY_PATH": str(plugin)}
    assert _efa_environment(devices, environment) == {}
    for name, driver in (("uverbs0", "mlx5_core"), ("uverbs1", "efa")):
        assert _efa_environment(devices, environment) == {}
        assert "aws-ofi-nccl" not in caplog.text, "InfiniBand has no such plugin"
        (tmp_path / driver).mkdir()
        (devices / name / "device").mkdir(parents=True)
        (devices / name / "device" / "driver").symlink_to(tmp_path / driver)
    assert _efa_environment(devices, environment) == {}
    assert "aws-ofi-nccl" in caplog.text
    (plugin / "libnccl-net.so").touch()
    assert _efa_environment(devices, environment) == {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"}
