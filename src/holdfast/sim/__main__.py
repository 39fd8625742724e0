"""Run seeds, or repeat one: `holdfast simulate [--seed N | --seeds FROM:TO]`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from holdfast.sim.scenario import Outcome, run


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when a rule was broken."""
    parser = argparse.ArgumentParser(prog="holdfast simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one and print what happened")
    parser.add_argument("--seeds", default="0:300", metavar="FROM:TO", help="run all of these (default: 0:300)")
    parser.add_argument("--digest", action="store_true", help="print only a digest of everything that happened")
    options = parser.parse_args(argv)
    if options.seed is not None:
        outcome = run(options.seed)
        print(outcome.digest if options.digest else told(outcome))
        return 1 if outcome.violation else 0
    first, last = (int(part) for part in options.seeds.split(":"))
    broken, ends = [], Counter[str]()
    for seed in range(first, last):
        outcome = run(seed)
        ends[outcome.ended] += 1
        if outcome.violation:
            broken.append(outcome)
            print(f"{outcome.violation}\n  repeat it: {command(seed)}", flush=True)
    ended = ", ".join(f"{count} {word}" for word, count in sorted(ends.items()))
    print(f"{last - first} runs: {ended}; {len(broken)} broke a rule")
    return 1 if broken else 0


def told(outcome: Outcome) -> str:
    """One run for a person."""
    verdict = f"BROKEN: {outcome.violation}" if outcome.violation else "every rule was kept"
    return "\n".join((*outcome.lines, f"seed {outcome.seed}, {outcome.seconds:.1f} simulated seconds: {verdict}"))


def command(seed: int) -> str:
    """How to repeat a run."""
    return f"holdfast simulate --seed {seed}"


if __name__ == "__main__":
    sys.exit(main())
