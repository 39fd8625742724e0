"""What does the coordinator say, and what does this node do then? One case per message, and one for its silence.

`agent.group.machine` has the states, and the ways from one to the next that the workers themselves lead to.
"""

from __future__ import annotations

from holdfast.agent.group.messages import (
    Answer,
    HeedPace,
    KillWorkers,
    LearnImports,
    PlayFault,
    RunChecks,
    Send,
    Sweep,
    TellExamined,
)
from holdfast.core.job.events import Decided
from holdfast.core.job.policy import Verdict
from holdfast.core.job.report import Outcome
from holdfast.core.machine import Action, Record, Say
from holdfast.core.signals import signal
from holdfast.core.value import replace
from holdfast.core.wire.messages import (
    OWN_ASK,
    Assigned,
    CheckYourself,
    Finish,
    InjectHere,
    LookAround,
    Message,
    NodeHealth,
    Noted,
    Paced,
    Positions,
    Refused,
    Stop,
    ToImport,
    Waiting,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.group.machine import Group
    from holdfast.agent.group.messages import LeaseOver


class Orders:
    """The coordinator's word, heard for `group`, whose states tell which of it still matters."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def told(self, message: Message, now: float) -> list[Action]:
        """It has said something."""
        group = self.group
        match message:
            case Assigned(round=number) if group.state == "joining" and number > group.round:
                return group.start(message, now)
            case Stop(round=number) if number == group.round:
                return self._stop(message, now)
            case LookAround(round=number, reason=reason) if number == group.round:
                return self._look(reason, now)
            case Waiting() if group.state == "joining":
                return self._wait(message)
            case ToImport(modules=modules) if group.state == "joining":
                return [LearnImports(modules=modules)]
            case CheckYourself(ask=ask, checks=checks):
                return [RunChecks(ask=ask, checks=checks)]
            case InjectHere(ask=ask, injection=injection):
                return [PlayFault(ask=ask, injection=injection)]
            case NodeHealth():
                return [TellExamined(answer=message)]
            case Noted(ask=ask, text=text) if ask == OWN_ASK:
                return group.fitness.noted(text)
            case Noted(ask=ask, ok=ok, text=text):
                return [Answer(ask=ask, ok=ok, text=text)]
            case Paced(round=number, longest_s=longest_s, busy_s=busy_s) if number == group.round:
                group.join = replace(group.join, longest_s=longest_s)
                return [HeedPace(longest_s=longest_s, busy_s=busy_s)]
            case Finish(report=report) if group.state != "ended":
                return [*self._killed(), *group.exit(report.exit_code, report=report)]
            case Refused() if group.state != "ended":
                return self._refused(message)
        return []

    def _stop(self, stop: Stop, now: float) -> list[Action]:
        group = self.group
        if group.state == "joining":
            return [Send(message=group.join)] if stop.rejoin and not group.checking else []
        if group.rejoin is not None or group.state == "ended":
            return []
        group.rejoin, group.regrouped = stop.rejoin, stop.regrouped
        # The last word is the report's, which says the same.
        said: list[Action] = [Say(text=stop.reason, level="warning")] if stop.rejoin else []
        if group.state == "stopped":
            return said + (group.begin(now) if group.rejoin else [])
        struck: list[Action] = []
        if stop.hung is not None and stop.hung in group.workers:
            struck = group.look.condemn(group.workers[stop.hung])
        if group.state == "running":
            return [*struck, *group.stop_once_seen(stop.reason, now), *said]  # signals wait for no terminal
        if group.state == "succeeded":
            return said + group.all_gone(now)
        return struck + said

    def _wait(self, waiting: Waiting) -> list[Action]:
        group, known = self.group, self.group.join.known_round
        is_of_another_run = waiting.life != group.join.life
        if waiting.round >= known or is_of_another_run:
            group.spare_because = waiting.reason
        if waiting.round <= known and not is_of_another_run:
            return []
        group.join = replace(group.join, known_round=max(known, waiting.round), life=waiting.life)
        # Said at once: it is to be known to whoever hears the Join again. While the node is being checked, with that.
        return [] if group.checking else [Send(message=group.join)]

    def _look(self, reason: str, now: float) -> list[Action]:
        group = self.group
        if group.state != "running":  # what others hung for is over here
            return [Send(message=Positions(node=group.join.node, round=group.round, positions=()))]
        assert group.assigned is not None
        return group.look.begin(reason, group.assigned, now)

    def lease_over(self, over: LeaseOver, now: float) -> list[Action]:
        """Nothing has come for so long that others may start these ranks again at `over.until`."""
        group, reason, until = self.group, over.reason, over.until
        if group.state not in ("running", "stopping"):
            unknown = "whether the job goes on without this node, or has ended, is not known here"
            return [Say(text=f"{reason}; still trying, for up to {over.patience_s:g} s: {unknown}", level="warning")]
        actions: list[Action] = [Say(text=f"{reason}; stopping the workers", level="error")]
        if group.state == "running":
            group.rejoin = True
            # Where we have slept ourselves, nothing that a handler would do may be done any more.
            actions += group.stop(signal.SIGTERM if now < until else signal.SIGKILL, reason, now)
        if group.stopping is not None:
            group.stopping.hasten(until)
        return actions

    def _refused(self, refused: Refused) -> list[Action]:
        complaint = f"cannot take part in the job: {refused.reason}"
        decided = Record(event=Decided(decision=Verdict.STOP, reason=complaint))
        shown = complaint + (f"\n  hint: {refused.hint}" if refused.hint else "")
        return [*self._killed(), decided, *self.group.exit(1, outcome=Outcome.FAILED, complaint=shown)]

    def _killed(self) -> list[Action]:
        alive = self.group.workers.alive
        return [KillWorkers(local_ranks=alive), Sweep()] if alive else []
