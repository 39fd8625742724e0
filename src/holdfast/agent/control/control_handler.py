"""Answers `holdfast status`, `stop`, `restart`, `exclude`, `check`, … on the agent's side, and health checks by HTTP."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Any

from holdfast.agent.component import Component
from holdfast.agent.control.health_query import MARGIN_S, Examination
from holdfast.agent.disk_thread import DiskThread
from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import StopAsked, ToCoordinator
from holdfast.agent.group.state import Phase
from holdfast.core.config.grammar import LONGEST_S
from holdfast.core.errors import UsageError
from holdfast.core.job.injection import injection
from holdfast.core.machine import NEVER, Observation, Signalled
from holdfast.core.signals import NUMBERS
from holdfast.core.wire import messages as wire
from holdfast.core.wire.demands import too_large
from holdfast.core.wire.messages import EVERY_NODE, Reply, RequestKind
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.election.messages import ForceAsked
from holdfast.runtime.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.control.control_socket import ControlSocket, Request
    from holdfast.agent.control.health_checks import Checking
    from holdfast.agent.faults.driver import Injections
    from holdfast.telemetry.health_http import HealthHttpServer


EMBEDDED = "embedded"  # The backend whose nodes choose their coordinator.

LONGEST_NAME, LONGEST_REASON = 255, 500
"""Characters that a node's name may have, and a reason: a coordinator takes no longer ones."""

MOST_NODES = 16_384  # Rows of an answer: some 2 MB, which take this agent some 50 ms, once and only when asked.

PULSE_S = 5.0  # How often the loop shows that it is alive, where TORCHELASTIC_HEALTH_CHECK_PORT is set.

MOST_ASKED = 16  # Requests whose answers are waited for: as many clients as there are seats (`control.SEATS`).


class ControlHandler(Component):
    """Answers about one group. Questions that ask for something become observations."""

    def __init__(
        self,
        group: Group,
        host: Host,
        name: str,
        *,
        socket_path: str,
        disk: DiskThread,
        rendezvous: Callable[[], Rendezvous | None],
        checking: Callable[[], Checking],
        injections: Callable[[], Injections],
        progress: Callable[[int], dict[str, object]],
    ) -> None:
        """`disk`: touches that path. `rendezvous`: the coordinator's machine. None: it is elsewhere. `checking`, `injections`:
        make what runs checks and plays faults, at the first use. `progress`: what is known of a local rank's."""
        self.group, self.host, self.name, self.socket_path, self.disk = group, host, name, socket_path, disk
        self.rendezvous, self.checking, self.injections, self.progress = rendezvous, checking, injections, progress
        self.control: ControlSocket | None = None
        self.health: HealthHttpServer | None = None
        self.asked: dict[int, Request] = {}  # Requests that wait for the coordinator's answer, by number.
        self.examinations: dict[int, Examination] = {}  # Those whose answers are not all there, by number.
        self.asks = 0
        self.due_at = NEVER  # When somebody has waited long enough, or the loop has to show that it is alive.

    def settle(self) -> list[Observation]:
        """Listen on the Unix socket; without it the job runs all the same."""
        # Here, since it loads socket: the control socket is opened when the first workers have started.
        from holdfast.agent.control.control_socket import ControlSocket

        path = self.socket_path

        def listens(control: ControlSocket | Exception) -> list[Observation]:
            if isinstance(control, ControlSocket):
                self.control = control
                self.host.watch(control.fileno(), select.EPOLLIN, lambda events: self._asked(control))
            else:
                why = getattr(control, "strerror", None) or control
                self.host.complain(f"`holdfast status` and `holdfast stop` cannot reach this agent: {path}: {why}")
            return []

        return self.disk.ask(lambda: ControlSocket(path), listens)

    def open_health(self, port: int, last_progress_at_unix: Callable[[], float]) -> None:
        """Serve the health check; a port that cannot be had is no reason not to train."""
        from holdfast.telemetry.health_http import HealthHttpServer  # threading, and few agents serve a health check

        server = HealthHttpServer(last_progress_at_unix, port)
        try:
            server.start()
        except OSError as error:
            self.host.complain(f"no health check on port {port} (TORCHELASTIC_HEALTH_CHECK_PORT): {error.strerror}")
            return
        self.health = server
        self._wait()

    def close(self) -> None:
        if self.control is not None:
            self.control.leave()
            self.disk.do(self.control.remove)
        if self.health is not None:
            self.health.stop()

    def _asked(self, control: ControlSocket) -> list[Observation]:
        return [seen for request in control.requests() for seen in self.answer(request)]

    def answer(self, request: Request) -> list[Observation]:
        """Answer, now or later; what is asked for becomes an observation."""
        try:
            return self._understood(request)
        except UsageError as error:
            request.refuse(str(error))
            return []

    def _understood(self, request: Request) -> list[Observation]:
        match request.ask:
            case "status":
                request.reply(self._status())
                return []
            case "nodes":
                request.reply(self._nodes())
                return []
            case "stop":
                stop = StopAsked(reason=_reason(request), grace_s=_grace_s(request))
                request.reply({})
                return [stop]
            case "signal":
                return self._signal(request)
            case "restart":
                return self._restart(request)
            case "exclude" | "readmit":
                return self._exclusion(request)
            case "force-leader":
                return self._force(request)
            case "check":
                return self._check(request)
            case "inject":
                return self._inject(request)
        known = "status, nodes, stop, restart, signal, exclude, readmit, force-leader, check and inject"
        raise UsageError(f"unknown request {request.ask!r}; known: {known}")

    def replied(self, reply: Reply) -> None:
        """The coordinator says what came of a request, or a node does."""
        if (examination := self.examinations.get(reply.ask)) is not None:
            examination.hear(reply)
            self.due()
            return
        request = self.asked.pop(reply.ask, None)
        if request is None:
            return
        if reply.ok:
            request.reply({"text": reply.text})
        else:
            request.refuse(reply.text)

    def carry_out(self, request: wire.Request) -> list[Observation]:
        """Do what another node has asked of this one."""
        ask, node = request.ask or 0, self.group.join.node
        match request.kind:
            case RequestKind.CHECK:
                return self.checking().run_for(node, ask, request.checks)
            case RequestKind.INJECT if request.injection is not None:
                return [self.injections().play(ask, request.injection)]
        text = f"{self.name} cannot {request.kind} at another node's request"
        return [ToCoordinator(message=Reply(node=node, ask=ask, ok=False, text=text))]

    def _restart(self, request: Request) -> list[Observation]:
        """Restart all ranks of the job: the coordinator decides, as when a rank asks for it. The supervisor's order is carried
        out though it should end the job; who asks here hears instead that it would."""
        if self.group.phase is not Phase.RUNNING:
            raise UsageError(f"no ranks run here: the node is {self.group.phase}")
        reason = _reason(request)[:LONGEST_REASON]
        if not request.arguments.get("ordered"):
            return [self._request(RequestKind.RESTART, ask=self._await(request), reason=reason)]
        request.reply({"text": f"the coordinator was asked to restart round {self.group.round}"})
        return [self._request(RequestKind.RESTART, reason=reason)]

    def _request(self, kind: RequestKind, **what: Any) -> ToCoordinator:
        """To the coordinator, which decides about it or passes it on. `what`: as in `wire.Request`."""
        return ToCoordinator(message=wire.Request(node=self.group.join.node, round=self.group.round, kind=kind, **what))

    def _exclusion(self, request: Request) -> list[Observation]:
        name, reason = request.text("node"), _reason(request)[:LONGEST_REASON]
        if not name or len(name) > LONGEST_NAME:
            raise UsageError("which node? give its name, as `holdfast status` shows it")
        return [self._request(RequestKind(request.ask), target=name, ask=self._await(request), reason=reason)]

    def _force(self, request: Request) -> list[Observation]:
        """Let the nodes that are here choose a coordinator without those that are gone for good."""
        if self.group.state.backend != EMBEDDED or self.rendezvous() is not None:
            raise UsageError("the job has a coordinator, or its nodes do not choose one")
        lost = request.arguments.get("lost")
        names = tuple(str(name)[:LONGEST_NAME] for name in lost) if isinstance(lost, list) else ()
        vouched = request.arguments.get("powered_off") is True
        return [ForceAsked(ask=self._await(request), lost=names, powered_off=vouched)]

    def _await(self, request: Request) -> int:
        """The number by which the coordinator's answer is known."""
        self.asks += 1
        self.asked[self.asks] = request
        for ask in [ask for ask in self.asked if ask <= self.asks - MOST_ASKED]:
            del self.asked[ask]  # its client has gone long ago
        return self.asks

    def _inject(self, request: Request) -> list[Observation]:
        """Play a fault, here or, through the coordinator, on another node."""
        name, wanted = request.text("node") or self.name, injection(request.arguments)
        if name != self.name:
            target = name[:LONGEST_NAME]
            return [self._request(RequestKind.INJECT, target=target, ask=self._await(request), injection=wanted)]
        ok, text = self.injections().ask(wanted)
        request.reply({"text": text}) if ok else request.refuse(text)
        return []

    def _check(self, request: Request) -> list[Observation]:
        """The health of all nodes, by the checks that are named."""
        asked = request.arguments.get("checks")
        checks = tuple(map(str, asked)) if isinstance(asked, list) else ()
        if why := too_large(wire.Request(kind=RequestKind.CHECK, checks=checks)):
            raise UsageError(why)
        longest_s = self.checking().longest_s(checks)
        self.asks += 1
        self.examinations[self.asks] = Examination(request, self.host.now() + longest_s + MARGIN_S)
        self._wait()
        return [self._request(RequestKind.CHECK, target=EVERY_NODE, ask=self.asks, checks=checks)]

    def due(self) -> list[Observation]:
        """Answer those who wait for what is known by now."""
        now = self.host.now()
        for ask in [ask for ask, one in self.examinations.items() if one.is_over(now)]:
            self.examinations.pop(ask).reply()
        self._wait()
        return []

    def _wait(self) -> None:
        pulse_at = NEVER if self.health is None else self.host.now() + PULSE_S
        self.due_at = min(pulse_at, *(one.until for one in self.examinations.values()), NEVER)

    def _nodes(self) -> dict[str, object]:
        if (rendezvous := self.rendezvous()) is None:
            where = self.group.state.endpoint
            raise UsageError(f"the coordinator is not here, but at {where}, or where this job's nodes chose")
        nodes = rendezvous.seats.table(MOST_NODES)
        return {"round": rendezvous.round, "nodes": nodes, "left_out": len(rendezvous.seats) - len(nodes)}

    def _signal(self, request: Request) -> list[Observation]:
        name = request.text("signal")
        if name not in NUMBERS:
            raise UsageError(f"there is no signal {name!r}")
        request.reply({})
        return [Signalled(signum=NUMBERS[name])]

    def _status(self) -> dict[str, object]:
        group, assigned = self.group, self.group.assigned
        return {
            "node": self.name,
            "pid": os.getpid(),
            "state": group.phase.value,
            "round": group.round,
            "attempt": assigned.restart_count if assigned else 0,
            "group_rank": assigned.group_rank if assigned else None,
            "world_size": assigned.world_size if assigned else None,
            "hosting": group.state.hosting,
            "spare_because": group.state.spare_because if group.phase is Phase.JOINING else "",
            "waits_for": group.state.waits_for if group.phase is Phase.JOINING else "",
            "workers": [
                {
                    "rank": seat.rank,
                    "local_rank": seat.local_rank,
                    "pid": seat.pid,
                    "state": seat.state,
                    "exitcode": seat.exitcode,
                    "progress": self.progress(seat.local_rank),
                }
                for seat in group.workers.values()
            ],
        }


def _grace_s(request: Request) -> float | None:
    """Seconds from SIGTERM to SIGKILL. None: as the job was launched. UsageError: it is no such time."""
    said = request.arguments.get("grace_s")
    if said is None:
        return None
    if not isinstance(said, (int, float)) or not 0 <= said <= LONGEST_S:
        raise UsageError(f"grace_s is {str(said)[:40]}, which is not a number of seconds from 0 to {LONGEST_S:g}")
    return float(said)


def _reason(request: Request) -> str:
    return request.text("reason") or f"an operator asked for it (holdfast {request.ask})"
