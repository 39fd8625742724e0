"""Is this node fit? The agent runs checks beside its loop, and never waits for one.

Carries out what `health.examiner` asks for: each check is a process (`health.runner.Child`) whose end the loop hears of. Its
verdict goes to the group, which tells the coordinator, and to the client that asked.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.agent.component import Component
from holdfast.agent.group.messages import NodeChecked, ToCoordinator
from holdfast.core.config.config import RunConfig
from holdfast.core.errors import StartError, UsageError
from holdfast.core.machine import NEVER, Action, Observation, Tick
from holdfast.core.wire import messages as wire
from holdfast.core.wire.messages import Assigned
from holdfast.health.check import ROOT, Wanted, wanted
from holdfast.health.checks.pairs import VERDICT
from holdfast.health.examiner import Answered, Asked, Examined, Examiner, StartCheck, Watch, plain
from holdfast.health.runner import Child, unstartable
from holdfast.health.verdict import Verdict
from holdfast.rendezvous.clocks import ClockLead
from holdfast.runtime.host import Host
from holdfast.runtime.secrets import without_secrets

JOINING = "join"  # Purpose of the question before a round; others are numbers of requests.

OURS, WITHOUT_CODE = "holdfast.health.checks.", ("paths", "memory", "files", "clock")
"""Where our own checks are, and whose argument is only looked at."""

MOST_CHILDREN = 64  # Checks that run at once here, those that hang included, while others are asked for from elsewhere.

NOT_FOR_OTHERS = "not run at another node's request, unless this node was started with it (--check-before, --check-during)"


class Checking(Component):
    """This node's examiner, with its hands."""

    def __init__(
        self, config: RunConfig, host: Host, perform: Callable[[Iterable[Action]], None], lead: Callable[[], ClockLead | None]
    ) -> None:
        """UsageError: one of the configured checks does not exist."""
        self.host, self.perform, self.lead = host, perform, lead
        self.root = os.environ.get(ROOT, "/")
        self.environ = without_secrets(os.environ)
        os.environ.pop(VERDICT, None)  # the workers need not know
        self.examiner = Examiner(config.check_every_s)
        self.known: dict[str, Wanted] = {}
        self.before = self._know(config.check_before)
        self.after = self._know(config.check_after)
        self.during = self._know(config.check_during)
        self.children: dict[str, Child] = {}
        """Label → its process, while it runs; and where not even SIGKILL ends it, for as long as it is there."""
        self.stuck: set[str] = set()
        self.callers: dict[str, Callable[[Sequence[Verdict]], list[Observation]]] = {}
        """Purpose → what to do with the verdicts."""
        self.heard: list[Observation] = []

    def _know(self, asked: Iterable[str], *, counts: bool = True) -> tuple[str, ...]:
        found = wanted(asked, self.root)
        self.known = {one.label: one for one in found} | self.known  # another node's word changes no deadline
        self.examiner.know(found, counts=counts)
        self.known = {label: self.known[label] for label in self.examiner.standings}
        return tuple(one.label for one in found)

    # --- what the agent asks for ----------------------------------------------------------------------------------------

    def before_join(self, after_failure: bool) -> list[Observation]:
        """`CheckNode`: what is configured for that, and whatever has found the node unfit."""
        self._show(Watch(labels=()))
        labels = dict.fromkeys((*self.before, *(self.after if after_failure else ()), *self.examiner.unfit_by))
        return self._ask(JOINING, tuple(labels))

    def begin_round(self, assigned: Assigned, started: Sequence[Observation]) -> list[Observation]:
        self._show(Watch(labels=self.during))
        return []

    def longest_s(self, asked: Sequence[str]) -> float:
        """How long these checks may take at most. UsageError: there is no such check."""
        return max((one.check.deadline_s for one in wanted(asked, self.root)), default=0.0)

    def verdicts(self) -> list[Mapping[str, Any]]:
        """What the checks by which this node is judged say of it now, as plain data."""
        standing = (self.examiner.standings[label].verdict for label in sorted(self.examiner.counts))
        return plain(one for one in standing if one is not None)

    def run_for(self, node: str, ask: int, asked: Sequence[str]) -> list[Observation]:
        """Somebody wants these checks run now, by the coordinator's word: none that runs what others write, unless this node
        was configured with it."""
        configured = set(self.before + self.after + self.during)
        try:
            found = wanted(asked, self.root)
        except UsageError as error:
            return [_examined(node, ask, trouble=error.what)]
        if strange := [one.label for one in found if one.label not in configured and not _harmless(one)]:
            return [_examined(node, ask, trouble=f"{', '.join(strange)}: {NOT_FOR_OTHERS}")]
        if len(self.children) + len(found) > MOST_CHILDREN:
            return [_examined(node, ask, trouble=f"{len(self.children)} checks run here already: at most {MOST_CHILDREN} do")]
        labels = self._know(asked, counts=False)
        purpose = f"ask {ask}"

        def caller(verdicts: Sequence[Verdict]) -> list[Observation]:
            by_label = {one.check: one for one in verdicts}
            return [_examined(node, ask, *(_told(by_label[label]) for label in labels))]

        self.callers[purpose] = caller
        return self._ask(purpose, labels)

    def _ask(self, purpose: str, labels: tuple[str, ...]) -> list[Observation]:
        return self._show(Asked(purpose=purpose, labels=labels))

    # --- the loop -------------------------------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        ends = (child.until for label, child in self.children.items() if label not in self.stuck)
        return min(self.examiner.deadline(), min(ends, default=NEVER))

    def due(self) -> list[Observation]:
        now = self.host.now()
        seen: list[Observation] = []
        for label, child in list(self.children.items()):
            if label in self.stuck or now < child.until:
                continue
            if child.process.pidfd is None and child.ended():
                seen += self._ended(label, child)
            elif not child.overdue:
                child.end(now)
            else:
                self.stuck.add(label)
                seen += self._show(Answered(label=label, verdict=child.stuck(now)))
        if now >= self.examiner.deadline():
            seen += self._show(Tick())
        return seen

    def close(self) -> None:
        for child in self.children.values():
            child.end(self.host.now())
            if child.process.pidfd is not None:
                self.host.unwatch(child.process.pidfd)
            child.ended()
            child.close()
        self.children.clear()

    # --- hands ----------------------------------------------------------------------------------------------------------

    def _show(self, seen: Observation) -> list[Observation]:
        out: list[Observation] = []
        for action in self.examiner.observe(seen, self.host.now()):
            match action:
                case StartCheck():
                    out += self._start(action)
                case Examined(purpose=purpose, verdicts=verdicts, unfit=unfit):
                    if caller := self.callers.pop(purpose, None):
                        out += caller(verdicts)
                    out.append(NodeChecked(unfit=unfit, asked=purpose == JOINING))
                case _:
                    self.perform([action])
        return out

    def _start(self, action: StartCheck) -> list[Observation]:
        label, now = action.label, self.host.now()
        one = self.known[label]
        if label in self.stuck:  # a second one would hang like the first
            return self._show(Answered(label=label, verdict=self.children[label].stuck(now)))
        try:
            child = Child(one, self.root, action.before, self.environ, now, self.lead())
        except StartError as error:
            return self._show(Answered(label=label, verdict=unstartable(one, error)))
        self.children[label] = child
        self.host.others.add(child.pid)
        if child.process.pidfd is not None:
            self.host.watch(child.process.pidfd, select.EPOLLIN, lambda events: self._ended(label, child))
        return []

    def _ended(self, label: str, child: Child) -> list[Observation]:
        if not child.ended():
            return []
        if child.process.pidfd is not None:
            self.host.unwatch(child.process.pidfd)
        self.host.others.discard(child.pid)
        verdict = child.answer(self.host.now())
        child.close()
        del self.children[label]
        if label in self.stuck:  # its silence has been judged long ago
            self.stuck.discard(label)
            return []
        return self._show(Answered(label=label, verdict=verdict))


def _harmless(one: Wanted) -> bool:
    """Whether who belongs to the job may have it run on any node: a command would make one broken-in node all of them."""
    return one.check.target.startswith(OURS) and (not one.argument or one.check.name in WITHOUT_CODE)


def _examined(node: str, ask: int, *verdicts: wire.Checked, trouble: str = "") -> ToCoordinator:
    return ToCoordinator(message=wire.Reply(node=node, ask=ask, ok=not trouble, text=trouble, verdicts=verdicts))


def _told(one: Verdict) -> wire.Checked:
    return wire.Checked(check=one.check, state=one.state, reason=one.reason, advice=one.advice, took_s=one.took_s)
