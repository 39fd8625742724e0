"""How much of the capacity trained? Each second of each worker of a job is in exactly one state, while its agent lives.

Folded from the records of all nodes, at any moment of the job: the sums of a job that runs and those of its files later are
made by the same function. What the largest life had, and a later one has not, is `missing`.

Time that was spent on steps which a later life made again, or never saved, did not get the job on. Whether it is known depends
on what ranks tell: the numbers of their steps (`client.progress`), or when a checkpoint was written and a state restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from holdfast.core.job import events
from holdfast.core.value import Value, replace
from holdfast.telemetry.record.reader import Record
from holdfast.telemetry.report.restarts import by_round, is_sight, steps_lost_since
from holdfast.telemetry.report.timeline import Life, Timeline

PRODUCTIVE, LOST, MISSING, IDLE = "productive", "lost steps", "missing", "idle"

STATES = {
    PRODUCTIVE: "steps that stayed; where no rank tells of steps: from its beginnings to its trouble or end",
    LOST: "steps that a later life made again, or that no checkpoint kept",
    "hang": "from the last sign of life of a rank that hung to its being found",
    "detect": "from another trouble to its being seen",
    "stop": "until the last rank of the node was gone",
    "rendezvous": "until the node knew its place in the next round",
    "reclaim": "until the memory of its GPUs was free",
    "start": "until the ranks' Python ran the script",
    "import": "until the script began to join its process group",
    "first collective": "until the ranks had met",
    "restore": "loading a state",
    "first step": "until each rank had made one, with all that a script without a process group does before",
    "spare": "a node that waited while others had a place",
    IDLE: "done, while other ranks were not",
    MISSING: "what the largest life had and this one has not",
}
"""Each with what it means, in the order in which they are shown."""


class Span(Value):
    """Some workers of one node, in one state."""

    node: str  # Empty: of no node (`missing`).
    state: str
    begin: float  # Seconds since the epoch, as is `end`.
    end: float
    workers: int

    @property
    def worker_s(self) -> float:
        """Seconds times workers."""
        return (self.end - self.begin) * self.workers


class Goodput(Value):
    """Of one job, up to a moment."""

    until: float  # That moment, or the job's end (seconds since the epoch).
    worker_s: dict[str, float]  # Seconds times workers, of each of `STATES`.
    goodput: float
    """The part of all of it that was productive, 0 to 1: of all workers that were there, and of those that were missing."""
    present: float  # The same of those that were there.
    spans: tuple[Span, ...]  # Node by node, and in order.


def goodput(records: Sequence[Record], job: Timeline, now: float) -> Goodput:
    """Of `job`, whose records these are in order; `now` is looked at while it runs (seconds since the epoch)."""
    until = now if job.ended_at is None else job.ended_at
    rounds = by_round(records)
    sights = {number: [record for record in own if is_sight(record)] for number, own in rounds.items()}
    spans = [span for agent in _agents(records) for span in _of_agent(agent, job, sights, until)]
    lost = _lost(rounds, job.lives)
    spans = [part for span in spans for part in _without_lost(span, lost)]
    spans += _missing(job.lives, until)
    worker_s = {state: sum(span.worker_s for span in spans if span.state == state) for state in STATES}
    all_s = sum(worker_s.values())
    return Goodput(
        until=until,
        worker_s=worker_s,
        goodput=_part(worker_s[PRODUCTIVE], all_s),
        present=_part(worker_s[PRODUCTIVE], all_s - worker_s[MISSING]),
        spans=tuple(spans),
    )


def _part(some: float, of: float) -> float:
    return some / of if of > 0 else 0.0


def _agents(records: Iterable[Record]) -> list[list[Record]]:
    """Each agent's records, in order: a node may have had several, one after the other."""
    found: dict[str, list[list[Record]]] = {}
    for record in records:
        if isinstance(record.event, events.AgentStarted):
            found.setdefault(record.node, []).append([])
        if record.node in found:
            found[record.node][-1].append(record)
    return [agent for agents in found.values() for agent in agents]


# --- one agent ----------------------------------------------------------------------------------------------------------------


def _of_agent(records: list[Record], job: Timeline, sights: Mapping[int, list[Record]], until: float) -> list[Span]:
    """What its workers did, from its start to its end; `sights` are the records of troubles, by round."""
    started = records[0].event
    assert isinstance(started, events.AgentStarted)
    end = _end(records, started, job, until)
    rounds = by_round(records)
    cuts, exits = [(records[0].at, "rendezvous")], []
    has_steps = any(isinstance(record.event, events.RanksBegun) and record.event.stepped_s is not None for record in records)
    for life in job.lives:
        own = rounds.get(life.round, [])
        if any(isinstance(record.event, events.RoundFormed) for record in own):
            cuts += _of_life(own, life, sights[life.round], has_steps=has_steps)
            exits = [record.at for record in own if isinstance(record.event, events.WorkerExited)]
        elif records[0].at <= life.formed_at < end:
            cuts.append((life.formed_at, "spare"))
    early = sorted(exits)[:-1] if cuts[-1][1] == IDLE else []  # when ranks of the last life ended before its others did
    return _spans(records[0].node, cuts, early, end, started.nproc)


def _end(records: list[Record], started: events.AgentStarted, job: Timeline, until: float) -> float:
    """When an agent's time was over. One that was lost has its place until others go on without it."""
    last = records[-1]
    if isinstance(last.event, events.JobEnded):
        return last.at
    if any(node.name == last.node and node.is_running and node.pid == started.pid for node in job.nodes):
        return until
    return next((life.formed_at for life in job.lives if life.formed_at > last.at), until if job.ended_at is None else last.at)


def _of_life(records: list[Record], life: Life, sights: list[Record], *, has_steps: bool) -> list[tuple[float, str]]:
    """From which moment on a node's workers were in which state, in one life."""
    first = {kind: [record for record in records if isinstance(record.event, kind)] for kind in _LANDMARKS}
    cuts = [(first[events.RoundFormed][0].at, "start")]
    if freed := first[events.GpuMemoryReclaimed]:
        cuts = [(cuts[0][0], "reclaim"), (freed[-1].at, "start")]
    if first[events.WorkerStarted]:
        cuts += _beginnings(first[events.WorkerStarted][0].at, first[events.RanksBegun], has_steps=has_steps)
    gone = max((record.at for kind in (events.WorkersStopped, events.WorkerExited) for record in first[kind]), default=None)
    if life.disturbed_at is None:
        return cuts + ([(gone, IDLE)] if gone is not None else [])
    at = max(life.disturbed_at, cuts[0][0])
    seen = max(at, min((record.at for record in sights), default=at))
    trouble = "hang" if sights and isinstance(sights[0].event, events.RankHung) else "detect"
    cuts = [cut for cut in cuts if cut[0] < at] + [(at, trouble), (seen, "stop")]
    return cuts + ([(max(seen, gone), "rendezvous")] if gone is not None else [])


_LANDMARKS = (
    *(events.RoundFormed, events.GpuMemoryReclaimed, events.WorkerStarted),
    *(events.RanksBegun, events.WorkersStopped, events.WorkerExited),
)


def _beginnings(since: float, told: Sequence[Record], *, has_steps: bool) -> list[tuple[float, str]]:
    begun = told[-1].event if told else None
    if not isinstance(begun, events.RanksBegun) or begun.booted_s is None:
        return [(since, PRODUCTIVE)] if not has_steps else []  # nothing is known of them but that they run
    passed = [
        (begun.booted_s, "import" if begun.joining_s is not None else "first step"),
        (begun.joining_s, "first collective"),
        (begun.joined_s, "first step"),
        (begun.stepped_s, PRODUCTIVE),
    ]
    cuts = [(since + at_s, state) for at_s, state in passed if at_s is not None]
    if not has_steps:
        cuts[-1] = cuts[-1][0], PRODUCTIVE
    if begun.restored_s is None:
        return cuts
    begin, end = since + max(begun.restored_s - begun.restore_s, 0.0), since + begun.restored_s
    goes_on = [state for at, state in cuts if at <= end]
    inside = [cut for cut in cuts if not begin <= cut[0] <= end]
    return [*inside, (begin, "restore"), (end, goes_on[-1] if goes_on else "start")]


def _spans(node: str, cuts: Iterable[tuple[float, str]], early: Sequence[float], end: float, workers: int) -> list[Span]:
    """No moment twice, none missing. A rank that ended `early` is idle from then on."""
    found = []
    ordered = sorted(cuts, key=lambda cut: cut[0])
    for (begin, state), (until, _) in zip(ordered, [*ordered[1:], (end, "")]):
        moments = [begin, *(at for at in early if begin < at < until), min(until, end)]
        for since, to in pairwise(moments):
            done = sum(at <= since for at in early) if state != IDLE else 0
            for count, name in ((workers - done, state), (done, IDLE)):
                if to > since and count > 0:
                    found.append(Span(node=node, state=name, begin=since, end=to, workers=count))
    return found


# --- the job ------------------------------------------------------------------------------------------------------------------


def _lost(rounds: Mapping[int, Sequence[Record]], lives: Sequence[Life]) -> list[tuple[float, float]]:
    """The parts of the job's time whose steps did not stay."""
    found = []
    for life, following in pairwise(lives):
        since = steps_lost_since(rounds[life.round], rounds[following.round])
        if since is not None:
            found.append((since, life.disturbed_at if life.disturbed_at is not None else following.formed_at))
    return found


def _without_lost(span: Span, lost: Iterable[tuple[float, float]]) -> list[Span]:
    """A productive span, and what of it did not stay."""
    if span.state != PRODUCTIVE:
        return [span]
    for begin, end in lost:
        if begin < span.end and span.begin < end:
            parts = [
                replace(span, end=max(span.begin, begin)),
                replace(span, state=LOST, begin=max(span.begin, begin), end=min(span.end, end)),
                replace(span, begin=min(span.end, end)),
            ]
            return [part for part in parts if part.end > part.begin]
    return [span]


def _missing(lives: Sequence[Life], until: float) -> list[Span]:
    """What a life has fewer of than the largest before it."""
    found, most = [], 0
    for life, following in zip(lives, [*lives[1:], None]):
        most = max(most, life.world_size)
        end = following.formed_at if following is not None else until
        if life.world_size < most and end > life.formed_at:
            found.append(Span(node="", state=MISSING, begin=life.formed_at, end=end, workers=most - life.world_size))
    return found


def shares(found: Goodput) -> Mapping[str, float]:
    """Each state's part of all, of those that occurred, 0 to 1."""
    all_s = sum(found.worker_s.values())
    return {state: _part(some_s, all_s) for state, some_s in found.worker_s.items() if some_s > 0}
