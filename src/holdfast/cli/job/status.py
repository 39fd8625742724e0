"""`holdfast status [JOB]`: how is this job now, and what was decided last, for which reason?

From the records, and where an agent answers on its socket from itself: it knows better how its workers are.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from holdfast.agent.control.control_client import ask
from holdfast.cli.job.choose import choose, job_argument, json_argument, story
from holdfast.cli.job.jobs import since, state
from holdfast.cli.job.progress import described
from holdfast.cli.table import show, show_json
from holdfast.core.errors import HoldfastError, ProtocolError
from holdfast.core.value import replace, to_plain
from holdfast.telemetry.report.phrasing import count, moment, span
from holdfast.telemetry.report.safe_text import one_line
from holdfast.telemetry.report.timeline import Life, NodeSeen, Timeline, WorkerSeen

HELP = "how a job is now: nodes, ranks, round, and the last decision with its reason"

ANSWER_S = 1.0
"""How long to wait for an agent: it answers between two events, within milliseconds."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    job_argument(parser)
    json_argument(parser)
    parser.add_argument("--nodes", action="store_true", help="every node of the job, as the coordinator on this host knows it")


def run(options: argparse.Namespace) -> int:
    """Show it."""
    path = choose(options.job)
    job, _ = story(path)
    answers = answers_of(path, job)
    if options.nodes:
        return _show_nodes(path, sorted(answers), as_json=options.json)
    if options.json:
        show_json(shown(path, job, answers))
        return 0
    for name, text in _about(path, job):
        print(f"{name:<9} {one_line(text, 2000)}".rstrip())
    if job.nodes:
        print()
        show(("node", "agent", "pid", "since"), [_node_row(node, answers) for node in job.nodes])
    if job.life and job.life.workers:
        print()
        head = "rank", "local", "node", "pid", "state", "progress", "log"
        show(head, [_worker_row(worker, answers) for worker in job.life.workers])
    return 0


def _answer(path: str, node: str, what: str = "status") -> dict[str, Any] | None:
    """None: nobody answers."""
    try:
        return ask(path, node, {"ask": what}, ANSWER_S)
    except (OSError, ProtocolError):
        return None


def _show_nodes(path: str, asked: list[str], *, as_json: bool) -> int:
    """The whole table of the last round, and who waits. Nodes of a large job hold only their own row."""
    told: list[str] = []
    for node in asked:
        answer = _answer(path, node, "nodes") or {}
        if "nodes" not in answer:
            told.append(str(answer.get("error", "it does not say")))
            continue
        if as_json:
            show_json(answer)
            return 0
        head = "node", "state", "group rank", "ranks"
        show(head, [_seat_row(row) for row in answer["nodes"]])
        if answer["left_out"]:
            print(f"and {answer['left_out']} more")
        return 0
    raise HoldfastError(told[0] if told else "no agent of this job answers here", hint="ask on the coordinator's host")


def _seat_row(row: dict[str, Any]) -> tuple[object, ...]:
    first, count = row["base_rank"], row["nproc"]
    ranks = "-" if first is None else f"{first}-{first + count - 1}" if count > 1 else first
    return row["name"], row["state"], "-" if row["group_rank"] is None else row["group_rank"], ranks


def _about(path: str, job: Timeline) -> list[tuple[str, str]]:
    lines = [("job", job.job), ("state", f"{state(job)}, {since(job, time.time())}")]
    if job.reason:
        lines.append(("", job.reason))
    if life := job.life:
        lines.append(("round", f"{life.round}, attempt {life.attempt}: {_size(life)}; {life.reason}"))
        lines.append(("master", life.master))
    if job.coordinator and job.state in ("starting", "running"):
        lines.append(("endpoint", job.coordinator))
    if job.decisions:
        last = job.decisions[-1]
        lines.append(("decided", f"{last.decision}: {last.reason}"))
        left = "" if last.restarts_left is None else f", {count(last.restarts_left, 'restart')} left"
        lines.append(("", f"{moment(last.at_unix)}, in round {last.round}{left}"))
    if job.lost_s:
        lines.append(("lost", f"{span(job.lost_s)} between failures and restarted workers"))
    lines += [("excluded", f"{one.name}: {one.reason} ({one.by}, {moment(one.since_unix)})") for one in job.excluded]
    lines += [("straggler", text) for text in job.stragglers]
    lines += [("degraded", text) for text in job.degraded]
    return [*lines, ("files", path)]


def _size(life: Life) -> str:
    return f"{count(life.world_size, 'rank')} on {count(len(life.nodes), 'node')} ({', '.join(life.nodes)})"


def _node_row(node: NodeSeen, answers: dict[str, dict[str, Any]]) -> tuple[object, ...]:
    if node.name in answers:
        agent = str(answers[node.name].get("state", "answers"))
        if why := answers[node.name].get("spare_because"):
            agent = f"spare ({one_line(str(why), 100)})"
    else:
        agent = "runs, does not answer" if node.is_running else "gone"
    again = f" (agent {node.agents} of this node)" if node.agents > 1 else ""
    return node.name, agent, node.pid, moment(node.started_at) + again


def _worker_row(worker: WorkerSeen, answers: dict[str, dict[str, Any]]) -> tuple[object, ...]:
    now = _now(worker, answers)
    code = f" ({now.exitcode})" if now.exitcode is not None else ""
    how = described(_said(worker, answers).get("progress") or {})
    return now.rank, now.local_rank, now.node, now.pid, now.state + code, how, now.log_dir or "-"


def _now(worker: WorkerSeen, answers: dict[str, dict[str, Any]]) -> WorkerSeen:
    """The worker as its agent says it is, where that answers and means the same process."""
    said = _said(worker, answers)
    return replace(worker, state=str(said.get("state", worker.state)), exitcode=said.get("exitcode", worker.exitcode))


def _said(worker: WorkerSeen, answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What its agent says of it. Empty: nothing."""
    every = answers.get(worker.node, {}).get("workers", ())
    return next((said for said in every if said.get("pid") == worker.pid), {})


def _node_plain(node: NodeSeen, answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    because = answers.get(node.name, {}).get("spare_because") or None
    return {**to_plain(node), "answers": node.name in answers, "spare_because": because}


def _worker_plain(worker: WorkerSeen, answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {**to_plain(_now(worker, answers)), "progress": _said(worker, answers).get("progress") or None}


def answers_of(path: str, job: Timeline) -> dict[str, dict[str, Any]]:
    """By node: what its agent says of itself now, where it answers."""
    return {node.name: answer for node in job.nodes if node.is_running and (answer := _answer(path, node.name))}


def shown(path: str, job: Timeline, answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The job, for programs."""
    life = job.life
    workers = [_worker_plain(worker, answers) for worker in life.workers] if life else []
    return {
        "job": job.job,
        "directory": os.path.abspath(path),
        "state": job.state,
        "outcome": job.outcome,
        "exit_code": job.exit_code,
        "reason": job.reason,
        "started_at_unix": job.started_at,
        "ended_at_unix": job.ended_at,
        "round": life.round if life else None,
        "attempt": life.attempt if life else None,
        "world_size": life.world_size if life else None,
        "nodes": [_node_plain(node, answers) for node in job.nodes],
        "workers": workers,
        "coordinator": job.coordinator or None,
        "last_decision": job.decisions[-1] if job.decisions else None,
        "degraded": job.degraded,
        "excluded": [to_plain(one) for one in job.excluded],
        "stragglers": job.stragglers,
        "lost_s": job.lost_s,
    }
