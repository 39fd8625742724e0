"""When is which fault played, and when is it over? The machine of an agent that may be practised on (--allow-inject).

    kill                                  a rank is killed, once
    hang ──▶ stopped ──for_s──▶ over      a rank is stopped
    slow ──▶ running ⇄ stopped ──for_s──▶ over      RUN_S and HALT_S in turn
    xid, ecc ──▶ planted ──for_s──▶ over  what the node's checks read has something more in it

Whatever happens to the ranks meanwhile ends what is played on them: nobody stays stopped. `agent.faults.driver` carries it out.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from holdfast.core.job.events import FaultInjected, FaultOver
from holdfast.core.job.injection import Fault, Injection
from holdfast.core.job.xid import NONE, RESTART, WATCH, xid
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Tick
from holdfast.core.signals import signal
from holdfast.core.value import Value, replace

RUN_S, HALT_S = 0.005, 0.015
"""Of a rank that is slow. Shorter than most steps, so that each of them takes four times as long, and not every tenth forty
times: a straggler is known by its median."""

CHECKS = {Fault.XID: "xid", Fault.ECC: "gpu"}  # The check that finds such a fault.

MOST_PLAYED = 64  # Faults that are to be undone, at a time.

TIME_OVER = "its time is over"

NO_GPU = "0000:00:00"  # Its address in the kernel's log, where the node has none.


class Asked(Observation):
    """Somebody wants a fault played; `Answered` follows at once."""

    injection: Injection
    ranks: dict[int, tuple[int, int]]  # Ranks that run on this node: rank → (local rank, pid).
    looks_s: dict[str, float | None]
    """Checks that this node is judged by → how often each looks. None: only before a round."""
    gpus: tuple[str, ...] = ()  # Addresses of this node's GPUs.


class RankOver(Observation):
    """A rank has ended."""

    local_rank: int


class RoundOver(Observation):
    """The ranks of the round are being stopped."""


class Strike(Action):
    """Send a signal to a rank: SIGKILL to its process, SIGSTOP and SIGCONT to its process group."""

    local_rank: int
    signum: int
    what: str = ""  # What is to blame if it ends now, in words. Empty: nothing that was injected.


class Plant(Action):
    """This, and nothing else, has been added to what the node's checks read."""

    kmsg: tuple[str, ...]  # Records of the kernel's log.
    ecc: dict[str, int]  # GPU's index → uncorrected memory errors.


class Answered(Action):
    """What becomes of the request."""

    ok: bool
    text: str


class Where(StrEnum):
    """Where a fault that is to be undone stands."""

    RUNNING = "running"  # Its rank is slow, and runs just now.
    STOPPED = "stopped"  # Its rank is stopped.
    PLANTED = "planted"  # The node's checks read it.


class Played(Value):
    """A fault that is to be undone."""

    injection: Injection
    rank: int = -1  # -1: it is about a GPU.
    local_rank: int = -1
    where: Where
    turn_at: float = NEVER  # When a slow rank is stopped, or let go, next.
    until: float
    what: str
    kmsg: str = ""
    ecc: str = ""  # Index of the GPU. Empty: it is none of that kind.


class State(Value):
    """All that the machine knows."""

    played: tuple[Played, ...] = ()
    records: int = 0  # Of the kernel's log, so far: each has a number.

    def deadline(self) -> float:
        """When a `Tick` has something to do."""
        return min((min(one.turn_at, one.until) for one in self.played), default=NEVER)


Step = tuple[State, list[Action]]


class Injector:
    """The machine."""

    def __init__(self) -> None:
        self.state = State()

    def observe(self, seen: Observation, now: float) -> list[Action]:
        self.state, actions = step(self.state, seen, now)
        return actions

    def deadline(self) -> float:
        return self.state.deadline()


def step(state: State, seen: Observation, now: float) -> Step:
    """What follows: from a request, a fault; from anything else, a step of each that is played."""
    match seen:
        case Asked() if len(state.played) >= MOST_PLAYED:
            return _refused(state, f"{MOST_PLAYED} faults are being played here: wait until some are over")
        case Asked(injection=wanted) if wanted.fault in CHECKS:
            return _on_gpu(state, seen, now)
        case Asked():
            return _on_rank(state, seen, now)
        case RankOver() | RoundOver() | Tick():
            left, actions = list[Played](), list[Action]()
            for one in state.played:
                after, more = _followed(one, seen, now)
                left += [after] if after is not None else []
                actions += more
            after_all = replace(state, played=tuple(left))
            planted = [_planted(after_all)] if _planted(after_all) != _planted(state) else []
            return after_all, [*actions, *planted]
    raise AssertionError(f"an injector is never shown {seen!r}")


def _followed(one: Played, seen: Observation, now: float) -> tuple[Played | None, list[Action]]:
    """The table of what follows for one fault. None: it is over."""
    match one.where, seen:
        case _, Tick() if now >= one.until:
            return _over(one, TIME_OVER)
        case Where.RUNNING, Tick() if now >= one.turn_at:
            return replace(one, where=Where.STOPPED, turn_at=now + HALT_S), [_signal(one, signal.SIGSTOP)]
        case Where.STOPPED, Tick() if now >= one.turn_at:
            return replace(one, where=Where.RUNNING, turn_at=now + RUN_S), [_signal(one, signal.SIGCONT)]
        case Where.RUNNING | Where.STOPPED, RankOver(local_rank=one.local_rank):
            return _over(one, "the rank has ended")
        case Where.RUNNING | Where.STOPPED, RoundOver():
            return _over(one, "the ranks are being stopped")
    return one, []


def _over(one: Played, reason: str) -> tuple[None, list[Action]]:
    to_blame = "" if reason == TIME_OVER else _told_of(one.injection)
    goes_on = Strike(local_rank=one.local_rank, signum=signal.SIGCONT, what=to_blame)
    over = FaultOver(fault=one.injection.fault, rank=one.rank, what=one.what, reason=reason)
    return None, [*([] if one.where is Where.PLANTED else [goes_on]), Record(event=over)]


def _on_rank(state: State, asked: Asked, now: float) -> Step:
    wanted = asked.injection
    rank = wanted.rank if wanted.rank >= 0 else min(asked.ranks, default=-1)
    if rank not in asked.ranks:
        here = f"ranks {', '.join(map(str, sorted(asked.ranks)))} run here" if asked.ranks else "no ranks run here now"
        return _refused(state, f"rank {rank} does not run on this node: {here}" if rank >= 0 else here)
    local_rank, pid = asked.ranks[rank]
    if any(one.local_rank == local_rank for one in state.played):
        return _refused(state, f"rank {rank} already has a fault injected")
    who, until = f"rank {rank} (local {local_rank}, pid {pid})", _until(wanted, now)
    one = Played(injection=wanted, rank=rank, local_rank=local_rank, where=Where.STOPPED, until=until, what="")
    match wanted.fault:
        case Fault.KILL:
            one = replace(one, what=f"{who} is killed (SIGKILL)")
            return state, [*_told(one, WATCH_KILL), _signal(one, signal.SIGKILL)]
        case Fault.HANG:
            one = replace(one, what=f"{who} is stopped (SIGSTOP), for {wanted.until_s:g} s at most")
            return _with(state, one), [*_told(one, WATCH_HANG), _signal(one, signal.SIGSTOP)]
        case Fault.SLOW:
            what = f"{who} runs a quarter of its time, for {wanted.until_s:g} s"
            one = replace(one, what=what, where=Where.RUNNING, turn_at=now)
            return _with(state, one), _told(one, WATCH_SLOW)
    raise AssertionError(f"an injector cannot play {wanted.fault!r} on a rank: give it a case here, or its check in CHECKS")


def _on_gpu(state: State, asked: Asked, now: float) -> Step:
    wanted, check = asked.injection, CHECKS[asked.injection.fault]
    if check not in asked.looks_s:
        text = f"this node does not run the check {check!r}, so a real fault of that kind would not be seen either"
        return _refused(state, f"{text}: start its agent with --check-during {check}")
    if wanted.rank >= 0 and wanted.rank not in asked.ranks:
        return _refused(state, f"rank {wanted.rank} does not run on this node")
    index = asked.ranks[wanted.rank][0] if wanted.rank >= 0 else 0
    every_s = asked.looks_s[check]
    seen = f"The check {check} looks every {every_s:g} s" if every_s is not None else "It looks before the next round"
    one = Played(injection=wanted, where=Where.PLANTED, until=_until(wanted, now), what="")
    if wanted.fault is Fault.ECC:
        one = replace(one, what=f"GPU {index} counts one more uncorrected memory error", ecc=str(index))
        watch = WATCH_UNFIT
    else:
        gpu, row = asked.gpus[index] if index < len(asked.gpus) else NO_GPU, xid(wanted.code)
        state = replace(state, records=state.records + 1)
        record = f"3,{state.records},{now * 1e6:.0f},-;NVRM: Xid (PCI:{gpu}): {wanted.code}, injected by holdfast"
        one = replace(one, what=f"the kernel's log says of GPU {gpu}: Xid {wanted.code} ({row.what})", kmsg=record)
        watch = _follows(row.action)
    state = _with(state, one)
    return state, [*_told(one, f"{seen}. {watch}"), _planted(state)]


def _until(wanted: Injection, now: float) -> float:
    return NEVER if wanted.until_s is None else now + wanted.until_s


def _with(state: State, one: Played) -> State:
    return replace(state, played=(*state.played, one))


def _refused(state: State, why: str) -> Step:
    return state, [Answered(ok=False, text=why)]


def _told(one: Played, watch: str) -> list[Action]:
    wanted, what = one.injection, one.what
    event = FaultInjected(fault=wanted.fault, rank=one.rank, what=what, by=wanted.by, for_s=wanted.until_s)
    said = Say(text=f"injected{f' by {wanted.by}' if wanted.by else ''}: {what}", level="warning")
    return [Record(event=event), said, Answered(ok=True, text=f"injected: {what}\n{watch}")]


def _signal(one: Played, signum: int) -> Strike:
    return Strike(local_rank=one.local_rank, signum=signum, what=_told_of(one.injection))


def _told_of(wanted: Injection) -> str:
    return f"injected{f' by {wanted.by}' if wanted.by else ''} (holdfast inject {wanted.fault})"


def _planted(state: State) -> Plant:
    counted = Counter(one.ecc for one in state.played if one.ecc)
    return Plant(kmsg=tuple(one.kmsg for one in state.played if one.kmsg), ecc=dict(counted))


WATCH_KILL = "Watch: its exit is detected within milliseconds, and all ranks restart, if a restart is left (`holdfast why`)."
WATCH_HANG = (
    "Watch: when its limit expires it counts as hung, its stacks are kept, and all ranks restart (`holdfast why`, "
    "`holdfast incidents`); `holdfast status` tells how long it has been silent, and its limit: one that was learned is "
    "--least-limit (600 s) or more."
)
WATCH_SLOW = "Watch: after some three minutes it is named as a straggler (`holdfast status`), if it reports steps or sections."
WATCH_UNFIT = (
    "Watch: the node is found unfit, its job leaves it out if it can do without it, and a spare takes its place "
    "(`holdfast why`; with a supervisor `holdfast nodes` and `holdfast why NODE`)."
)


def _follows(action: str) -> str:
    """What follows an Xid against which that helps."""
    if action in (NONE, RESTART):
        return "Watch: nothing follows. A program causes such an Xid: GPU and node stay in use."
    if action == WATCH:
        return "Watch: the node is degraded, and goes on; with a supervisor it is suspect (`holdfast nodes`)."
    return WATCH_UNFIT
