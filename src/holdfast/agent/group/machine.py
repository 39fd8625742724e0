"""What does this node do now? The machine that runs one node's workers through the rounds of a job.

Its phases are drawn in `agent.group.state`. `step` is the table of its transitions. What a line does is a function of the
state, in the file of its situation. What comes after a round is the coordinator's decision (`rendezvous.coordinator.machine`).
"""

from __future__ import annotations

from holdfast.agent.group import (
    hang_response,
    in_place,
    job_end,
    messages,
    node_health,
    round_start,
    shutdown,
    stopping,
    worker_events,
)
from holdfast.agent.group.requests import requested
from holdfast.agent.group.state import Phase, State, Step, WorkerTable, joined_with
from holdfast.core.machine import Action, Observation, Say, Signalled, Tick
from holdfast.core.value import fields_of, replace
from holdfast.core.wire import messages as wire

OF_A_LIFE = messages.Ended, messages.Ending, messages.Stuck, messages.Hung


class Group:
    """The machine: its state, and what others read of it."""

    def __init__(self, state: State) -> None:
        self.state = state

    def begin(self, now: float) -> list[Action]:
        """Ask for the first round."""
        self.state, actions = round_start.begin(self.state, now)
        return actions

    def observe(self, seen: Observation, now: float) -> list[Action]:
        self.state, actions = step(self.state, seen, now)
        return actions

    def reached_at(self, endpoint: str) -> None:
        """Others may look for the coordinator there, should this node lead."""
        self.state = joined_with(self.state, endpoint=endpoint)

    def host(self, is_here: bool) -> None:
        """The coordinator is in this agent's process from now on, or no longer."""
        self.state = replace(self.state, hosting=is_here)

    def deadline(self) -> float:
        return self.state.deadline()

    @property
    def phase(self) -> Phase:
        """Where the node is."""
        return self.state.phase

    @property
    def join(self) -> wire.Join:
        """What the coordinator is told of this node."""
        return self.state.join

    @property
    def assigned(self) -> wire.Assigned | None:
        """The round of the workers we have or had."""
        return self.state.assigned

    @property
    def round(self) -> int:
        """Its number; 0 before the first."""
        return self.state.round

    @property
    def workers(self) -> WorkerTable:
        """Those of that round."""
        return self.state.workers

    @property
    def has_workers(self) -> bool:
        """Whether workers run here that we have not killed."""
        return self.state.workers.can_work


def step(state: State, seen: Observation, now: float) -> Step:
    """The table of transitions, in parts. None: another part knows it."""
    if isinstance(seen, messages.Told):
        if isinstance(seen.message, wire.Notice):
            waits_for = seen.message.waits_for or state.waits_for
            return replace(state, waits_for=waits_for), [Say(text=seen.message.text, level=seen.message.level)]
        return _told(state, seen.message, now)
    for part in (_of_time, _of_lives, _of_workers, _of_round, _of_node):
        if (after := part(state, seen, now)) is not None:
            return after
    raise AssertionError(f"a group is never shown {seen!r}")


def _told(state: State, message: wire.Message, now: float) -> Step:
    """What the coordinator says."""
    match state.phase, message:
        case Phase.JOINING, wire.Waiting() as waiting:
            return round_start.waits(state, waiting)
        case Phase.JOINING, wire.Assigned() as assigned if assigned.round > state.round:
            return round_start.start(state, assigned, now)
        case Phase.JOINING, wire.Stop(round=state.round, rejoin=True) if not state.checking:
            return _says(state, state.join)
        case ((Phase.RUNNING | Phase.SUCCEEDED | Phase.STOPPING | Phase.STOPPED), wire.Stop(round=state.round) as word):
            return stopping.told_to_stop(state, word, now) if state.rejoin is None else (state, [])
        case Phase.RUNNING, wire.LookAround(round=state.round, reason=reason):
            return hang_response.look(state, reason, now)
        case _, wire.LookAround(round=state.round):  # the round is over here: there is nothing to see
            return _says(state, wire.Positions(node=state.join.node, round=state.round, positions=()))
        case _, wire.Paced(round=state.round, longest_s=longest_s):
            return joined_with(state, longest_s=longest_s), [messages.FromCoordinator(message=message)]
        case _, wire.Reply(ask=ask, text=text) if ask == wire.OWN_ASK:
            return node_health.noted(state, text)
        case _, wire.Reply():
            return state, [messages.FromCoordinator(message=message)]
        case ((_, wire.Request() as asked) | (Phase.JOINING, wire.ToImport() as asked)):
            return requested(state, asked, now)
        case Phase.ENDED, _:
            return state, []
        case _, wire.Finish() as finish:
            return job_end.finished(state, finish)
        case _, wire.Refused() as no:
            return job_end.refused(state, no)
    return state, []  # of a round, or a phase, that is over here


def _of_time(state: State, seen: Observation, now: float) -> Step | None:
    match seen:
        case Tick() if state.script.held and now >= state.script.deadline():
            return shutdown.script_signals_due(state, now)
        case Tick() if now >= state.memory.deadline():
            return round_start.memory_late(state, now)
        case Tick() if state.look is not None and now >= state.look.until:
            return hang_response.looked(state, (), now)
        case Tick() if state.may_start and now >= state.spares_until:
            return round_start.let_go(state, now)
        case Tick() if now >= state.begin_until:
            return in_place.late_to_begin(state, now)
        case Tick() if state.stopping is not None:
            return stopping.late(state, state.stopping, now)
        case Tick():
            return state, []
    return None


def _of_lives(state: State, seen: Observation, now: float) -> Step | None:
    """Of workers that go on from one round to the next, or are of a round before."""
    if isinstance(seen, OF_A_LIFE) and state.workers[seen.local_rank].pid != seen.pid:
        return state, []  # seen of a life that was over by the time it was told
    match seen:
        case messages.Lives():
            return in_place.lives(state, seen, now)
        case messages.Ended() if state.workers[seen.local_rank].is_of_no_round:
            return in_place.ended(state, seen)
    return None


def _of_workers(state: State, seen: Observation, now: float) -> Step | None:
    match state.phase, seen:
        case _, messages.Started() as begun:
            return worker_events.started(state, begun, now)
        case _, messages.StartFailed() as failed:
            return worker_events.start_failed(state, failed, now)
        case _, messages.Ending() as ending:
            return worker_events.ending(state, ending, now)
        case _, messages.Ended() as ended:
            return worker_events.ended(state, ended, now)
        case Phase.RUNNING, messages.Stuck() as stuck:
            return worker_events.stuck(state, stuck, now)
        case Phase.RUNNING, messages.Hung() as hung:
            return hang_response.hung(state, hung, now)
        case Phase.STOPPING, messages.Stuck() as stuck:
            return stopping.deaf(state, stuck, now)
        case _, messages.Stuck() | messages.Hung():
            return state, []  # they are ending: that one does not will show
        case _, messages.Looked(positions=positions):
            return hang_response.looked(state, positions, now)
        case _, messages.TimerExpired() as expired:
            return worker_events.timer_expired(state, expired)
        case _, messages.ControlAsked() as asked:
            return worker_events.asked(state, asked, now)
    return None


def _of_round(state: State, seen: Observation, now: float) -> Step | None:
    """What decides when workers start and end, beside the coordinator."""
    match seen:
        case messages.LeaseOver() if state.phase in (Phase.RUNNING, Phase.STOPPING):
            return stopping.lease_over(state, seen, now)
        case messages.LeaseOver(reason=reason, patience_s=patience_s):
            unknown = "whether the job goes on without this node, or has ended, is not known here"
            return state, [Say(text=f"{reason}; still trying, for up to {patience_s:g} s: {unknown}", level="warning")]
        case Signalled(signum=signum):
            return shutdown.signalled(state, signum, now)
        case messages.Unguarded():
            return shutdown.unguarded(state, now)
        case messages.MadeWay(reason=reason):
            return shutdown.made_way(state, reason)
        case messages.NodeChecked():
            return node_health.checked(state, seen)
        case messages.LogsOpened(round=number):
            return round_start.logs_opened(state, number, now)
        case messages.MemorySeen():
            return round_start.memory_seen(state, seen, now)
        case messages.SparesAwaited(until=until):
            return round_start.spares_awaited(state, until, now)
    return None


def _of_node(state: State, seen: Observation, now: float) -> Step | None:
    """What the coordinator is told, now or with the next `Join`."""
    node, number, is_first = state.join.node, state.round, state.assigned is not None and state.assigned.group_rank == 0
    match state.phase, seen:
        case _, messages.JoinNews():
            return joined_with(state, **fields_of(seen)), []
        case Phase.RUNNING, messages.PaceKnown() as pace:
            # A coordinator's successor may miss it: the next Join says it again.
            state = joined_with(state, longest_s={**state.join.longest_s, **pace.longest_s})
            return _says(state, wire.Pace(node=node, round=number, **fields_of(pace)))
        case Phase.RUNNING, messages.SavesSeen(open=is_open):
            return _says(state, wire.Saving(node=node, round=number, open=is_open))
        case Phase.RUNNING, messages.ImportsKnown(modules=modules) if is_first and state.join.warm:  # all run the same script
            return _says(state, wire.Imports(node=node, python=state.join.warm, modules=modules))
        case _, messages.LimitsKnown(limits_s=limits_s):  # all calculate the same
            state, told = joined_with(state, calculated_s=limits_s), wire.Calculated(node=node, round=number, limits_s=limits_s)
            return _says(state, told) if is_first and state.phase is not Phase.ENDED else (state, [])
        case _, messages.PaceKnown() | messages.SavesSeen() | messages.ImportsKnown():
            return state, []  # of a round that is over
        case _, messages.ToCoordinator(message=message):
            return _says(state, message)
        case _, messages.StopAsked(reason=reason, grace_s=grace_s):
            if grace_s is not None:
                state = replace(state, grace_s=grace_s, term_grace_s=grace_s)
            return _says(state, wire.Request(node=state.join.node, kind=wire.RequestKind.STOP, reason=reason))
    return None


def _says(state: State, message: wire.Message) -> Step:
    return state, [messages.Send(message=message)]
