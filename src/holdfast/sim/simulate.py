"""Run seeds, or repeat one: `holdfast simulate [--seed N | --seeds FROM:TO] [--jobs N]`. Or look ahead: `--policy all`."""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from holdfast.core.config.grammar import whole
from holdfast.core.errors import UsageError
from holdfast.sim.goodput import LLAMA_3, options_of, outlook, plot, policies, table
from holdfast.sim.scenario import PLAYS, Outcome
from holdfast.sim.scenario import run as play_seed

AHEAD = {"nodes": "1024,4096,16384", "rate": f"{LLAMA_3:.5f}", "days": "30", "svg": None}
"""What goes with --policy only, and its default."""

WHOLE = cast(Any, partial(whole, at_least=0))  # The parser gives it the argument's name, too.

HELP = "run many simulated nodes with faults, repeatably from a seed, and check that every rule is kept"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--seed", type=WHOLE, help="run this one and print what happened")
    parser.add_argument("--seeds", default="0:300", metavar="FROM:TO", help="run all of these (default: 0:300)")
    parser.add_argument("--play", choices=tuple(PLAYS), default="all", help="what happens in these runs (default: all)")
    parser.add_argument("--digest", action="store_true", help="print only a digest of everything that happened")
    parser.add_argument("--jobs", type=WHOLE, default=0, metavar="N", help="processes that share them (default: one per CPU)")
    parser.add_argument(
        "--policy", help="how much of its time a large job would train: all, names, or a JSON file of costs (sim/goodput.py)"
    )
    parser.add_argument("--nodes", default=AHEAD["nodes"], help="with --policy: sizes of the job (default: %(default)s)")
    parser.add_argument("--rate", default=AHEAD["rate"], help="failures per node and day (default: Llama 3's, %(default)s)")
    parser.add_argument("--days", default=AHEAD["days"], help="of training (default: %(default)s)")
    parser.add_argument("--svg", metavar="FILE", help="draw it, too")


def run(options: argparse.Namespace) -> int:
    """Exit code 1 when a rule was broken."""
    if options.policy is not None:
        return look_ahead(options)
    if ahead := [name for name, value in AHEAD.items() if getattr(options, name) != value]:
        raise UsageError(f"--{ahead[0]} goes with --policy", hint="add --policy all; without it seeds are run")
    if options.seed is not None:
        outcome = play_seed(options.seed, play=options.play)
        print(outcome.digest if options.digest else told(outcome))
        return 1 if outcome.violation else 0
    seeds = seeds_of(options.seeds)
    if not seeds:
        raise UsageError(f"--seeds: {options.seeds!r} names none", hint="FROM:TO, whole numbers, such as 0:300; TO is not run")
    broken, ends, digest = 0, Counter[str](), hashlib.sha256()
    play = "" if options.play == "all" else f" --play {options.play}"
    for outcome in outcomes(seeds, options.jobs or len(os.sched_getaffinity(0)), options.play):
        ends[outcome.ended] += 1
        digest.update(outcome.digest.encode())
        if outcome.violation:
            broken += 1
            print(f"{outcome.violation}\n  repeat it: holdfast simulate --seed {outcome.seed}{play}", flush=True)
    ended = ", ".join(f"{count} {word}" for word, count in sorted(ends.items()))
    print(digest.hexdigest() if options.digest else f"{len(seeds)} runs: {ended}; {broken} broke a rule")
    return 1 if broken else 0


def look_ahead(options: argparse.Namespace) -> int:
    """What `--policy` asks for."""
    nodes, rate, days = options_of(options)
    costs = policies(options.policy, lambda path: Path(path).read_text())
    found = [outlook(one, size, rate, days, options.seed or 0) for size in nodes for one in costs]
    rows = table(found)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    if options.svg:
        try:
            Path(options.svg).write_text(plot(found, f"Share of time that counts, {rate:g} failures per node and day"))
        except OSError as error:
            raise UsageError(f"{options.svg} cannot be written: {error.strerror}", hint="--svg takes a file's name") from None
    return 0


def seeds_of(text: str) -> range:
    """FROM:TO; empty where it is no such thing."""
    first, _, last = text.partition(":")
    return range(int(first), int(last)) if first.isdecimal() and last.isdecimal() else range(0)


def outcomes(seeds: range, jobs: int, play: str) -> Iterator[Outcome]:
    """What became of each, in order, from so many processes."""
    one = partial(play_seed, play=play)
    if jobs < 2 or len(seeds) < 2:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("fork").Pool(min(jobs, len(seeds))) as pool:
        yield from pool.imap(one, seeds, chunksize=16)


def told(outcome: Outcome) -> str:
    """One run for a person."""
    verdict = f"BROKEN: {outcome.violation}" if outcome.violation else "every rule was kept"
    return "\n".join((*outcome.lines, f"seed {outcome.seed}, {outcome.seconds:.1f} simulated seconds: {verdict}"))
