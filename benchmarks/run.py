"""All benchmarks in one run: `make bench`. `--quick` measures everything once (but no 4 GB workers) and writes no page."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

import whole_run
from harness import TORCHRUN, Bench, Row
from table import as_json, machine, page, say, table

LAUNCHER = "start whole_run restart warm soak fat_worker hang stop footprint"
IN_A_RANK = "monitor in_rank training stash nvrx in_place"
NODES = "host_reports diagnosis join thousands hostile lost_node supervisor dashboard"
ROOT = Path(__file__).parents[1]
ALL = {name: import_module(name) for name in f"{LAUNCHER} {IN_A_RANK} {NODES}".split()}


def main() -> int:
    """Run what was asked for; returns the exit code, which says nothing about speed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*", help=f"some of: {', '.join(ALL)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="once each, as a smoke test")
    parser.add_argument("--no-torchrun", action="store_true", help="Holdfast alone")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-results", help="folder for the JSON")
    options = parser.parse_args()
    if unknown := set(options.which) - ALL.keys():
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that a job under way is ended too
    bench = Bench(quick=options.quick)
    if options.no_torchrun:
        bench.contenders = [contender for contender in bench.contenders if contender != TORCHRUN]
    elif TORCHRUN not in bench.contenders:
        say("PyTorch is not installed: measuring Holdfast alone")
    for contender in bench.contenders:  # so that no first start, which compiles and fills caches, is among those measured
        whole_run.measure(contender)
    where, (rows, failed) = machine(), measured(bench, options.which or list(ALL))

    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / time.strftime("%Y%m%d-%H%M%S.json")
    results.write_text(json.dumps(as_json(rows, bench.quick) | {"machine": where}, indent=1))
    print(table(rows))
    say(f"every sample: {results}")
    if not (failed or options.quick or options.which or options.no_torchrun):
        (ROOT / "docs/benchmarks.md").write_text(page(rows, where, (Path(__file__).parent / "method.md").read_text()))
    return 1 if failed else 0


def measured(bench: Bench, names: list[str]) -> tuple[list[Row], list[str]]:
    """The rows of these benchmarks, in order, and the names of those that could not be measured."""
    rows, failed = [], []
    for name in names:
        begun = time.monotonic()
        try:
            for row in ALL[name].run(bench):  # not all at once: what was measured before a failure stays
                rows.append(row)
        except Exception as error:
            failed.append(name)
            say(f"{name} could not be measured: {error}")
        say(f"{name}: {time.monotonic() - begun:.0f} s")
    return rows, failed


if __name__ == "__main__":
    raise SystemExit(main())
