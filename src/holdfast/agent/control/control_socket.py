"""How does a program on this host ask the agent something? By a Unix socket in the job's directory; `ask` is its other end.

One JSON line in, one JSON line out, then the line is closed:

    {"ask": "status"}                                        {"ok": true, "state": …}   nodes: those that the coordinator knows
    {"ask": "restart", "reason": "…"}                        {"ok": true, "text": …}
    {"ask": "stop", "grace_s": 30, "reason": "…"}            {"ok": true}
    {"ask": "signal", "signal": "SIGUSR1"}                   {"ok": true}
    {"ask": "exclude", "node": "…", "reason": "…"}           {"ok": true, "text": …}    readmit: likewise
    {"ask": "inject", "node": "…", "fault": "kill", …}       {"ok": true, "text": …}    as `core.job.injection`
    {"ask": "check", "checks": ["gpu", …]}                   {"ok": true, "nodes": {…}}
    anything that cannot be served                           {"ok": false, "error": "…"}

`ControlSocket` has one descriptor for the agent's loop, an epoll that holds the listener and the clients. It never
blocks, and has no clock: a silent client keeps one of a few seats until a new one needs it. Only the user who runs
the job, and root, are listened to.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.agent.control.control_client import Reachable
from holdfast.core.errors import UsageError
from holdfast.core.value import to_plain

MAX_REQUEST = 65_536  # Bytes of a request. The longest sensible one is a few hundred.

SEATS = 16  # Clients at a time. The one who has waited longest makes room for the next.


class Request:
    """One question. `ask` says what; `arguments` are the other fields; `answer` takes what is replied, once, now or later."""

    def __init__(self, ask: str, arguments: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        self.ask, self.arguments, self._answer = ask, arguments, answer

    def text(self, name: str) -> str:
        """That argument. Empty: it is not given. UsageError: it is no text."""
        return text_of(self.arguments, name)

    def reply(self, answer: Mapping[str, Any]) -> None:
        """Answer. `ok` is true unless given."""
        self._answer({"ok": True, **answer})

    def refuse(self, error: str) -> None:
        """Answer that it cannot be done, and why."""
        self._answer({"ok": False, "error": error})


def text_of(arguments: Mapping[str, Any], name: str) -> str:
    """What was sent under that name. Empty: nothing. UsageError: it is no text."""
    said = arguments.get(name)
    if said is not None and not isinstance(said, str):
        raise UsageError(f"{name} is {json.dumps(said)[:40]}, which is no text")
    return said or ""


class ControlSocket:
    """The agent's side. OSError: no socket can live at `path`. What an earlier agent has left there is replaced: the caller
    holds this node's claim (`state_dir.open_job`)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._listener = _listen(path)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._clients: dict[int, _Client] = {}  # by descriptor, longest seated first
        self._owner = os.getpid()

    def fileno(self) -> int:
        """Readable when `requests` has something to do."""
        return self._epoll.fileno()

    def requests(self) -> list[Request]:
        """What has been asked in full since the last call. Never blocks, never raises for what a client did."""
        asked = []
        for fd, _ in self._epoll.poll(0):
            if fd == self._listener.fileno():
                self._accept()
            elif (client := self._clients.get(fd)) and (request := client.go_on()):
                asked.append(request)
        return asked

    def close(self) -> None:
        """Stop listening; what is still to be sent to a client is lost. In a forked child the file is left alone."""
        self.leave()
        self.remove()

    def leave(self) -> None:
        """The same, but for the file."""
        for client in list(self._clients.values()):
            client.leave()
        self._epoll.close()
        self._listener.close()

    def remove(self) -> None:
        """Remove the file, which may take its disk long."""
        if os.getpid() == self._owner:
            _unlink(self.path)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody left, or no descriptor left: what waits in the backlog waits on
                return
            if not _may_ask(connection):
                connection.close()
                continue
            if len(self._clients) >= SEATS:
                next(iter(self._clients.values())).leave()
            connection.setblocking(False)
            self._clients[connection.fileno()] = _Client(connection, self._epoll, self._clients)


class _Client:
    """One connection: reads a line, then writes a line. It leaves by itself when either is done or impossible."""

    __slots__ = ("_clients", "_connection", "_epoll", "_fd", "_is_asked", "_read", "_unsent")

    def __init__(self, connection: socket.socket, epoll: select.epoll, clients: dict[int, _Client]) -> None:
        self._connection = connection
        self._epoll = epoll
        self._clients = clients
        self._fd = connection.fileno()
        self._read = bytearray()
        self._unsent = b""
        self._is_asked = False
        epoll.register(self._fd, select.EPOLLIN)

    def go_on(self) -> Request | None:
        """Read or write what can be; the request, if this completed it."""
        if self._unsent:
            self._send()
            return None
        if self._is_asked:  # we listen for nothing more, so this is the hang-up
            self.leave()
            return None
        try:
            piece = self._connection.recv(MAX_REQUEST)
        except BlockingIOError:
            return None
        except OSError:
            piece = b""
        if not piece:
            self.leave()
            return None
        self._read += piece
        line, newline, _ = self._read.partition(b"\n")
        if newline:
            return self._parse(bytes(line))
        if len(self._read) > MAX_REQUEST:
            self.answer({"ok": False, "error": f"a request has at most {MAX_REQUEST} bytes"})
        return None

    def _parse(self, line: bytes) -> Request | None:
        self._is_asked = True
        # A client that has shut its writing half down (`socat`) is readable for ever, and may still want the answer.
        self._epoll.modify(self._fd, 0)
        try:
            fields = json.loads(line)
            return Request(str(fields.pop("ask")), fields, self.answer)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            self.answer({"ok": False, "error": 'a request is one line of JSON with an "ask" in it'})
            return None

    def answer(self, answer: Mapping[str, Any]) -> None:
        if self._fd < 0 or self._unsent:  # it has gone, or was answered
            return
        self._is_asked = True
        self._unsent = json.dumps(to_plain(answer), default=str).encode() + b"\n"
        self._send()

    def _send(self) -> None:
        try:
            sent = self._connection.send(self._unsent, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.leave()
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._epoll.modify(self._fd, select.EPOLLOUT)
        else:
            self.leave()

    def leave(self) -> None:
        if self._fd < 0:
            return
        self._epoll.unregister(self._fd)
        del self._clients[self._fd]
        self._connection.close()
        self._fd = -1


def _may_ask(connection: socket.socket) -> bool:
    """Whether the peer is this user or root. The directory's mode says so too, but not on every file system."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid())


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    unready = f"{path}.new"  # who finds a socket at its place finds somebody who listens
    _unlink(unready)
    try:
        with Reachable(unready) as address:
            listener.bind(address)
        os.chmod(unready, 0o600)
        listener.listen(128)
        os.rename(unready, path)
    except OSError:
        listener.close()
        raise
    return listener


def _unlink(path: str) -> None:
    try:  # noqa: SIM105 (contextlib costs a millisecond on the way to the first worker)
        os.unlink(path)
    except OSError:
        pass
