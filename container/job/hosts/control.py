"""Connect the hosts of a job: a host publishes values, and every host receives them.

The first host listens, the others connect, and the first forwards each message to all. Hosts use the connections to
wait for each other, to agree on a decision, and to learn that one of them failed, stopped or was lost. Messages are
lines of JSON over TCP: no host executes data from another one. A host that sends nothing for SILENCE seconds is lost.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import Field

from container.job.failure import FailedElsewhere, Failure, now
from container.job.hosts.topology import Topology
from contracts.errors import ContractError
from contracts.ports import LOOPBACK
from contracts.step_contract import StepSettings

logger = logging.getLogger(__name__)

SILENCE = 30.0  # seconds; a host sends a heartbeat every _BEAT
_BEAT = 3.0
_RETRY = 0.5
_LEAVING = 15.0  # seconds that a finished host waits for the others to finish
HELLO, FAILED, STOP, LEFT = "hello", "failed", "stop", "left"


class ControlSettings(StepSettings):
    """Environment variables of the connections between hosts."""

    control_port: int = Field(29400, ge=1, le=65_535, description="The port on which the first host listens.")
    host_wait_seconds: float = Field(90, gt=0, le=86_400, description="How long hosts wait for each other.")


class Control:
    """This host's connections with the others. In a job on one host, it only stores that host's values.

    Args:
        on_news: called in a separate thread with the key of each value that another host publishes.
    """

    def __init__(self, topology: Topology, on_news: Callable[[str], None]) -> None:
        self.topology = topology
        self._on_news = on_news
        settings = ControlSettings.from_environment(os.environ)
        self._port, self._wait = settings.control_port, settings.host_wait_seconds
        self._values: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition(threading.RLock())
        self._connections: dict[str, socket.socket] = {}
        self._sending = threading.Lock()
        self._server: socket.socket | None = None
        self._closed = False

    def connect(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """Connect all hosts; return the description of each host.

        Raises:
            ContractError: a host did not connect in time; the message names it and the last step that worked.
            FailedElsewhere: another host has already failed.
        """
        if self.topology.size > 1:
            deadline = time.monotonic() + self._wait
            # First: the hosts that have met may wait for another one for longer than SILENCE.
            threading.Thread(target=self._beat, name="beat", daemon=True).start()
            if self.topology.leads:
                self._listen()
                self._await_members(deadline)
            else:
                self._join(deadline)
        return self.gather(HELLO, dict(description))

    def publish(self, key: str, value: Any) -> None:
        """Publish `value` to every host as this host's `key`, without waiting."""
        message = {"host": self.topology.current, "key": key, "value": value}
        self._note(message)
        self._send(message)

    def seen(self, key: str) -> dict[str, Any]:
        """Return the published values of `key`, by host."""
        with self._changed:
            return dict(self._values.get(key, {}))

    def gather(self, key: str, value: Any) -> dict[str, Any]:
        """Publish, wait until every host has published, and return all values by host, in the order of ranks.

        Raises:
            FailedElsewhere: a host failed or was lost before it published.
        """
        self.publish(key, value)
        with self._changed:
            while len(self._values[key]) < self.topology.size:
                self.raise_trouble()
                self._changed.wait(0.2)  # short waits: Python handles signals between them
            return {host: self._values[key][host] for host in self.topology.hosts}

    @property
    def trouble(self) -> Failure | None:
        """Return the first failure of another host, reported by it or by a host that lost it."""
        failures = (failure for host, failure in self.seen(FAILED).items() if host != self.topology.current)
        return next((Failure(**failure) for failure in failures), None)

    def raise_trouble(self) -> None:
        """Raise FailedElsewhere if another host failed or was lost."""
        failure = self.trouble
        if failure is not None:
            raise FailedElsewhere(failure)

    def fail(self, failure: Failure) -> None:
        """Publish the cause of this host's failure."""
        self.publish(FAILED, asdict(failure))

    def leave(self) -> None:
        """Publish that this host has finished, wait briefly for the others to finish, and close the connections."""
        if self._connections:
            self.publish(LEFT, True)
            deadline = time.monotonic() + _LEAVING
            with self._changed:
                while self._connections and time.monotonic() < deadline:
                    others = self._connections if self.topology.leads else self.topology.hosts
                    if all(host in self._values[LEFT] for host in others):
                        break
                    self._changed.wait(0.1)
        with self._changed:
            self._closed = True
            sockets = [*self._connections.values(), *([self._server] if self._server else [])]
        for open_socket in sockets:
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()

    def address(self) -> str:
        """Return this host's address on the network between the hosts."""
        if self.topology.size == 1:
            return LOOPBACK
        with self._changed:
            return next(iter(self._connections.values())).getsockname()[0]

    def _note(self, message: Mapping[str, Any]) -> None:
        with self._changed:
            self._values.setdefault(message["key"], {})[message["host"]] = message["value"]
            self._changed.notify_all()

    def _send(self, message: Mapping[str, Any], *, but: str | None = None) -> None:
        with self._changed:
            connections = [connection for host, connection in self._connections.items() if host != but]
        for connection in connections:
            with self._sending, contextlib.suppress(OSError):  # the reading thread handles a closed connection
                connection.sendall(json_line(message))

    def _beat(self) -> None:
        while not self._closed:
            self._send({"host": self.topology.current, "key": "", "value": None})
            time.sleep(_BEAT)

    def _listen(self) -> None:
        server = socket.create_server(("", self._port), backlog=64)
        self._server = server

        def accept() -> None:
            with contextlib.suppress(OSError):  # the socket is closed when this host leaves
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=self._welcome, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, name="accept", daemon=True).start()

    def _welcome(self, connection: socket.socket) -> None:
        """Read the name of a host that connects, then its messages; close the connection of an unknown host."""
        connection.settimeout(SILENCE)
        with connection, connection.makefile("rb") as lines:
            try:
                host = json.loads(lines.readline())["host"]
            except (OSError, ValueError, KeyError, TypeError):
                return
            with self._changed:
                if host not in self.topology.hosts or host in self._connections or host == self.topology.current:
                    return
                with self._sending:
                    for key, values in self._values.items():
                        for sender, value in values.items():
                            connection.sendall(json_line({"host": sender, "key": key, "value": value}))
                self._connections[host] = connection
                self._changed.notify_all()
            self._read(lines, host)

    def _follow(self, connection: socket.socket, leader: str) -> None:
        with connection, connection.makefile("rb") as lines:
            self._read(lines, leader)

    def _read(self, lines: Any, peer: str) -> None:
        """Store the messages of `peer` until it leaves; a peer that disconnects without the message LEFT is lost."""
        why = "its connection was closed"
        try:
            for line in lines:
                message = json.loads(line)
                if not message["key"]:
                    continue
                self._note(message)
                if self.topology.leads:
                    self._send(message, but=peer)
                self._on_news(message["key"])
        except TimeoutError:
            why = f"it sent nothing for {SILENCE:.0f} s"
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"its connection broke: {error}"
        with self._changed:
            self._connections.pop(peer, None)
            explained = self._closed or peer in self._values.get(LEFT, {}) or bool(self.seen(FAILED))
            self._changed.notify_all()
        if explained:
            return
        fix = "Read that host's log: its process was killed, or it lost the network connection to this host."
        lost = Failure(f"host {peer} was lost: {why}", fix, killed=True, at=now())
        message = {"host": peer, "key": FAILED, "value": asdict(lost)}
        self._note(message)
        if self.topology.leads:
            self._send(message)
        self._on_news(FAILED)

    def _await_members(self, deadline: float) -> None:
        with self._changed:
            while missing := [host for host in self.topology.hosts[1:] if host not in self._connections]:
                self.raise_trouble()
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    reasons = "; ".join(f"{host}: {_resolved(host)}, but it never connected" for host in missing)
                    raise ContractError(
                        f"host {', '.join(missing)} did not connect within {self._wait:.0f} s ({reasons})",
                        f"Read that host's log. Hosts must reach {self.topology.current} on port {self._port}: the "
                        "security group of the job must allow traffic within itself.",
                    )
                self._changed.wait(min(remaining, 0.2))

    def _join(self, deadline: float) -> None:
        leader, why = self.topology.leader, ""
        while time.monotonic() < deadline:
            try:
                connection = socket.create_connection((leader, self._port), timeout=5)
                break
            except OSError as error:
                why = f"{_resolved(leader)}: {error}"
                time.sleep(_RETRY)
        else:
            raise ContractError(
                f"host {leader}, the first host, could not be reached on port {self._port} within {self._wait:.0f} s "
                f"({why})",
                "Read that host's log. The security group of the job must allow traffic within itself.",
            )
        connection.settimeout(SILENCE)
        with self._changed:
            self._connections[leader] = connection
        self._send({"host": self.topology.current, "key": "", "value": None})
        threading.Thread(target=self._follow, args=(connection, leader), daemon=True).start()


def json_line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _resolved(host: str) -> str:
    try:
        return f"its name resolves to {socket.gethostbyname(host)}"
    except OSError:
        return "its name does not resolve"
