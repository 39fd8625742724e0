"""`holdfast status [JOB]`: how is this job now, and what was decided last, for which reason?

From the records, and where an agent answers on its socket from itself: it knows better how its workers are.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.cli.agents import ask_agent
from holdfast.cli.choose import Seen, choose, look_arguments, story
from holdfast.cli.job.jobs import job_plain, since, state
from holdfast.cli.table import Table, answer
from holdfast.core.errors import HoldfastError
from holdfast.core.value import replace, to_plain
from holdfast.telemetry.report.phrasing import count, moment, span
from holdfast.telemetry.report.safe_text import one_line
from holdfast.telemetry.report.timeline import NodeSeen, WorkerSeen

HELP = "how a job is now: nodes, ranks, round, and the last decision with its reason"

ANSWER_S = 1.0  # How long to wait for an agent: it answers between two events, within milliseconds.
Answers = dict[str, dict[str, Any]]  # What each node's agent says of itself now, by the node's name, where it answers.

BASES = {"learned": " learned", "usual": " if it stands still"}
"""What a limit rests on that nobody gave: what healthy ranks have taken, or nothing yet."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    look_arguments(parser)
    parser.add_argument("--nodes", action="store_true", help="every node of the job, as the coordinator on this host knows it")


def run(options: argparse.Namespace) -> int:
    """Show it."""
    seen = story(choose(options.job))
    answers = answers_of(seen)
    if options.nodes:
        table = _seats(seen.path, sorted(answers))
        return answer(options.json, lambda: table, _seat_parts(table))
    return answer(options.json, lambda: shown(seen, answers), _parts(seen, answers))


def _seats(path: str, asked: list[str]) -> dict[str, Any]:
    """The whole table of the last round, and who waits. Nodes of a large job hold only their own row."""
    told = []
    for node in asked:
        said, trouble = ask_agent(path, node, {"ask": "nodes"}, ANSWER_S)
        if "nodes" in said:
            return said
        told.append(trouble)
    raise HoldfastError(told[0] if told else "no agent of this job answers here", hint="ask on the coordinator's host")


def _seat_parts(table: dict[str, Any]) -> Iterator[str | Table]:
    yield Table(("node", "state", "group rank", "ranks"), [_seat_row(row) for row in table["nodes"]])
    if table["left_out"]:
        yield f"and {table['left_out']} more"


def _seat_row(row: dict[str, Any]) -> tuple[object, ...]:
    first, count = row["base_rank"], row["nproc"]
    ranks = "-" if first is None else f"{first}-{first + count - 1}" if count > 1 else first
    return row["name"], row["state"], "-" if row["group_rank"] is None else row["group_rank"], ranks


def _parts(seen: Seen, answers: Answers) -> Iterator[str | Table]:
    job = seen.job
    for name, text in _about(seen):
        yield f"{name:<9} {one_line(text, 2000)}".rstrip()
    if job.nodes:
        yield ""
        yield Table(("node", "agent", "pid", "since"), [_node_row(node, answers) for node in job.nodes])
    if job.life and job.life.workers:
        yield ""
        headings = ("rank", "local", "node", "pid", "state", "progress", "log")
        yield Table(headings, [_worker_row(worker, answers) for worker in job.life.workers])


def _about(seen: Seen) -> Iterator[tuple[str, str]]:
    job = seen.job
    yield from (("job", job.job), ("state", f"{state(job)}, {since(seen)}"))
    if job.reason:
        yield "", job.reason
    if life := job.life:
        size = f"{count(life.world_size, 'rank')} on {count(len(life.nodes), 'node')} ({', '.join(life.nodes)})"
        yield "round", f"{life.round}, attempt {life.attempt}: {size}; {life.reason}"
        yield "master", life.master
    yield from (line for line in zip(("waits", "hint"), job.waits, strict=True) if line[1])
    if job.coordinator and job.is_alive:
        yield "endpoint", job.coordinator
    if job.decisions:
        last = job.decisions[-1]
        yield "decided", f"{last.decision}: {last.reason}"
        left = "" if last.restarts_left is None else f", {count(last.restarts_left, 'restart')} left"
        yield "", f"{moment(last.at_unix)}, in round {last.round}{left}"
    if job.lost_s:
        stepped = all(one.phases["first step"] is not None for one in job.restarts)
        until = "the steps that had been reached" if stepped else "ranks ran again: of steps since, nothing is known"
        times = count(sum(life.lost_s is not None for life in job.lives), "restart")
        yield "lost", f"{span(job.lost_s)} by {times}, until {until}"
    yield from (("excluded", f"{one.name}: {one.reason} ({one.by}, {moment(one.since_unix)})") for one in job.excluded)
    yield from (("straggler", text) for text in job.stragglers)
    yield from (("degraded", text) for text in job.degraded)
    yield "files", seen.path


def _node_row(node: NodeSeen, answers: Answers) -> tuple[object, ...]:
    if node.name in answers:
        agent = str(answers[node.name].get("state", "answers"))
        if why := answers[node.name].get("spare_because"):
            agent = f"spare ({one_line(str(why), 100)})"
        elif why := answers[node.name].get("waits_for"):
            agent = f"{agent}: {one_line(str(why), 200)}"
    else:
        agent = "runs, does not answer" if node.is_running else "gone"
    again = f" (agent {node.agents} of this node)" if node.agents > 1 else ""
    return node.name, agent, node.pid, moment(node.started_at) + again


def _worker_row(worker: WorkerSeen, answers: Answers) -> tuple[object, ...]:
    now, progress = _now(worker, answers)
    code = f" ({now.exitcode})" if now.exitcode is not None else ""
    return now.rank, now.local_rank, now.node, now.pid, now.state + code, described(progress), _log(now.log_dir)


def _log(folder: str | None) -> str:
    """Where its output is. Its folder may be another host's, or hold its error record only."""
    try:
        is_filed = folder is not None and any(name.endswith(".log") for name in os.listdir(folder))
    except OSError:
        is_filed = True
    return folder or "-" if is_filed else "its agent's output"


def _now(worker: WorkerSeen, answers: Answers) -> tuple[WorkerSeen, dict[str, Any]]:
    """(the worker, its progress) as its agent says, where that answers and means the same process."""
    every = answers.get(worker.node, {}).get("workers", ())
    said: dict[str, Any] = next((said for said in every if said.get("pid") == worker.pid), {})
    now = replace(worker, state=str(said.get("state", worker.state)), exitcode=said.get("exitcode", worker.exitcode))
    return now, said.get("progress") or {}


def answers_of(seen: Seen) -> Answers:
    """What the agents say of themselves now."""
    running = [node.name for node in seen.job.nodes if node.is_running]
    asked = {name: ask_agent(seen.path, name, {"ask": "status"}, ANSWER_S)[0] for name in running}
    return {name: said for name, said in asked.items() if said}


def shown(seen: Seen, answers: Answers) -> dict[str, Any]:
    """The job, for programs."""
    job, life = seen.job, seen.job.life
    workers = [_now(worker, answers) for worker in life.workers] if life else []
    return {
        **job_plain(seen),
        "reason": job.reason,
        "round": life.round if life else None,
        "attempt": life.attempt if life else None,
        "world_size": life.world_size if life else None,
        "nodes": [_node_plain(node, answers) for node in job.nodes],
        "workers": [{**to_plain(worker), "progress": progress or None} for worker, progress in workers],
        "coordinator": job.coordinator or None,
        "waits": job.waits[0] or None,
        "waits_hint": job.waits[1] or None,
        "degraded": job.degraded,
        "excluded": [to_plain(one) for one in job.excluded],
        "stragglers": job.stragglers,
        "lost_s": job.lost_s,
    }


def _node_plain(node: NodeSeen, answers: Answers) -> dict[str, Any]:
    said = answers.get(node.name, {})
    why = {name: said.get(name) or None for name in ("spare_because", "waits_for")}
    return {**to_plain(node), "answers": node.name in answers, **why}


def described(progress: Mapping[str, Any]) -> str:
    """`step 120, in save, 0.3 s ago (limits: heartbeat 10 min learned, save 3 min)`; `-` where nothing is known."""
    if not progress:
        return "-"
    if progress.get("overdue"):
        return f"hangs: {progress['overdue']}"
    said = []
    if progress.get("step") is not None:
        said.append(f"step {progress['step']}")
    if progress.get("section"):
        said.append(f"in {progress['section']}")
    if progress.get("beat_age_s") is not None:
        said.append(f"{span(max(progress['beat_age_s'], 0.0))} ago")
    limits = ", ".join(_limit(one) for one in progress.get("limits") or () if one.get("limit_s"))
    if not said:
        return f"no sign yet{f' (limit: {limits})' if limits else ''}"
    return ", ".join(said) + (f" (limits: {limits})" if limits else "")


def _limit(one: Mapping[str, Any]) -> str:
    names = {"first": "start", "awaited": "first heartbeat", "beat": "heartbeat", "out": "out of sections"}
    kind = str(one.get("of"))
    name = names.get(kind, kind.removeprefix("section "))
    return f"{name} {span(one['limit_s'])}{BASES.get(str(one.get('basis')), '')}"
