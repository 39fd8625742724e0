"""Changes logs of failed jobs as collectors and crashes do: columns before each line, an order of its own, a part that is lost.

A mutation takes the files of a case, by name, and gives as many or fewer. None of them changes which failure it was.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

Files = dict[str, list[str]]


def _clock(number: int) -> tuple[int, int, int]:
    return 5 + number // 3600 % 19, number // 60 % 60, number % 60


def _iso(number: int) -> str:
    hours, minutes, seconds = _clock(number)
    return f"2026-03-04T{hours:02d}:{minutes:02d}:{seconds:02d}"


PREFIXES: dict[str, Callable[[int, str, str], str]] = {
    "cri": lambda n, who, line: f"{_iso(n)}.{n % 1000:03d}456789Z {('stdout', 'stderr')[n % 2]} F {line}",
    "cloudwatch": lambda n, who, line: f"{_iso(n)}.{n % 1000:03d}000+00:00 train/default/8f3c2a7be1{len(who)}d4f {line}",
    "stern": lambda n, who, line: f"\x1b[3{len(who) % 7}m{who}-x7k2p\x1b[0m \x1b[35mtrainer\x1b[0m {line}",
    "compose": lambda n, who, line: f"{who + '-1':14s} | {line}",
    "journald": lambda n, who, line: f"Mar 04 {_iso(n)[11:]} node-17 python3[4711]: {line}",
    "iso": lambda n, who, line: f"{_iso(n)[:10]} {_iso(n)[11:]},{n % 1000:03d} {line}",
    "epoch": lambda n, who, line: f"{1772600000 + n}.{n % 1000:03d} {line}",
    "clock": lambda n, who, line: f"[{_iso(n)[11:]}] {line}",
    "kubectl": lambda n, who, line: f"[pod/{who}/main] {_iso(n)}.123456789Z {line}",
    "rfc5424": lambda n, who, line: f"<14>1 {_iso(n)}.123Z node-17 train 4711 - - {line}",
    "json-file": lambda n, who, line: json.dumps({"log": line + "\n", "stream": "stderr", "time": _iso(n) + ".123Z"}),
    "colours": lambda n, who, line: f"\x1b[0m\x1b[32m{_iso(n)}\x1b[0m \x1b[1m{('INFO ', 'ERROR')[n % 2]}\x1b[0m {line}",
}
"""Twelve columns of collectors: (line's number, who writes the file, line) → the line as it is kept."""


def prefixed(name: str, files: Files) -> Files:
    """With these columns. A kernel's log keeps its own."""
    put = PREFIXES[name]
    return {
        path: [put(number, _who(path), line) for number, line in enumerate(lines)] if not path.startswith("dmesg") else lines
        for path, lines in files.items()
    }


def _who(path: str) -> str:
    """How the collector calls who writes the file: a number in it is its rank's only where the file is one rank's."""
    found = re.match(r"rank_(\d+)\.log", path)
    return f"train-worker-{found[1]}" if found else "train-launcher"


def interleaved(how: str, files: Files, rng: random.Random) -> Files:
    """`one`: all in one file, as they come; `pieces`: some lines of a file, then some of the next; `swapped`: neighbours of
    different writers change places."""
    kernel = {path: lines for path, lines in files.items() if path.startswith("dmesg")}
    others = {path: lines for path, lines in files.items() if path not in kernel}
    if how == "swapped":
        return {**{path: _swapped(lines, rng) for path, lines in others.items()}, **kernel}
    if len(others) == 1:
        return files
    # All files end together, as their ranks do.
    size = 1 if how == "one" else 1 + rng.randrange(1, 24)
    placed = [
        ((number - len(lines)) // size, path, number, _marked(path, line))
        for path, lines in others.items()
        for number, line in enumerate(lines)
    ]
    return {"job.log": [line for _, _, _, line in sorted(placed)], **kernel}


def _marked(path: str, line: str) -> str:
    found = re.match(r"rank_(\d+)\.log", path)
    if found:
        return line if line.startswith("[rank") else f"[rank{found[1]}]: {line}"
    return line if path in ("job.log", "launcher.log") else f"{path.removesuffix('.log')}: {line}"


def _swapped(lines: list[str], rng: random.Random) -> list[str]:
    made = list(lines)
    for at in range(0, len(made) - 1, 2):
        one, other = _MARK.match(made[at]), _MARK.match(made[at + 1])
        if one and other and one[0] != other[0] and rng.random() < 0.3:
            made[at], made[at + 1] = made[at + 1], made[at]
    return made


_MARK = re.compile(r"\[(?:rank|default)\d+\]:|\[1,\d+\]<std|\[pod/[^\]]+\]| *\d+: ")


def cut(files: Files, where: str) -> Files:
    """Without a sixth of the lines of each file, of its beginning or its very last ones."""
    if where == "head":
        return {path: lines[len(lines) // 6 :] for path, lines in files.items()}
    return {path: lines[: max(1, len(lines) - 2)] for path, lines in files.items()}


def without(files: Files, rank: int) -> Files:
    """Without the log of one rank."""
    return {path: lines for path, lines in files.items() if path != f"rank_{rank}.log"}


def skewed(files: Files, rng: random.Random) -> Files:
    """The clocks of the files' hosts differ by up to a minute. Each line begins with a time, as ISO has it."""
    made: Files = {}
    for path, lines in files.items():
        by = rng.randrange(-60, 60)
        made[path] = [_later(line, by) for line in lines]
    return made


def _later(line: str, by: int) -> str:
    found = re.match(r"2026-03-04 (\d\d):(\d\d):(\d\d)", line)
    if found is None:
        return line
    seconds = max(0, int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3]) + by)
    return f"2026-03-04 {seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{line[19:]}"


def read(folder: Path) -> Files:
    return {path.name: path.read_text().split("\n")[:-1] for path in sorted(folder.iterdir())}


def write(folder: Path, files: Files) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder)
