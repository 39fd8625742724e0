"""`holdfast check [CHECK …]`: is this node fit? Or, with --job, the nodes of a job that runs here."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.cli.agents import ask_job
from holdfast.cli.arguments import reads
from holdfast.cli.choose import json_argument
from holdfast.cli.run.pairs import PAIR_S, verdicts
from holdfast.cli.table import Table, answer
from holdfast.core.config.grammar import endpoint, node_range, some_seconds
from holdfast.core.errors import UsageError
from holdfast.health.check import CHECKS, ROOT, USUAL, entry_points, wanted, with_deadline
from holdfast.health.examiner import plain
from holdfast.health.runner import KILL_S, Examination
from holdfast.health.verdict import FIT, UNFIT, worst

HELP = "whether this node, or those of a running job, are fit: GPUs, NICs, storage, memory, the kernel's log"

MARGIN_S = 5.0  # How much longer than its checks an agent may take to answer.


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "checks", nargs="*", metavar="CHECK", help=f"such as gpu, nic, paths=/data:/scratch (default: {' '.join(USUAL)})"
    )
    parser.add_argument("--list", action="store_true", help="list the checks there are")
    parser.add_argument("--job", metavar="JOB", help="check all nodes of a running job: name, run id or start of a name")
    parser.add_argument(
        "--deadline", type=reads(some_seconds), metavar="S", help="give a check up after S seconds (default: its own)"
    )
    parser.add_argument("--root", metavar="DIR", help=f"where the host's file system begins (default: ${ROOT}, or /)")
    parser.add_argument(
        "--pairs", action="store_true", help="test nodes with one another: run this on each, with --nnodes and --rdzv-endpoint"
    )
    parser.add_argument("--nnodes", metavar="N", help="with --pairs: how many nodes (default: 2)")
    parser.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="with --pairs: where they meet")
    parser.add_argument("--rdzv-id", metavar="ID", help="with --pairs: name of the test, the same on each")
    parser.add_argument("--node-name", metavar="NAME", help="with --pairs: this node's name (default: its host name)")
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Check, and show. 0: fit, or degraded. 1: unfit. UsageError for flags that go together with no answer."""
    _refuse(options)
    if options.list:
        rows = [(one.name, one.argument or "-", f"{one.deadline_s:g} s", one.help) for one in CHECKS]
        rows += [(name, "-", "15 s", f"of {target}") for name, target in entry_points().items()]
        return answer(options.json, lambda: CHECKS, [Table(("check", "argument", "deadline", "what it looks at"), rows)])
    asked = options.checks or list(USUAL)
    if options.pairs:
        nodes = _pairs(options)
    else:
        nodes = _by_agents(options.job, asked) if options.job else _here(asked, options)
    state = worst(verdict["state"] for verdicts in nodes.values() for verdict in verdicts)
    answer(options.json, lambda: {"state": state, "nodes": nodes}, _parts(nodes, state))
    return 1 if state == UNFIT else 0


def _refuse(options: argparse.Namespace) -> None:
    if options.root and not os.path.isdir(options.root):
        raise UsageError(f"--root: there is no folder {options.root}", hint="where is the host's file system mounted?")
    for_pairs = {
        "--nnodes": options.nnodes, "--rdzv-endpoint": options.rdzv_endpoint, "--rdzv-id": options.rdzv_id,
        "--node-name": options.node_name,
    }  # fmt: skip
    if not options.pairs and (given := [flag for flag, value in for_pairs.items() if value is not None]):
        raise UsageError(f"{', '.join(given)}: only with --pairs", hint="for a job's nodes, give --job")
    if options.pairs and options.nnodes:
        node_range(options.nnodes, "--nnodes")
    if options.pairs and options.rdzv_endpoint:
        endpoint(options.rdzv_endpoint, "--rdzv-endpoint", default_port=None)
    if options.pairs and options.nnodes == "1":
        raise UsageError("--pairs --nnodes 1: a pair has two nodes", hint="how many nodes is this run on?")
    alone = {"--deadline": options.deadline is not None, "--root": options.root, "--pairs": options.pairs}
    if options.job and (given := [flag for flag, is_given in alone.items() if is_given]):
        raise UsageError(f"{', '.join(given)} and --job do not go together", hint="its agents use their own checks")


def _here(asked: Sequence[str], options: argparse.Namespace) -> dict[str, list[Any]]:
    root = options.root or os.environ.get(ROOT) or "/"
    checks = [with_deadline(one, options.deadline) for one in wanted(asked, root)]
    return {socket.gethostname(): list(plain(Examination(checks, root=root).take()))}


def _pairs(options: argparse.Namespace) -> dict[str, list[Any]]:
    if not options.rdzv_endpoint:
        raise UsageError("--pairs: no rendezvous endpoint", hint="give --rdzv-endpoint HOST:PORT, the same on each node")
    name = options.node_name or socket.gethostname()
    flags = ["--nnodes", options.nnodes or "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", options.rdzv_endpoint]
    flags += ["--rdzv-id", options.rdzv_id or "pairs", "--node-name", name]
    found = verdicts(flags, name, os.environ, pair_s=options.deadline or PAIR_S)
    return {node: list(plain([verdict])) for node, verdict in found.items()}


def _by_agents(job: str, asked: Sequence[str]) -> dict[str, list[Any]]:
    """What the agents of all its nodes say. One on this host is asked, and the coordinator has the others asked."""
    patience_s = max((one.check.deadline_s for one in wanted(asked)), default=0.0) + KILL_S + MARGIN_S
    said = ask_job(job, {"ask": "check", "checks": list(asked)}, within_s=patience_s)
    return dict(sorted(said["nodes"].items()))


def _parts(nodes: dict[str, list[Any]], state: str) -> Iterator[str | Table]:
    told = [(node, one) for node, verdicts in nodes.items() for one in verdicts]
    rows = [(node, one["check"], one["state"], f"{one['took_s']:.2f} s", one["reason"]) for node, one in told]
    yield Table(("node", "check", "state", "took", "what was found"), rows)
    yield from (f"{one['check']}: {one['advice']}" for _, one in told if one["advice"] and one["state"] != FIT)
    alone = "this node is" if socket.gethostname() in nodes else f"node {', '.join(nodes)} is"
    who = alone if len(nodes) == 1 else f"the {len(nodes)} nodes are"
    yield f"\n{who} {state}"
