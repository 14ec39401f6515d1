"""How the hosts of a job keep in touch, from first to last: values that one publishes and every host sees.

The first host listens, the others connect, and the first passes on what one says to all. That is enough for everything:
to wait for each other, to agree on a decision, to hear that one of them failed, stopped or is gone. Lines of JSON over
TCP: no host runs what another one sends. A host that is not heard of for SILENCE seconds is lost.
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

from container.failure import Failure
from container.hosts.topology import Topology
from contracts.errors import ContractError

logger = logging.getLogger(__name__)

PORT_VARIABLE, DEFAULT_PORT = "CONTROL_PORT", 29400
WAIT_VARIABLE, DEFAULT_WAIT = "HOST_WAIT_SECONDS", 90
SILENCE = 30.0  # seconds; a host says something every _BEAT
_BEAT = 3.0
_RETRY = 0.5
_LEAVING = 15.0  # seconds that a host which is done waits for the others to be
HELLO, FAILED, STOP, LEFT = "hello", "failed", "stop", "left"


class HostTrouble(BaseException):
    """Another host failed or is gone; `failure` is the cause. It interrupts anything: no handler shall swallow it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


class Control:
    """This host's connection with the others; of a job on one host, nothing but a place for its own values.

    Args:
        on_news: called in a thread of the control's own with the key of each value of another host.
    """

    def __init__(self, topology: Topology, on_news: Callable[[str], None]) -> None:
        self.topology = topology
        self._on_news = on_news
        self._port = int(os.environ.get(PORT_VARIABLE, DEFAULT_PORT))
        self._wait = float(os.environ.get(WAIT_VARIABLE, DEFAULT_WAIT))
        self._values: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition(threading.RLock())
        self._connections: dict[str, socket.socket] = {}
        self._sending = threading.Lock()
        self._server: socket.socket | None = None
        self._closed = False

    def connect(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Come together: returns what every host says `about` itself.

        Raises:
            ContractError: a host did not come in time; says which, and how far one gets with it.
            HostTrouble: another host has failed already.
        """
        if self.topology.size > 1:
            deadline = time.monotonic() + self._wait
            if self.topology.leads:
                self._listen()
                self._await_members(deadline)
            else:
                self._join(deadline)
            threading.Thread(target=self._beat, name="beat", daemon=True).start()
        return self.gather(HELLO, dict(about))

    def publish(self, key: str, value: Any) -> None:
        """Have every host see `value` as this host's `key`. Does not wait."""
        message = {"host": self.topology.current, "key": key, "value": value}
        self._note(message)
        self._send(message)

    def seen(self, key: str) -> dict[str, Any]:
        """What the hosts that published `key` said, by host."""
        with self._changed:
            return dict(self._values.get(key, {}))

    def gather(self, key: str, value: Any) -> dict[str, Any]:
        """Publish, and wait for every host to; returns all values by host, in the order of ranks.

        Raises:
            HostTrouble: a host failed or is gone before it published.
        """
        self.publish(key, value)
        with self._changed:
            while len(self._values[key]) < self.topology.size:
                self.raise_trouble()
                self._changed.wait(0.2)  # briefly: signals are handled between two waits
            return {host: self._values[key][host] for host in self.topology.hosts}

    @property
    def trouble(self) -> Failure | None:
        """The first failure that another host told of or that its silence is."""
        for host, failure in self.seen(FAILED).items():
            if host != self.topology.current:
                return Failure(**failure)
        return None

    def raise_trouble(self) -> None:
        """Raise HostTrouble where there is trouble."""
        failure = self.trouble
        if failure is not None:
            raise HostTrouble(failure)

    def fail(self, failure: Failure) -> None:
        """Tell the other hosts why this one ends."""
        self.publish(FAILED, asdict(failure))

    def leave(self) -> None:
        """Say that this host is done, wait a little for the others to be, and close the connections."""
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
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def address(self) -> str:
        """This host's address on the network that joins the hosts."""
        if self.topology.size == 1:
            return "127.0.0.1"
        with self._changed:
            return next(iter(self._connections.values())).getsockname()[0]

    def _note(self, message: Mapping[str, Any]) -> None:
        with self._changed:
            self._values.setdefault(message["key"], {})[message["host"]] = message["value"]
            self._changed.notify_all()

    def _send(self, message: Mapping[str, Any], *, but: str | None = None) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._changed:
            connections = [(host, one) for host, one in self._connections.items() if host != but]
        for _, connection in connections:
            with self._sending, contextlib.suppress(OSError):  # the thread that reads it hears that it is closed
                connection.sendall(line)

    def _beat(self) -> None:
        while not self._closed:
            self._send({"host": self.topology.current, "key": "", "value": None})
            time.sleep(_BEAT)

    def _listen(self) -> None:
        server = socket.create_server(("", self._port), backlog=64)
        self._server = server

        def accept() -> None:
            with contextlib.suppress(OSError):  # it is closed when this host leaves
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=self._welcome, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, name="accept", daemon=True).start()

    def _welcome(self, connection: socket.socket) -> None:
        """Read the name of a host that connects, and then what it says; strangers are sent away."""
        connection.settimeout(SILENCE)
        lines = connection.makefile("rb")
        try:
            host = json.loads(lines.readline())["host"]
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return
        with self._changed:
            if host not in self.topology.hosts or host in self._connections or host == self.topology.current:
                connection.close()
                return
            known = [
                {"host": one, "key": key, "value": value}
                for key, values in self._values.items()
                for one, value in values.items()
            ]
            with self._sending:
                connection.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in known))
            self._connections[host] = connection
            self._changed.notify_all()
        self._read(lines, host)

    def _read(self, lines: Any, peer: str) -> None:
        """Note what `peer` says until it leaves; without a word of leaving it is lost."""
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
            why = f"it said nothing for {SILENCE:.0f} s"
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"its connection broke: {error}"
        with self._changed:
            self._connections.pop(peer, None)
            gone_well = self._closed or peer in self._values.get(LEFT, {}) or bool(self.seen(FAILED))
            self._changed.notify_all()
        if gone_well:
            return
        lost = Failure(
            f"host {peer} was lost: {why}", "Read that host's log: it was ended from outside, or cannot be reached.",
            killed=True, at=time.time(),
        )  # fmt: skip
        message = {"host": peer, "key": FAILED, "value": asdict(lost)}
        self._note(message)
        if self.topology.leads:
            self._send(message)
        self._on_news(FAILED)

    def _await_members(self, deadline: float) -> None:
        with self._changed:
            while missing := [host for host in self.topology.hosts[1:] if host not in self._connections]:
                self.raise_trouble()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._never_came(missing)
                self._changed.wait(min(left, 0.2))

    def _never_came(self, missing: list[str]) -> ContractError:
        said = "; ".join(f"{host}: {_resolved(host)}, but it never called" for host in missing)
        return ContractError(
            f"host {', '.join(missing)} did not come within {self._wait:.0f} s ({said})",
            f"Look at that host's log. Hosts must reach {self.topology.current} on port {self._port}: the security "
            f"group of the job must allow traffic within itself.",
        )

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
                f"host {leader}, which leads, could not be reached on port {self._port} within {self._wait:.0f} s "
                f"({why})",
                "Look at that host's log; the security group of the job must allow traffic within itself.",
            )
        connection.settimeout(SILENCE)
        with self._changed:
            self._connections[leader] = connection
        self._send({"host": self.topology.current, "key": "", "value": None})
        threading.Thread(target=self._read, args=(connection.makefile("rb"), leader), daemon=True).start()


def _resolved(host: str) -> str:
    try:
        return f"its name resolves to {socket.gethostbyname(host)}"
    except OSError:
        return "its name does not resolve"
