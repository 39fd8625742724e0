"""How do we cordon a node, and ask for another? A protocol, and `local`, the orchestrator of plain hosts.

Calls may block, and are made in threads, one node's after the other. Each may come twice, because a supervisor was killed
before it knew of the first: twice is as good as once. `replace` has a key for that. No call ends what runs on a node: its job's
own agents do that in good order when the node is excluded. Where another node comes only once something is deleted (a pod),
`replace` deletes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.value import to_plain
from holdfast.runtime.private_files import make_folder, private
from holdfast.supervisor.fleet.messages import Need
from holdfast.telemetry.record import locks

NO_LABELS = "only Kubernetes has labels on which a cloud acts"

ASK_S = 8.0
"""How long a call to other software may take: less than the supervisor waits for it (`fleet.queues.TASK_S`)."""


class Orchestrator(Protocol):
    """Each call returns what was done, in words, or raises HoldfastError."""

    name: str
    evicts: bool
    """Whether what runs on a node is ended when it is drained: another is made then."""

    def drain(self, node: str, reason: str) -> str:
        """Give the node no more work, and show people why."""

    def uncordon(self, node: str, reason: str) -> str:
        """Give the node work again."""

    def replace(self, node: str, key: str, need: Need) -> str:
        """Ask for another node in its place: once for each key, however often it is called."""

    def vacant(self, node: str) -> str:
        """Show that the node is cordoned, and that nothing runs there but what runs on every node. HoldfastError: why not."""

    def label(self, node: str, key: str, label: str) -> str:
        """Give the node a label `KEY=VALUE` on which its cloud acts: once for each key, however often it is called."""


KNOWN = {
    "slurm": "holdfast.integrations.slurm.orchestrator",
    "kubernetes": "holdfast.integrations.kubernetes.orchestrator",
}
"""Modules whose class `Adapter` is one, and which need other software."""

ORCHESTRATORS = ("local", *KNOWN)


def orchestrator(name: str, folder: str, command: Sequence[str]) -> Orchestrator:
    """The one of that name. `folder`: where it may keep its state; `command`: what starts another node's agent (not
    `kubernetes`). UsageError."""
    if name == "local":
        return Local(folder, command)
    if name not in KNOWN:
        raise UsageError(f"--orchestrator: there is no {name!r}", hint=f"known: {', '.join(ORCHESTRATORS)}")
    if command and name != "slurm":
        raise UsageError("--replace-with is for --orchestrator local and slurm", hint=f"{name} finds other nodes by itself")
    try:
        made: Orchestrator = import_module(KNOWN[name]).Adapter(*((folder, command) if name == "slurm" else ()))
    except ModuleNotFoundError as error:
        hint = f"pip install 'holdfast[{name}]'"
        raise UsageError(f"--orchestrator {name}: {error.name} is not installed", hint=hint) from error
    return made


class Local:
    """Plain hosts: only we give them work, so what we were told is remembered here."""

    name, evicts = "local", False

    def __init__(self, folder: str, command: Sequence[str] = ()) -> None:
        """UsageError: it cannot be kept there."""
        self.folder, self.command = note_folder(folder), tuple(command)

    def drain(self, node: str, reason: str) -> str:
        self._note(node, reason)
        return f"{node} is noted as drained"

    def uncordon(self, node: str, reason: str) -> str:
        self._note(node, "")
        return f"{node} is noted as usable"

    def replace(self, node: str, key: str, need: Need) -> str:
        """The command runs on after us. The lock that it inherits shows that it was started, even if we were killed before we
        wrote that down. Another host's supervisor does not know: the command is told the key."""
        if not self.command:
            raise HoldfastError("no replacement is requested: start an agent on another node, or use --replace-with")
        return asked_by_command(self.folder, self.command, node, key, need)

    def vacant(self, node: str) -> str:
        """Only we give plain hosts work. Whether ranks run there its daemon looks."""
        if not self._drained().get(node):
            raise HoldfastError(f"{node} is not noted as drained")
        return f"{node} is noted as drained"

    def label(self, node: str, key: str, label: str) -> str:
        raise HoldfastError(NO_LABELS)

    def _drained(self) -> dict[str, str]:
        try:
            with open(os.path.join(self.folder, "nodes.json"), encoding="utf-8") as file:
                said = json.load(file)
        except (OSError, ValueError):
            return {}
        return {str(name): str(why) for name, why in said.items()} if isinstance(said, dict) else {}

    def _note(self, node: str, reason: str) -> None:
        path = os.path.join(self.folder, "nodes.json")
        with open(f"{path}.lock", "w", opener=private) as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)  # several nodes' calls run at a time
            said = json.dumps({**self._drained(), node: reason})
            with open(f"{path}.new", "w", encoding="utf-8", opener=private) as file:
                file.write(said)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.new", path)


def note_folder(folder: str) -> str:
    """Where it is noted which commands were started. UsageError: it cannot be kept there."""
    notes = os.path.join(folder, "local")
    try:
        make_folder(notes)
    except OSError as error:
        hint = "name a folder that this user may write to"
        raise UsageError(f"--state: {folder} cannot be used: {error.strerror}", hint=hint) from error
    return notes


def asked_by_command(folder: str, command: Sequence[str], node: str, key: str, need: Need) -> str:
    """Start the command that brings another node, once for each key. It reads the reason as JSON from its standard input."""
    fd = os.open(os.path.join(folder, f"replace-{_as_file(key)}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not locks.take(fd) or os.read(fd, 1):
            return f"another node for {node} has been asked for already"
        environ = {**os.environ, "HOLDFAST_REPLACES": node, "HOLDFAST_REPLACES_KEY": key}
        told = json.dumps({"node": node, "key": key, **to_plain(need)}).encode() + b"\n"
        try:
            with open(os.memfd_create("reason"), "w+b") as reason:
                reason.write(told)
                reason.seek(0)
                null = subprocess.DEVNULL
                subprocess.Popen(
                    command, env=environ, stdin=reason, stdout=null, stderr=null, start_new_session=True, pass_fds=(fd,)
                )
        except OSError as error:
            raise HoldfastError(f"--replace-with: {command[0]} cannot be started: {error.strerror}") from error
        os.write(fd, b"started\n")
    finally:
        os.close(fd)
    return f"another node for {node} was asked for: {' '.join(command)}"


def _as_file(key: str) -> str:
    return "".join(char if char.isalnum() or char in "-_" else f"%{ord(char):x}" for char in key)
