"""When is which fault played, and when is it over? The machine of an agent that may be practised on (--allow-inject).

    asked ──▶ kill                                  once
          ──▶ hang ──for_s──▶ undone                a rank is stopped
          ──▶ slow: go ⇄ halt ──for_s──▶ undone     RUN_S and HALT_S in turn
          ──▶ xid, ecc ──for_s──▶ undone            what the node's checks read has something more in it

Whatever happens to the ranks meanwhile ends what is played on them: nobody stays stopped. How a process is stopped, and where
checks read, is for `agent.faults.driver`.
"""

from __future__ import annotations

from holdfast.core.job.events import FaultInjected, FaultOver
from holdfast.core.job.injection import ECC, XID, Injection
from holdfast.core.job.xid import NONE, RESTART, WATCH, xid
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Tick
from holdfast.core.value import Value

RUN_S, HALT_S = 0.005, 0.015
"""Of a rank that is slow. Shorter than most steps, so that each of them takes four times as long, and not every tenth forty
times: a straggler is known by its median."""

CHECKS = {XID: "xid", ECC: "gpu"}
"""The check that finds such a fault."""

NO_GPU = "0000:00:00"
"""Its address in the kernel's log, where the node has none."""


class Asked(Observation):
    """Somebody wants a fault played; `Answered` follows at once."""

    injection: Injection
    ranks: dict[int, tuple[int, int]]
    """Ranks that run on this node: rank → (local rank, pid)."""
    looks_s: dict[str, float | None]
    """Checks that this node is judged by → how often each looks. None: only before a round."""
    gpus: tuple[str, ...] = ()
    """Addresses of this node's GPUs."""


class RankOver(Observation):
    """A rank has ended."""

    local_rank: int


class RoundOver(Observation):
    """The ranks of the round are being stopped."""


class Strike(Action):
    """SIGKILL a rank."""

    local_rank: int


class Halt(Action):
    """Stop a rank."""

    local_rank: int


class LetGo(Action):
    """Let a rank go on that was stopped."""

    local_rank: int


class Plant(Action):
    """This, and nothing else, has been added to what the node's checks read."""

    kmsg: tuple[str, ...]
    """Records of the kernel's log."""
    ecc: dict[str, int]
    """GPU's index → memory errors that were not corrected."""


class Answered(Action):
    """What becomes of it, for whoever asked."""

    ok: bool
    text: str


class Played(Value):
    """A fault that is to be undone."""

    injection: Injection
    rank: int
    """-1: it is about a GPU."""
    local_rank: int
    until: float
    what: str
    kmsg: str = ""
    ecc: str = ""
    """Index of the GPU. Empty: it is none of that kind."""


class Injector:
    """The machine."""

    def __init__(self) -> None:
        self.played: list[Played] = []
        self.halted: set[int] = set()
        """Local ranks that are stopped now."""
        self.turn_at: dict[int, float] = {}
        """Of those that are slow: when they are stopped, or let go, next."""
        self.records = 0

    # --- the machine's face ---------------------------------------------------------------------------------------------

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        match seen:
            case Asked():
                return self._asked(seen, now)
            case RankOver(local_rank=local_rank):
                return self._undo([one for one in self._held() if one.local_rank == local_rank], "the rank has ended")
            case RoundOver():
                return self._undo(self._held(), "the ranks are being stopped")
            case Tick():
                return self._late(now)
        raise AssertionError(f"an injector is never shown {seen!r}")

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        return min((*self.turn_at.values(), *(one.until for one in self.played)), default=NEVER)

    # --- what is asked for ----------------------------------------------------------------------------------------------

    def _asked(self, asked: Asked, now: float) -> list[Action]:
        wanted = asked.injection
        if wanted.fault in CHECKS:
            return self._on_gpu(asked, now)
        rank = wanted.rank if wanted.rank >= 0 else min(asked.ranks, default=-1)
        if rank not in asked.ranks:
            here = f"ranks {', '.join(map(str, sorted(asked.ranks)))} run here" if asked.ranks else "no ranks run here now"
            return [Answered(ok=False, text=f"rank {rank} does not run on this node: {here}" if rank >= 0 else here)]
        local_rank, pid = asked.ranks[rank]
        if any(one.local_rank == local_rank for one in self._held()):
            return [Answered(ok=False, text=f"something is played on rank {rank} already")]
        until_s, who = wanted.until_s, f"rank {rank} (local {local_rank}, pid {pid})"
        match wanted.fault:
            case "kill":
                return [*self._told(wanted, rank, f"{who} is killed (SIGKILL)", WATCH_KILL), Strike(local_rank=local_rank)]
            case "hang":
                what = f"{who} is stopped (SIGSTOP), for {until_s:g} s at most"
                begun, watch = self._halt(local_rank), WATCH_HANG
            case _:
                what = f"{who} runs a quarter of its time, for {until_s:g} s"
                begun, watch = [], WATCH_SLOW
                self.turn_at[local_rank] = now
        self.played.append(
            Played(injection=wanted, rank=rank, local_rank=local_rank, until=now + (until_s or NEVER), what=what)
        )
        return [*self._told(wanted, rank, what, watch), *begun]

    def _on_gpu(self, asked: Asked, now: float) -> list[Action]:
        wanted, check = asked.injection, CHECKS[asked.injection.fault]
        if check not in asked.looks_s:
            text = f"this node does not run the check {check!r}, so a real fault of that kind would not be seen either"
            return [Answered(ok=False, text=f"{text}: start its agent with --check-during {check}")]
        index = asked.ranks[wanted.rank][0] if wanted.rank in asked.ranks else 0
        if wanted.rank >= 0 and wanted.rank not in asked.ranks:
            return [Answered(ok=False, text=f"rank {wanted.rank} does not run on this node")]
        until = now + wanted.until_s if wanted.until_s is not None else NEVER
        every_s = asked.looks_s[check]
        seen = f"The check {check} looks every {every_s:g} s" if every_s is not None else "It looks before the next round"
        if wanted.fault == ECC:
            what = f"GPU {index} counts a memory error more that was not corrected"
            played = Played(injection=wanted, rank=-1, local_rank=-1, until=until, what=what, ecc=str(index))
            watch = f"{seen}. {WATCH_UNFIT}"
        else:
            gpu = asked.gpus[index] if index < len(asked.gpus) else NO_GPU
            row, self.records = xid(wanted.code), self.records + 1
            what = f"the kernel's log says of GPU {gpu}: Xid {wanted.code} ({row.what})"
            record = f"3,{self.records},{now * 1e6:.0f},-;NVRM: Xid (PCI:{gpu}): {wanted.code}, injected by holdfast"
            played = Played(injection=wanted, rank=-1, local_rank=-1, until=until, what=what, kmsg=record)
            watch = f"{seen}. {_follows(row.action)}"
        self.played.append(played)
        return [*self._told(wanted, -1, what, watch), self._plant()]

    def _told(self, wanted: Injection, rank: int, what: str, watch: str) -> list[Action]:
        event = FaultInjected(fault=wanted.fault, rank=rank, what=what, by=wanted.by, for_s=wanted.until_s)
        said = Say(text=f"injected{f' by {wanted.by}' if wanted.by else ''}: {what}", level="warning")
        return [Record(event=event), said, Answered(ok=True, text=f"injected: {what}\n{watch}")]

    # --- what follows ---------------------------------------------------------------------------------------------------

    def _held(self) -> list[Played]:
        return [one for one in self.played if one.local_rank >= 0]

    def _late(self, now: float) -> list[Action]:
        actions = self._undo([one for one in self.played if now >= one.until], "its time is over")
        for local_rank, at in list(self.turn_at.items()):
            if now >= at:
                goes = local_rank in self.halted
                self.turn_at[local_rank] = now + (RUN_S if goes else HALT_S)
                actions += self._let_go(local_rank) if goes else self._halt(local_rank)
        return actions

    def _undo(self, over: list[Played], reason: str) -> list[Action]:
        actions: list[Action] = []
        for one in over:
            self.played.remove(one)
            self.turn_at.pop(one.local_rank, None)
            actions += self._let_go(one.local_rank)
            actions.append(Record(event=FaultOver(fault=one.injection.fault, rank=one.rank, what=one.what, reason=reason)))
        return [*actions, self._plant()] if any(one.local_rank < 0 for one in over) else actions

    def _halt(self, local_rank: int) -> list[Action]:
        self.halted.add(local_rank)
        return [Halt(local_rank=local_rank)]

    def _let_go(self, local_rank: int) -> list[Action]:
        if local_rank not in self.halted:
            return []
        self.halted.discard(local_rank)
        return [LetGo(local_rank=local_rank)]

    def _plant(self) -> Plant:
        ecc: dict[str, int] = {}
        for one in self.played:
            if one.ecc:
                ecc[one.ecc] = ecc.get(one.ecc, 0) + 1
        return Plant(kmsg=tuple(one.kmsg for one in self.played if one.kmsg), ecc=ecc)


WATCH_KILL = "Watch: its death is known within milliseconds, and all ranks restart, if a restart is left (`holdfast why`)."
WATCH_HANG = (
    "Watch: when its limit is over it is found to hang, its stacks are kept, and all ranks restart (`holdfast why`, "
    "`holdfast incidents`); `holdfast status` tells how long it has been silent."
)
WATCH_SLOW = "Watch: after some three minutes it is named as a straggler (`holdfast status`), if it reports steps or sections."
WATCH_UNFIT = (
    "Watch: the node is found unfit, its job leaves it out if it can do without it, and a spare takes its place "
    "(`holdfast why`; with a supervisor `holdfast nodes` and `holdfast why NODE`)."
)


def _follows(action: str) -> str:
    """What follows an Xid against which that helps."""
    if action in (NONE, RESTART):
        return "Watch: nothing follows. Such an Xid is a program's doing, and costs neither the GPU nor the node."
    if action == WATCH:
        return "Watch: the node is degraded, and goes on; with a supervisor it is suspect (`holdfast nodes`)."
    return WATCH_UNFIT
