"""`make chaos`: plays kinds of fault, some at a time, and keeps what happened; then writes the page.

    python tests/chaos/campaign.py [--kinds TEXT,…] [--tries N] [--seed N] [--jobs N] [--torchrun] [--lost] [--again]

Goes on where it has stopped: what stands in the record is not played again, but for `--again`. Ctrl-C ends it, and leaves
nothing; whatever becomes of it, a process that outlives it clears away.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos import needs, page
from chaos.fault import Fault
from chaos.faults import FAULTS
from chaos.play import HOLDFAST, TORCHRUN, play

RECORD = Path(__file__).with_name("record.jsonl")

JANITOR = r"""
read -r _
cd /
stem=${1##*/}
for group in /sys/fs/cgroup/"$stem"-* /sys/fs/cgroup/unified/"$stem"-*; do
    [ -d "$group" ] && find "$group" -name cgroup.kill | while read -r one; do echo 1 > "$one"; done
done
grep " $1-" /proc/mounts | while read -r _ at _; do fsfreeze -u "$at"; umount -l "$at"; done
sleep 0.3
for group in /sys/fs/cgroup/"$stem"-* /sys/fs/cgroup/*/"$stem"-*; do
    [ -d "$group" ] && find "$group" -depth -type d -exec rmdir {} \;
done
rm -rf "$1"-* /dev/shm/"$stem"-*
"""
"""Waits until its standard input ends, as it does however the campaign ends."""


class Try(NamedTuple):
    fault: Fault
    seed: int
    launcher: str

    @property
    def key(self) -> tuple[str, int, str]:
        return self.fault.name, self.seed, self.launcher


@contextlib.contextmanager
def tidy() -> Iterator[str]:
    """What the folders of tries begin with. Those that are left when this process has ended are cleared away by another."""
    stem = f"{tempfile.gettempdir()}/hfchaos{os.getpid()}"
    janitor = subprocess.Popen(
        ["sh", "-c", JANITOR, "janitor", stem],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield stem
    finally:
        assert janitor.stdin
        janitor.stdin.close()
        janitor.wait(60)


def records(path: Path = RECORD) -> list[dict[str, Any]]:
    """What has been played; of a try that was played again, the newest."""
    told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return list({(one["fault"], one["seed"], one["launcher"]): one for one in told}.values())


def chosen(kinds: str) -> list[Fault]:
    """By name, by group, or by a pattern; all, where nothing is said."""
    wanted = [word.strip() for word in kinds.split(";" if ";" in kinds else ",") if word.strip()]
    fits = lambda fault, word: fault.name == word or fault.group == word or fnmatch.fnmatchcase(fault.name, word)
    unknown = [word for word in wanted if not any(fits(fault, word) for fault in FAULTS.values())]
    if unknown:
        sys.exit(f"no kind of fault is called {', '.join(unknown)}: see docs/reference/faults.md")
    return [fault for fault in FAULTS.values() if not wanted or any(fits(fault, word) for word in wanted)]


def tries(options: argparse.Namespace) -> Iterator[Try]:
    """The first try of each, then the second."""
    for seed in range(options.seed, options.seed + options.tries):
        for fault in chosen(options.kinds):
            if options.smoke and not fault.smoke:
                continue
            if not options.torchrun:
                yield Try(fault, seed, HOLDFAST)
            elif fault.torchrun:
                yield Try(fault, seed, TORCHRUN)


class Campaign:
    """Plays tries, and writes down each as it ends."""

    def __init__(self, stem: str, record: Path) -> None:
        self.stem, self.record = stem, record
        self.stop = threading.Event()
        self._writes = threading.Lock()
        self._numbers = iter(range(1_000_000))

    def play(self, one: Try) -> dict[str, Any]:
        if self.stop.is_set():
            return {"outcome": "interrupted"}
        with self._writes:
            base = Path(f"{self.stem}-{next(self._numbers)}")
        base.mkdir()
        try:
            told = play(one.fault, one.seed, base, launcher=one.launcher, stop=self.stop)
        finally:
            if kept := os.environ.get("CHAOS_KEEP"):
                subprocess.run(["cp", "-a", str(base), kept])
            shutil.rmtree(base, ignore_errors=True)
        if told["outcome"] not in ("interrupted", "left out"):
            with self._writes, self.record.open("a") as file:
                file.write(json.dumps(told) + "\n")
        return told

    def all(self, wanted: list[Try], at_once: int) -> Iterable[tuple[Try, dict[str, Any]]]:
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            waiting = {pool.submit(self.play, one): one for one in wanted}
            try:
                for done in concurrent.futures.as_completed(waiting):
                    yield waiting[done], done.result()
            except BaseException:
                self.stop.set()
                pool.shutdown(cancel_futures=True)
                raise


def line(number: int, of: int, one: Try, told: dict[str, Any]) -> str:
    pause = f", trained again after {told['pause_s']} s" if told.get("pause_s") is not None else ""
    problems = "".join(f"\n      {problem}" for problem in told.get("problems", []))
    who = "" if one.launcher == HOLDFAST else f" under {one.launcher}"
    what = f"{one.fault.name}{who} (seed {one.seed}, {told.get('took_s', 0)} s{pause})"
    return f"{number}/{of}  {told['outcome']:8}  {what}{problems}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="", help="names, groups or patterns, separated by commas (by ; if a name has one)")
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="tries at a time")
    parser.add_argument("--torchrun", action="store_true", help="the same under torchrun, for those kinds that are compared")
    parser.add_argument("--smoke", action="store_true", help="only those kinds that `make test-all` plays")
    parser.add_argument("--again", action="store_true", help="also what stands in the record already")
    parser.add_argument("--lost", action="store_true", help="also what did not come through, again")
    parser.add_argument("--list", action="store_true", help="print the kinds, and what this machine lacks for them")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    if options.list:
        for fault in chosen(options.kinds):
            print(f"{fault.group:12} {fault.name:40} {needs.missing(fault.needs)}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Also where a shell has started us in the background.
    known = {
        (told["fault"], told["seed"], told["launcher"])
        for told in records(options.record)
        if not options.again and not (options.lost and told["outcome"] != "through")
    }
    wanted = [one for one in tries(options) if one.key not in known]
    left_out = {one.fault.name: reason for one in wanted if (reason := needs.missing(one.fault.needs))}
    wanted = [one for one in wanted if one.fault.name not in left_out]
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")
    begun, lost = time.monotonic(), 0
    with tidy() as stem:
        for number, (one, told) in enumerate(Campaign(stem, options.record).all(wanted, options.jobs), 1):
            lost += told["outcome"] != "through"
            print(line(number, len(wanted), one, told), flush=True)
    print(f"{len(wanted)} tries in {time.monotonic() - begun:.0f} s, {lost} not come through; {len(left_out)} kinds left out")
    if options.record == RECORD:
        kept = records()
        RECORD.write_text("".join(f"{json.dumps(told)}\n" for told in kept))
        page.write(kept)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
