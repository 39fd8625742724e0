"""Run seeds, or repeat one: `holdfast simulate [--seed N | --seeds FROM:TO] [--jobs N]`. Or look ahead: `--policy all`."""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from holdfast.core.errors import UsageError
from holdfast.sim.goodput import LLAMA_3, options_of, outlook, plot, policies, table
from holdfast.sim.scenario import PLAYS, Outcome, run


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when a rule was broken."""
    parser = argparse.ArgumentParser(prog="holdfast simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one and print what happened")
    parser.add_argument("--seeds", default="0:300", metavar="FROM:TO", help="run all of these (default: 0:300)")
    parser.add_argument("--play", choices=tuple(PLAYS), default="all", help="what happens in these runs (default: all)")
    parser.add_argument("--digest", action="store_true", help="print only a digest of everything that happened")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="processes that share them (default: one per CPU)")
    parser.add_argument(
        "--policy", help="how much of its time a large job would train: all, names, or a JSON file of costs (sim/goodput.py)"
    )
    parser.add_argument("--nodes", default="1024,4096,16384", help="with --policy: sizes of the job (default: %(default)s)")
    parser.add_argument("--rate", default=f"{LLAMA_3:.5f}", help="failures per node and day (default: Llama 3's, %(default)s)")
    parser.add_argument("--days", type=float, default=30.0, help="of training (default: 30)")
    parser.add_argument("--svg", metavar="FILE", help="draw it, too")
    options = parser.parse_args(argv)
    if options.policy is not None:
        return look_ahead(options)
    if ahead := [name for name in ("nodes", "rate", "days", "svg") if getattr(options, name) != parser.get_default(name)]:
        parser.error(f"--{ahead[0]} goes with --policy, such as --policy all; without, seeds are run")
    if options.seed is not None:
        outcome = run(options.seed, play=options.play)
        print(outcome.digest if options.digest else told(outcome))
        return 1 if outcome.violation else 0
    seeds = seeds_of(options.seeds)
    if not seeds:
        parser.error(f"--seeds: {options.seeds!r} names none; FROM:TO are whole numbers, and TO is not run itself")
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
    nodes, rate = options_of(options)
    costs = policies(options.policy, lambda path: Path(path).read_text())
    found = [outlook(one, size, rate, options.days, options.seed or 0) for size in nodes for one in costs]
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
    one = partial(run, play=play)
    if jobs < 2 or len(seeds) < 2:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("fork").Pool(min(jobs, len(seeds))) as pool:
        yield from pool.imap(one, seeds, chunksize=16)


def told(outcome: Outcome) -> str:
    """One run for a person."""
    verdict = f"BROKEN: {outcome.violation}" if outcome.violation else "every rule was kept"
    return "\n".join((*outcome.lines, f"seed {outcome.seed}, {outcome.seconds:.1f} simulated seconds: {verdict}"))


if __name__ == "__main__":
    sys.exit(main())
