"""When is a spare worker made, used, kept or ended? A machine; who carries it out is `agent.spares.pool`.

    none ──make──▶ importing ──ready──▶ waiting ──chosen──▶ none
     ▲                │ failed              │ too old · grown · memory is short · its environment is no longer the right one
     └────────────────┴─────────────────────┘

Spares are made once the ranks train: before, they would take from them what they need to get there, and nobody would know
what to import. The ranks train when each has shown a heartbeat, or, where a script shows none, when for a while no module
has been loaded any more. The first spare shows how much memory one needs; the others follow if that leaves enough.

Where one is lacking while ranks are slow to end, it is made meanwhile; and the next round's wait for those that are under way,
each of which has begun sooner than a cold start would.
"""

from __future__ import annotations

from holdfast.agent.spares import messages
from holdfast.agent.spares.import_list import contradiction
from holdfast.agent.spares.state import Phase, Slot, SlotState, State
from holdfast.core.job.events import SpareLost, SpareReady
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Tick
from holdfast.core.value import replace

MiB = 1024**2

SURVEY_S = 0.25  # Between two looks whether the ranks train yet.

QUIET_S = 3.0
"""Without heartbeats: the ranks train when no module has been loaded for so long. A large library takes less for one module."""

WATCH_S = 30.0  # Between two looks at memory while spares wait.

LONGEST_AGE_S = 86400.0
"""A spare holds the files of libraries as they were when it was made: an update of them would never be noticed."""

GUESS_BYTES = 512 * MiB  # What the first spare is expected to need. torch for CPUs: 170 MiB.

LEAST_ROOM, LEAST_ROOM_BYTES = 0.1, 1024 * MiB
"""`auto` leaves this part of the memory free, and at least so many bytes."""

GROWN = 2.0, 64 * MiB
"""A spare that has so many times as much, and so many bytes more, than when it was ready, is made anew."""

MOST_FAILURES = 3  # So many that could not be made are enough: it is not tried again.

Step = tuple[State, list[Action]]


class Spares:
    """The machine of one node."""

    def __init__(self, state: State) -> None:
        self.state = state

    def deadline(self) -> float:
        return self.state.look_at

    def observe(self, seen: Observation, now: float) -> list[Action]:
        self.state, actions = step(self.state, seen, now)
        return actions


def step(state: State, seen: Observation, now: float) -> Step:
    """The table of transitions."""
    match state.phase, seen:
        case _, messages.RoundBegan():
            return replace(state, phase=Phase.STARTING, quiet_since=now, modules=-1, look_at=now + SURVEY_S), []
        case _, messages.StandingBy():
            return replace(state, phase=Phase.STANDING_BY, look_at=now), []
        case _, messages.RoundEnds():
            return replace(state, look_at=min(state.look_at, now + SURVEY_S)), []
        case _, messages.RoundOver():
            return replace(state, phase=Phase.IDLE), []
        case Phase.IDLE, Tick() if not state.slots_in(SlotState.WAITING):
            return replace(state, look_at=NEVER), []
        case _, Tick():
            return replace(state, look_at=NEVER), [messages.Survey()]
        case _, messages.Surveyed():
            return _surveyed(state, seen, now)
        case _, messages.Made():
            return _made(state, seen, now), []
        case _, messages.Ready():
            return _ready(state, seen, now)
        case _, messages.Lost(pid=pid, reason=reason):
            return _lost(state, pid, reason, now)
        case _, messages.WorkerDue():
            return _chosen(state, seen)
        case _, messages.Used(pid=pid, trouble=trouble):
            return _used(state, pid, trouble), []
    raise AssertionError(f"spares are never shown {seen!r}")


# --- making and keeping -----------------------------------------------------------------------------------------------------


def _surveyed(state: State, seen: messages.Surveyed, now: float) -> Step:
    if seen.between:
        state = replace(state, phase=Phase.IDLE)
    if state.phase is Phase.STARTING:
        if seen.modules != state.modules:
            state = replace(state, modules=seen.modules, quiet_since=now)
        if seen.beating or now - state.quiet_since >= QUIET_S:
            state = replace(state, phase=Phase.TRAINING)
    state, actions = _weeded(state, seen, now)
    are_training = state.phase in (Phase.TRAINING, Phase.STANDING_BY)
    pause_s = SURVEY_S if state.phase is Phase.STARTING else WATCH_S
    state = replace(state, proven=state.proven or (are_training and seen.reached), look_at=now + pause_s)
    if (are_training or (seen.between and state.proven)) and seen.reached and state.failures < MOST_FAILURES:
        state, more = _more(state, seen)
        actions += more
    return state, actions


def _weeded(state: State, seen: messages.Surveyed, now: float) -> Step:
    actions: list[Action] = []
    for slot in state.slots_in(SlotState.WAITING):
        if why := _worn_out(slot, seen.sizes.get(slot.pid, 0), now):
            state, ended = _ended(state, slot, why)
            actions += ended
    waiting = state.slots_in(SlotState.WAITING)
    if waiting and state.thrifty and seen.total_bytes > 0 and seen.room_bytes < _reserve(seen) / 2:
        state, ended = _ended(state, waiting[-1], _short(seen))
        actions += ended
    return state, actions


def _worn_out(slot: Slot, size_bytes: int, now: float) -> str:
    """Why a spare that waits is to be recreated; empty: it is not."""
    if slot.stale:
        return slot.stale
    if now - slot.since > LONGEST_AGE_S:
        return f"it is {(now - slot.since) / 3600:.0f} hours old"
    if size_bytes > max(slot.size_bytes * GROWN[0], slot.size_bytes + GROWN[1]):
        return f"it has grown from {slot.size_bytes // MiB} to {size_bytes // MiB} MiB"
    return ""


def _more(state: State, seen: messages.Surveyed) -> Step:
    """As many as may be made now."""
    known = max((slot.size_bytes for slot in state.slots), default=0)
    importing, each = len(state.slots_in(SlotState.IMPORTING)), known or GUESS_BYTES
    wanted = [slot for slot in state.slots_in(SlotState.NONE) if not (seen.between and slot.vain)]
    if not known:  # the first shows how much one needs
        wanted = wanted[: 0 if importing else 1]
    fitting = wanted
    if state.thrifty and seen.total_bytes:
        room = seen.room_bytes - _reserve(seen) - importing * each
        fitting = wanted[: max(0, int(room // each))]
    if len(fitting) < len(wanted):
        state = state.changed(wanted[len(fitting)], trouble=_short(seen))
    return state, [messages.MakeSpare(slot=slot.number, local_rank=slot.local_rank) for slot in fitting]


def _reserve(seen: messages.Surveyed) -> float:
    return max(LEAST_ROOM * seen.total_bytes, LEAST_ROOM_BYTES)


def _short(seen: messages.Surveyed) -> str:
    return f"memory is short: {seen.room_bytes // MiB} MiB are left on this host"


def _made(state: State, made: messages.Made, now: float) -> State:
    slot = state.slots[made.slot]
    if made.pid < 0:
        return replace(state, failures=state.failures + 1).emptied(slot, made.trouble)
    guessed, why = state.phase is Phase.STANDING_BY, "it was still importing"
    return state.changed(slot, state=SlotState.IMPORTING, pid=made.pid, since=now, trouble=why, guessed=guessed)


def _ready(state: State, seen: messages.Ready, now: float) -> Step:
    if (slot := state.slot_of(seen.pid)) is None:
        return state, []
    state = state.changed(slot, state=SlotState.WAITING, reads=seen.reads, size_bytes=seen.size_bytes)
    state = replace(state, import_s=seen.import_s, look_at=now)
    mb = round(seen.size_bytes / MiB, 1)
    actions: list[Action] = [
        Record(event=SpareReady(local_rank=slot.local_rank, pid=slot.pid, import_s=seen.import_s, mb=mb))
    ]
    if (variable := seen.until) and variable not in state.said:
        state = replace(state, said=state.said | {variable})
        only = f"the script changes {variable}, so warm spares import only what comes before"
        actions.append(Say(text=f"{only}: set it for the whole job instead", level="warning"))
    return state, actions


def _lost(state: State, pid: int, reason: str, now: float) -> Step:
    if (slot := state.slot_of(pid)) is None:
        return state, []
    failures = state.failures + (slot.state is SlotState.IMPORTING)
    return _gone(replace(state, failures=failures, look_at=min(state.look_at, now + SURVEY_S)), slot, reason)


def _ended(state: State, slot: Slot, why: str) -> Step:
    state, actions = _gone(state, slot, why)
    return state, [messages.EndSpare(pid=slot.pid), *actions]


def _gone(state: State, slot: Slot, why: str) -> Step:
    state, actions = state.emptied(slot, why), list[Action]()
    actions.append(Record(event=SpareLost(local_rank=slot.local_rank, pid=slot.pid, reason=why)))
    if state.failures and why not in state.said:
        state = replace(state, said=state.said | {why})
        actions.append(Say(text=f"no warm spare for local rank {slot.local_rank}: {why}", level="warning"))
    return state, actions


# --- using ------------------------------------------------------------------------------------------------------------------


def _chosen(state: State, due: messages.WorkerDue) -> Step:
    """A spare for this worker, or why it starts cold."""
    places = [slot for slot in state.slots if state.fork or slot.local_rank == due.local_rank]
    trouble = places[0].trouble if places else "there are fewer spares than workers"
    for slot in places:
        if slot.state is not SlotState.WAITING or slot.stale:
            continue
        why = contradiction(due.changed[slot.pid], slot.reads)
        if not why:
            return state.changed(slot, vain=False), [messages.StartWith(pid=slot.pid)]
        why += "; this node had no rank yet" * slot.guessed
        state = state.changed(slot, vain=True, stale=why, trouble=why)
        trouble = why if slot is places[0] else trouble
    return state, [messages.StartWith(pid=-1, cold_because=trouble)]


def _used(state: State, pid: int, trouble: str) -> State:
    if (slot := state.slot_of(pid)) is None or (state.fork and not trouble):
        return state
    return state.emptied(slot, trouble or "the last one has become a worker, and no other was ready yet")
