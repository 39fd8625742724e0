"""Stands where Google's sensor, controller and actuator have been: the loop between Google's daemons and our supervisor.

gRPC's threads only queue what they hear, and answer at once: a daemon of Google's waits for its sensor without a limit.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from holdfast.core.config.grammar import endpoint, shown_endpoint
from holdfast.core.errors import UsageError
from holdfast.core.machine import Action, Observation, Say, Signalled, Tick
from holdfast.core.wire.fleet import FLEET, FleetMessage
from holdfast.core.wire.google_sensor import (
    ACTUATOR,
    CONTROLLER,
    HEARTBEAT,
    REGISTER,
    REPORT,
    SENSOR,
    EventReports,
    HostInfo,
)
from holdfast.core.wire.google_wire import OWN_SERVICE, SERVICE, Method
from holdfast.core.wire.links import Connect, HangUp, Transmit
from holdfast.core.wire.protobuf import Message
from holdfast.runtime.host import Host
from holdfast.runtime.net.admission import soft_limit
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.network import Network
from holdfast.runtime.process.open_files import make_room
from holdfast.supervisor.daemon.google_hosts import MOST_HOSTS, CallDaemon, DaemonCalled, ForgetHost, GoogleHosts, HostTold
from holdfast.supervisor.daemon.google_service import Services, installed_grpc, serve
from holdfast.supervisor.daemon.host_uplink import Supervisor

CALL_S = 2.0
"""Longest wait for a daemon's answer."""

MOST_HEARD = 65_536
"""Calls of daemons that wait to be read, at most: 16 of each host that there may be. Usually they are read at once."""

SERVICES: Services = {
    SENSOR: {REGISTER: HostInfo, HEARTBEAT: HostInfo, REPORT: EventReports},
    CONTROLLER: {REGISTER: HostInfo},
    ACTUATOR: {REGISTER: HostInfo},
}

HOST_FILES = 4
"""Descriptors for each host, of half of all (the other half is for those who call us): links for itself and for its ranks, and
the way to its daemon."""

LARGEST = 1 << 18
"""Bytes of a message: 1,024 ranks have 150,000."""

THERE = f"/{OWN_SERVICE}/{Method.GOODBYE}"
"""Google's daemon answers that it has no such method, and is there."""


class GoogleSensor:
    """The process. HoldfastError: the port is taken, or grpcio is not there."""

    def __init__(self, at: tuple[str, int], supervisor: Supervisor, say: Callable[[str], None], every_s: float) -> None:
        self.say, self.host, self.grpc = say, Host(say), installed_grpc()
        identity = Identity(FLEET, supervisor.secret)
        self.network = Network(self.host, identity, ("", 0), shelter=supervisor.shelter, family=FleetMessage)
        life = f"google-{os.getpid()}-{os.urandom(4).hex()}"
        make_room(self.host, 2 * HOST_FILES * MOST_HOSTS)
        most = min(MOST_HOSTS, soft_limit() // 2 // HOST_FILES)
        self.hosts = GoogleHosts(life, supervisor.endpoints, 0.5 + os.urandom(1)[0] / 512, every_s, most)
        self.heard: deque[Observation] = deque()
        """From gRPC's threads."""
        self.passed_over = 0
        """Calls of daemons that have come since the last look and found no room there."""
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._said = ""
        """Last. Thousands of hosts lose one supervisor in the same words."""
        self._channels: dict[str, tuple[str, Any]] = {}
        """By host: its daemon's address, and gRPC's way there."""
        self.server, port = serve(*at, self._hear, lambda user: True, SERVICES, LARGEST)
        self.listens = shown_endpoint(at[0], port)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self.host.catch((signal.SIGTERM, signal.SIGINT))
        self.host.watch(self._news, select.EPOLLIN, self._take)
        while True:
            for seen in self.host.wait(min(self.hosts.deadline(), self.network.deadline())):
                if isinstance(seen, Signalled):
                    return
                self._show(seen)
            for seen in [*self.network.expire(self.host.now()), Tick()]:
                self._show(seen)

    def close(self) -> None:
        self.server.stop(None).wait()
        self._perform(self.hosts.close(self.host.now()))
        self.network.close()
        self.host.close()
        for _, channel in self._channels.values():
            channel.close()

    def _hear(self, peer: str, method: str, message: Message) -> None:
        at, at_unix = self.host.now(), self.host.unix()
        if isinstance(message, HostInfo):
            self._queue(HostTold(said=message, at=at, at_unix=at_unix))
        elif isinstance(message, EventReports):
            for one in message.reports:
                self._queue(HostTold(said=one.host, event=one, at=at, at_unix=at_unix))

    def _queue(self, seen: Observation) -> None:
        if isinstance(seen, HostTold) and len(self.heard) >= MOST_HEARD:
            self.passed_over += 1
            return
        self.heard.append(seen)
        os.eventfd_write(self._news, 1)

    def _take(self, events: int) -> list[Observation]:
        os.eventfd_read(self._news)
        if self.passed_over:
            text = f"{self.passed_over} calls of daemons were passed over: {MOST_HEARD} wait to be read already"
            self.say(f"{text}; is this host too busy, or does somebody else call?")
            self.passed_over = 0
        return [self.heard.popleft() for _ in range(len(self.heard))]

    def _show(self, seen: Observation) -> None:
        self._perform(self.hosts.observe(seen, self.host.now()))

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Connect() | Transmit() | HangUp():
                    for seen in self.network.perform(action):
                        self._show(seen)
                case CallDaemon():
                    self._call(action)
                case ForgetHost(name=name) if name in self._channels:
                    self._channels.pop(name)[1].close()
                case Say(text=text) if text != self._said:
                    self._said = text
                    self.say(text)

    def _call(self, call: CallDaemon) -> None:
        channel = self._channel(call.name, call.address)
        if channel is None:
            self._queue(DaemonCalled(name=call.name, is_there=False))
            return
        method = f"/{SERVICE}/{call.method}" if call.method else THERE
        under_way = channel.unary_unary(method).future(b"", timeout=CALL_S)
        under_way.add_done_callback(partial(self._called, call))

    def _channel(self, name: str, address: str) -> Any:
        """The way to a host's daemon. None: it has given no address of a host. A host has one way at a time."""
        if name in self._channels and self._channels[name][0] != address:
            self._channels.pop(name)[1].close()
        if name not in self._channels:
            try:
                at = shown_endpoint(*endpoint(address, name, default_port=None))
            except UsageError:
                return None
            options = [(f"grpc.{which}_reconnect_backoff_ms", 1000) for which in ("initial", "min", "max")]
            # Anybody may have said it: for gRPC it is a host's name and a port, and no socket of this host.
            self._channels[name] = address, self.grpc.insecure_channel(f"dns:///{at}", options)
        return self._channels[name][1]

    def _called(self, call: CallDaemon, done: Any) -> None:
        """In a thread of gRPC's."""
        code = done.code()
        is_there = code in (self.grpc.StatusCode.OK, self.grpc.StatusCode.UNIMPLEMENTED)
        has_ended = code == self.grpc.StatusCode.UNAVAILABLE and "Connection refused" in (done.details() or "")
        self._queue(DaemonCalled(name=call.name, is_there=is_there, has_ended=has_ended))
