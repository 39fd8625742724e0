"""The supervisor's process: the loop between the fleet's machine, this host, the store, and operators.

What the machine wants stored is on disk before its next action is performed. If it cannot be stored, this life ends: the next
one would not know what was done. It also ends before any action if another supervisor may lead by now (`LeadLost`). No job
depends on it.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterable, Sequence

from holdfast.agent.control.control_socket import ControlSocket, Request
from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.job.injection import injection
from holdfast.core.machine import NEVER, Action, Observation, Say, Signalled, Tick
from holdfast.core.wire.fleet import FLEET, FleetMessage
from holdfast.core.wire.links import Connect, HangUp, Transmit
from holdfast.runtime.host import Host
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.network import Network
from holdfast.runtime.secrets import Shelter
from holdfast.supervisor.child import Child
from holdfast.supervisor.connections import Connections, TurnedAway
from holdfast.supervisor.feed import SOCKET
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Asked, Call, Keep, Reply, Wish
from holdfast.supervisor.fleet.node import HISTORY
from holdfast.supervisor.fleet.policies.case import Policy
from holdfast.supervisor.fleet.state import Gives, RepairRules
from holdfast.supervisor.orchestrator import Orchestrator
from holdfast.supervisor.orchestrator_calls import Calls
from holdfast.supervisor.snapshot import DEEDS
from holdfast.supervisor.store import LeadLost, Store
from holdfast.supervisor.waiting_requests import Held
from holdfast.supervisor.web import view
from holdfast.supervisor.web.serve import bind
from holdfast.telemetry.report.safe_text import plain


class Service:
    def __init__(
        self,
        *,
        endpoint: tuple[str, int],
        token: bytes,
        folder: str,
        store: Store,
        policy: Policy,
        orchestrator: Orchestrator,
        lease_s: float,
        say: Callable[[str], None],
        signals: int,
        shelter: Shelter | None = None,
        named: bool = False,
        web: Sequence[str] = (),
        http: tuple[str, int] | None = None,
        notify: Sequence[str] = (),
        repair: RepairRules | None = None,
        given_in_s: float | None = None,
    ) -> None:
        """`store` stays the caller's; `signals`: where those are read that end us (see `runtime.host.caught`); `web`, `notify`:
        arguments of these commands, which run beside us; none: they do not; `http`: where the first serves; `given_in_s`: how
        long the orchestrator takes to give a node, as the operator says.
        LeadLost: another supervisor has been faster."""
        self.say, self.store, self.folder = say, store, folder
        generation, kept = store.load()
        self.host = Host(say)
        self.host.hear(signals)
        self.network = Network(self.host, Identity(FLEET, token), endpoint, shelter=shelter, family=FleetMessage)
        self.calls = Calls(self.host, orchestrator)
        now, now_unix = self.host.now(), self.host.unix()
        gives = Gives(within_s=given_in_s, evicts=orchestrator.evicts)
        clocks = {"now": now, "now_unix": now_unix}
        self.fleet = Fleet(policy, generation=generation, lease_s=lease_s, kept=kept, repair=repair, gives=gives, **clocks)
        self.connections = Connections(self.fleet, named=named)
        self.held = Held(self.fleet.state)
        self.control: ControlSocket | None = None
        self.children: list[Child] = []
        if web:
            self.children.append(Child(self.host, say, "the HTTP API", ("web", *web), self._listener(http)))
        if notify:
            self.children.append(Child(self.host, say, "who tells webhooks and OpenTelemetry", ("notify", *notify)))
        self.asked: dict[int, Request] = {}
        """Operators' requests that the fleet has not answered yet, by number."""
        self.asks = 0

    def listen(self) -> bool:
        """Listen to reporters and people. False: the port is taken."""
        if not self.network.listen():
            return False
        self.network.warm()
        self.control = control = ControlSocket(os.path.join(self.folder, SOCKET))
        self.host.watch(control.fileno(), select.EPOLLIN, lambda events: self._asked(control))
        return True

    def _listener(self, http: tuple[str, int] | None) -> socket.socket | None:
        try:
            return None if http is None else bind(*http)
        except HoldfastError as error:
            self.say(str(error))  # the child tries again
            return None

    def run(self) -> None:
        """Until SIGTERM or SIGINT. LeadLost: somebody else may lead."""
        self.perform(self.connections.begin(self.host.now()))
        for child in self.children:
            child.start()
        deadlines = [self.connections.deadline, self.network.deadline, self.held.deadline]
        deadlines += [child.deadline for child in self.children]
        while True:
            until = min(self._leads_until(), *(deadline() for deadline in deadlines))
            happened = [*self.host.wait(until), *self.network.expire(self.host.now())]
            if any(isinstance(seen, Signalled) for seen in happened):
                return
            for seen in happened:
                self._show(seen)
            if self.host.now() >= self.connections.deadline():
                self._show(Tick())
            self.held.due(self.host.now())
            for child in self.children:
                child.due(self.host.now())

    def _leads_until(self) -> float:
        left_s = self.store.left_s()
        if left_s <= 0:
            raise LeadLost("this supervisor has not been able to renew its lead in time")
        return NEVER if left_s == NEVER else self.host.now() + left_s

    def _show(self, seen: Observation) -> None:
        self.perform(self.connections.observe(seen, self.host.now()))

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out actions, in order; of those to be kept, all that follow one another at once."""
        kept: list[Keep] = []
        for action in actions:
            if isinstance(action, Keep):
                kept.append(action)
                continue
            if kept and not isinstance(action, Say):
                self.store.keep(kept)
                kept = []
            self._leads_until()  # it may have been stopped for any time since it was last asked
            match action:
                case Connect() | Transmit() | HangUp():
                    for seen in self.network.perform(action):
                        self._show(seen)
                case Call():
                    self.calls.begin(action)
                case Say(text=text):
                    self.say(text)
                case TurnedAway(peer=peer, text=text):
                    self.network.rejections.note(peer, text, self.host.now())
                case Reply(ask=ask, ok=ok, text=text):
                    request = self.asked.pop(ask)
                    request.reply({"text": text}) if ok else request.refuse(text)
                case _:
                    raise AssertionError(f"a supervisor cannot do {action!r}")
        if kept:
            self.store.keep(kept)

    def close(self) -> None:
        """End all of it but the store."""
        for child in self.children:
            child.close()
        if self.control is not None:
            self.control.close()
        self.calls.close()
        self.network.close()
        self.host.close()

    def _asked(self, control: ControlSocket) -> list[Observation]:
        for request in control.requests():
            try:
                self._answer(request)
            except UsageError as error:
                request.refuse(str(error))
        return []

    def _answer(self, request: Request) -> None:
        name, job, reason = map(request.text, ("node", "job", "reason"))
        reason = plain(reason, keep="")[:400] or f"an operator asked for it ({request.ask})"
        fleet, now = self.fleet.state, self.host.now()
        match request.ask:
            case "fleet":
                self.held.take(request, now)
            case "nodes":
                nodes = [view.node(fleet.nodes[name]) for name in sorted(fleet.nodes)]
                standby = view.standby(fleet)
                request.reply({"generation": fleet.rules.generation, "nodes": nodes, "standby": standby})
            case "why" if name in fleet.nodes:
                shown = view.node(fleet.nodes[name], HISTORY)
                request.reply({"node": shown, "deeds": fleet.action_log.about(node=name)[-DEEDS:]})
            case "why":
                deeds = fleet.action_log.about(job=name)[-DEEDS:]
                request.reply({"node": None, "deeds": deeds, "job": name in fleet.jobs})
            case "deeds":
                request.reply({"deeds": fleet.action_log.about(node=name, job=job)[-DEEDS:]})
            case "history":
                request.reply(view.history(fleet))
            case "drain" | "uncordon" | "inject" if name:
                self._ask_fleet(request, name, job, reason)
            case "restart" | "stop" if job:
                self._ask_fleet(request, "", job, reason)
            case _:
                known = "fleet, nodes, why, deeds, history, drain, uncordon, restart, stop and inject"
                request.refuse(f"this supervisor knows no {request.ask!r}; it knows {known}")

    def _ask_fleet(self, request: Request, node: str, job: str, reason: str) -> None:
        """The fleet's `Reply` answers the request."""
        wish = Wish(request.ask)
        wanted = injection(request.arguments) if wish == Wish.INJECT else None
        self.asks += 1
        self.asked[self.asks] = request
        self._show(Asked(ask=self.asks, wish=wish, node=node, job=job, reason=reason, injection=wanted))
