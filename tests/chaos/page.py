"""Writes docs/reference/faults.md from the record of the campaign: which faults were played, and what became of the jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from kit import ROOT

from chaos.fault import Fault, Outcome
from chaos.faults import FAULTS
from chaos.job import HOLDFAST, TORCHRUN

PAGE = ROOT / "docs" / "reference" / "faults.md"

HEAD = """\
# Faults that are played

<!-- Made by `make chaos` from tests/chaos/record.jsonl. Do not edit. -->

`make chaos` plays each of these faults on a real job at a random moment, and judges what becomes of it. The job has one to five
agents; its ranks train one small model, and keep each step. Where a row says DDP they train with PyTorch's
DistributedDataParallel on gloo; else with a stand-in that steps by an all-reduce over sockets: PyTorch's import would only
take time. Agents are started with `--lease 2` and `--rdzv-conf last_call_timeout=1`. A network is one of network namespaces.

A try has come through if

- the result is that of a job to which nothing happens, and no step was left out;
- no two processes ran as one rank at a time;
- the restarts that were spent are those that the fault deserves: one for a failure, none for a change of members;
- the console, `holdfast why` and `holdfast report` name the cause, and where it applies rank and node;
- five seconds after the end no process is left, nor a file in the folder for temporary files or in /dev/shm, nor a socket;
- each agent that had no reason to be lost ended with the right code.

*To train again* is the longest time without a step from the fault on (median). It contains what the fault itself lasts, and
with a hang the limit that was set.

    make chaos                                  the kinds that the record lacks
    make chaos KINDS="kills,hang in C*" TRIES=5 groups, names or patterns, so many tries each
    make chaos SEED=100 JOBS=2                  other moments, so many at a time
    make chaos ARGS="--list"                    all kinds, and what this machine lacks for them
"""

TITLES = {
    "kills": "Something is killed",
    "stops": "Something stands still",
    "hangs": "A rank makes no progress",
    "endings": "A rank ends in a way of its own",
    "descendants": "Ranks that have processes of their own",
    "output": "What a rank writes, and who reads it",
    "disks": "Disks and files",
    "limits": "Memory, processes, processors, descriptors",
    "clocks": "Clocks",
    "network": "Network, names and strangers",
    "nodes": "Nodes that come, go, or are set up in an odd way",
    "signals": "Signals and terminals",
    "spares": "Warm spares",
    "tools": "Commands, operators and debuggers",
}
EXPECTED = {Outcome.TRAINS: "trains on", Outcome.ENDS: "ends, as it should", Outcome.HALTS: "halts and waits, as it should"}

REASONS: dict[str, str] = {
    "node in a freezer 5 s": "all processes of the node, its agent and guardian too, go on in one moment: nobody can end the "
    "rank before, and it lives for some milliseconds. By `client.commit` it replaces no newer checkpoint",
    "agent may write no file": "its new ranks inherit the limit of 0 bytes, as under any launcher, and these write to a file",
}
"""Why a kind does not come through each time, where that is known and stays."""

NOT_PLAYED = {
    "wall clock set": "the machine's own clock is not ours to set: the nodes under Clocks are shown another",
    "machine suspended and resumed": "no host's monotonic clock can be stopped alone; the nearest is `all nodes stop 10 s`",
    "GPU falls off the bus (Xid 79)": "no machine of ours has a GPU to lose; `holdfast inject xid` plays what agents see of it",
    "real NFS server pauses": "no NFS client can be had in a namespace here; under fsfreeze writers wait in the same state (D)",
    "disk reports I/O errors": "the kernel here has no device mapper to make such a disk",
}


def page(records: Sequence[dict[str, Any]]) -> str:
    """The whole page."""
    ours = {name: [told for told in records if told["fault"] == name and told["launcher"] == HOLDFAST] for name in FAULTS}
    theirs = {name: [told for told in records if told["fault"] == name and told["launcher"] == TORCHRUN] for name in FAULTS}
    parts = [HEAD, _summary(ours), _back(ours)]
    for group, title in TITLES.items():
        kinds = [fault for fault in FAULTS.values() if fault.group == group]
        rows = [_row(fault, ours[fault.name]) for fault in kinds]
        parts.append(f"## {title}\n\n" + _table(("fault", "what is done", "tries", "outcome", "to train again"), rows))
    parts += [_beside_torchrun(ours, theirs), _lost(ours), _left_out(ours)]
    return "\n".join(filter(None, parts))


def write(records: Sequence[dict[str, Any]]) -> None:
    PAGE.write_text(page(records))


def _through(tries: Iterable[dict[str, Any]]) -> int:
    return sum(told["outcome"] == "through" for told in tries)


def _summary(ours: dict[str, list[dict[str, Any]]]) -> str:
    played = {name: tries for name, tries in ours.items() if tries}
    whole = sum(_through(tries) == len(tries) for tries in played.values())
    count = sum(map(len, played.values()))
    share = f"{whole / len(played):.1%}" if played else "none"
    return (
        f"In the last run {len(played)} of {len(ours)} kinds were played, in {count} tries. {whole} kinds ({share}) came "
        f"through each time; of the tries {sum(map(_through, played.values()))} did.\n"
    )


def _back(ours: dict[str, list[dict[str, Any]]]) -> str:
    """How soon those train that are promised to after a return."""
    lines = []
    for name, tries in ours.items():
        times = [told["back_s"] for told in tries if told.get("back_s") is not None]
        if times:
            promised = f"{FAULTS[name].back_within_s:g} s are promised"
            lines.append(f"- *{name}*: {median(times):.1f} s, at most {max(times):.1f} s in {len(times)} tries; {promised}\n")
    return "From the last start of a node to the first step after it (median):\n\n" + "".join(lines) if lines else ""


def _row(fault: Fault, tries: list[dict[str, Any]]) -> tuple[str, ...]:
    if not tries:
        return (fault.name, fault.done, "–", "not played", "–")
    through = _through(tries)
    outcome = EXPECTED[fault.outcome] if through == len(tries) else f"**lost, {len(tries) - through} of {len(tries)}**"
    return fault.name, fault.done, str(len(tries)), outcome, _median(tries)


def _median(tries: list[dict[str, Any]]) -> str:
    times = [told["pause_s"] for told in tries if told["outcome"] == "through" and told.get("pause_s") is not None]
    return f"{median(times):.2g} s" if times and median(times) < 10 else f"{median(times):.0f} s" if times else "–"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _beside_torchrun(ours: dict[str, list[dict[str, Any]]], theirs: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for fault in FAULTS.values():
        if fault.torchrun and theirs[fault.name]:
            tries = theirs[fault.name]
            why = "; ".join(dict.fromkeys(problem for told in tries for problem in told["problems"][:1]))
            rows.append(
                (fault.name, _median(ours[fault.name]), _median(tries), f"{_through(tries)} of {len(tries)}", _short(why))
            )
    head = "## Beside torchrun\n\nTorch's own torchrun with the same ranks and faults, its own defaults and a budget as large. "
    head += "It is judged by\nresult, ranks, codes and remains alone, without the folders of logs that it leaves.\n\n"
    return head + _table(("fault", "Holdfast", "torchrun", "torchrun came through", "else"), rows) if rows else ""


def _short(text: str) -> str:
    words = " ".join(text.split()).replace("`", "'")
    return words if len(words) < 160 else words[:157] + "…"


def _lost(ours: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for name, tries in ours.items():
        problems = dict.fromkeys(
            _short(problem) for told in tries if told["outcome"] != "through" for problem in told["problems"][:2]
        )
        if problems:
            rows.append((name, REASONS.get(name, "; ".join(list(problems)[:2]))))
    return "## What does not come through each time\n\n" + _table(("fault", "why"), rows) if rows else ""


def _left_out(ours: dict[str, list[dict[str, Any]]]) -> str:
    rows = [(name, f"needs {', '.join(FAULTS[name].needs) or 'a longer run'}") for name, tries in ours.items() if not tries]
    return "## What was left out\n\n" + _table(("fault", "why"), [*rows, *NOT_PLAYED.items()])
