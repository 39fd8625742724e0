"""What stands in one frame of `holdfast top`? Tables of a fleet as /api/fleet tells it, the worst first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.value import Value
from holdfast.core.wire.fleet import NodeState, ReporterState
from holdfast.telemetry.report.phrasing import count, moment, ranges, span

WORST = (NodeState.LOST, NodeState.UNFIT, NodeState.DRAINING, NodeState.SUSPECT, NodeState.FIT, NodeState.SPARE)
DEEDS = 50
"""Decisions in a frame, however large the terminal is."""


class Section(Value):
    """One table of it."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def headline(fleet: Mapping[str, Any], whose: str) -> str:
    """One line: who says so, when, and how many of what there are."""
    states = Counter(str(node.get("state")) for node in fleet.get("nodes") or ())
    parts = [f"{number} {state}" for state, number in sorted(states.items(), key=lambda one: _badness(one[0]))]
    nodes = count(sum(states.values()), "node") + (f" ({', '.join(parts)})" if parts else "")
    running = sum(map(_runs, fleet.get("jobs") or ()))
    return f"{moment(fleet.get('at_unix') or 0.0)} · {whose} · {nodes}, {count(running, 'running job')}"


def sections(fleet: Mapping[str, Any], wanted: str = "") -> list[Section]:
    """Nodes, jobs, ranks and decisions; those of one job where it is named. Ranks are shown where there is one job."""
    jobs = [job for job in fleet.get("jobs") or () if wanted in ("", job.get("name"))]
    jobs.sort(key=lambda job: (not _runs(job), str(job.get("name"))))
    nodes = [node for node in fleet.get("nodes") or () if wanted in ("", *_jobs_of(node))]
    nodes.sort(key=lambda node: (_badness(str(node.get("state"))), str(node.get("name"))))
    deeds = [deed for deed in fleet.get("deeds") or () if wanted in ("", deed.get("job"))]
    running = [job for job in jobs if _runs(job)]
    one = wanted or (str(running[0].get("name")) if len(running) == 1 else "")
    made = [
        Section(title="nodes", headings=("node", "state", "job", "ranks", "gpus", "reason"), rows=tuple(map(_node, nodes))),
        Section(
            title="jobs",
            headings=("job", "state", "round", "attempt", "nodes", "spares", "ranks", "step", "slowest step", "oldest beat"),
            rows=tuple(_job(job, _ranks_of(nodes, str(job.get("name")))) for job in jobs),
        ),
        Section(
            title=f"ranks of {one}",
            headings=("rank", "node", "local", "state", "step", "step took", "heartbeat", "pid"),
            rows=tuple(_rank(rank, node) for rank, node in _ranks_of(nodes, one)) if one else (),
        ),
        Section(
            title="newest decisions",
            headings=("when", "node", "job", "act", "reason", "outcome"),
            rows=tuple(_deed(deed) for deed in deeds[: -DEEDS - 1 : -1]),
        ),
    ]
    return [section for section in made if section.rows]


def fit(lengths: Sequence[int], room: int) -> list[int]:
    """How many rows of each table are shown where there is room for so many: all of the short ones, the rest shared alike."""
    shares, left, unmet = list(lengths), room, len(lengths)
    for at in sorted(range(len(lengths)), key=lambda at: lengths[at]):
        shares[at] = min(lengths[at], max(1, left // unmet))
        left, unmet = left - shares[at], unmet - 1
    return shares


def _badness(state: str) -> int:
    return WORST.index(NodeState(state)) if state in WORST else len(WORST)


def _runs(job: Mapping[str, Any]) -> bool:
    return job.get("state") == ReporterState.RUNNING


def _jobs_of(node: Mapping[str, Any]) -> list[object]:
    return [job.get("job") for job in node.get("jobs") or ()]


def _ranks_of(nodes: Iterable[Mapping[str, Any]], job: str) -> list[tuple[Mapping[str, Any], str]]:
    """The job's ranks in order, each with its node."""
    found = [
        (rank, str(node.get("name")))
        for node in nodes
        for one in node.get("jobs") or ()
        if one.get("job") == job
        for rank in one.get("ranks") or ()
    ]
    return sorted(found, key=lambda one: (one[0].get("rank", -1), one[1]))


def _cells(*values: object) -> tuple[str, ...]:
    return tuple("-" if value in (None, "") else str(value) for value in values)


def _span(seconds: float | None) -> str:
    return "" if seconds is None else span(max(0.0, seconds))


def _node(node: Mapping[str, Any]) -> tuple[str, ...]:
    jobs = node.get("jobs") or ()
    ranks = [rank["rank"] for job in jobs for rank in job.get("ranks") or ()]
    bad = [f"{one['name']} {one['state']}" for one in node.get("devices") or () if one.get("state") != NodeState.FIT]
    names = ", ".join(str(job["job"]) for job in jobs)
    return _cells(node.get("name"), node.get("state"), names, ranges(ranks), ", ".join(bad), node.get("reason"))


def _job(job: Mapping[str, Any], ranks: Sequence[tuple[Mapping[str, Any], str]]) -> tuple[str, ...]:
    steps, took, beats = (
        [rank[field] for rank, _ in ranks if rank.get(field) is not None] for field in ("step", "step_s", "beat_age_s")
    )
    outcome = f" ({job['outcome']})" if job.get("outcome") else ""
    return _cells(
        job.get("name"),
        f"{job.get('state')}{outcome}",
        job.get("round"),
        job.get("attempt"),
        len(job.get("nodes") or ()),
        len(job.get("spares") or ()),
        len(ranks) or job.get("ranks") or "-",
        "-".join(dict.fromkeys((str(min(steps)), str(max(steps))))) if steps else "",
        _span(max(took, default=None)),
        _span(max(beats, default=None)),
    )


def _rank(rank: Mapping[str, Any], node: str) -> tuple[str, ...]:
    code = f" ({rank['exitcode']})" if rank.get("exitcode") is not None else ""
    beat = _span(rank.get("beat_age_s"))
    return _cells(
        rank.get("rank"),
        node,
        rank.get("local_rank"),
        f"{rank.get('state')}{code}",
        rank.get("step"),
        _span(rank.get("step_s")),
        beat and f"{beat} ago",
        rank.get("pid"),
    )


def _deed(deed: Mapping[str, Any]) -> tuple[str, ...]:
    told = (deed.get(field) for field in ("node", "job", "act", "reason"))
    return _cells(moment(deed.get("at_unix") or 0.0), *told, deed.get("outcome") or "not known yet")
