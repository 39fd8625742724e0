"""`holdfast top [JOB]`: nodes, jobs, ranks and the newest decisions, as they change. `q` ends it.

From the supervisor on this host, where one runs; else from this host's job folders and their agents.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.cli.fleet.supervisor_here import NO_SUPERVISOR, folder_of, socket_of, state_argument
from holdfast.cli.fleet.top_frame import Section, fit, headline, sections
from holdfast.cli.fleet.top_here import fleet_here
from holdfast.cli.table import STYLES, show
from holdfast.core.errors import HoldfastError, ProtocolError, UsageError
from holdfast.supervisor.feed import Feed
from holdfast.telemetry.report.safe_text import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

Frame = tuple[str, list[Section]]

HELP = "nodes, jobs, ranks and decisions as they change, in the terminal"

EVERY_S, PAUSE_S = 1.0, 0.2
"""Between two frames, at most and at least: a supervisor's news come at once."""

AROUND = 5
"""Lines of a table beside its rows: title, headings, a rule, and one above and below."""

LONG = ("reason", "outcome")
"""Columns that get what room there is."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("job", nargs="?", default="", metavar="JOB", help="only this job, with its ranks")
    state_argument(parser)
    parser.add_argument("--once", action="store_true", help="show one frame, and end")


def run(options: argparse.Namespace) -> int:
    """Show it until `q` or Ctrl-C."""
    look, pause_s = _look(options)
    if options.once or not sys.stdout.isatty():
        _print(*look(0.0))
        return 0
    with suppress(KeyboardInterrupt):
        _live(look, pause_s)
    return 0


def _look(options: argparse.Namespace) -> tuple[Callable[[float], Frame], float]:
    """What makes a frame, after at most so many seconds; and how long to wait before it is asked for the next."""
    folder = folder_of(options)
    if not options.state and not os.path.exists(socket_of(options)):

        def here(wait_s: float) -> Frame:
            fleet = fleet_here(options.job)
            return headline(fleet, "this host"), sections(fleet)

        return here, EVERY_S
    feed = Feed(folder)

    def supervisor(wait_s: float) -> Frame:
        silence = ""
        try:
            feed.wait(wait_s)
        except (OSError, ProtocolError) as error:
            if not feed.fleet:
                raise HoldfastError(f"no supervisor answers in {folder}: {error}", hint=NO_SUPERVISOR) from error
            silence = "; it does not answer now"
        if options.job and options.job not in [job["name"] for job in feed.fleet["jobs"]]:
            raise UsageError(f"the supervisor knows no job {options.job!r}", hint="`holdfast top` shows all of them")
        whose = f"supervisor, generation {feed.fleet.get('generation')}{silence}"
        return headline(feed.fleet, whose), sections(feed.fleet, options.job)

    return supervisor, PAUSE_S


def _print(line: str, made: list[Section]) -> None:
    print(one_line(line))
    for section in made:
        print()
        show(section.headings, section.rows, title=one_line(section.title))


def _live(look: Callable[[float], Frame], pause_s: float) -> None:
    from rich.live import Live

    frame = look(0.0)
    with _keyboard() as pressed, Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(*frame, live.console.size.height), refresh=True)
            if pressed(b"q", pause_s):
                return
            frame = look(EVERY_S)


def _drawn(line: str, made: list[Section], height: int) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    drawn: list[RenderableType] = [Text(one_line(line), style="bold", no_wrap=True, overflow="ellipsis")]
    shares = fit([len(section.rows) for section in made], height - 1 - AROUND * len(made))
    for section, rows in zip(made, shares):
        left = f", {len(section.rows) - rows} more" if rows < len(section.rows) else ""
        title = Text(one_line(section.title) + left, style="bold")
        table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", expand=True)
        for heading in section.headings:
            table.add_column(Text(heading), no_wrap=True, overflow="ellipsis", ratio=4 if heading in LONG else 1)
        for row in section.rows[:rows]:
            cells = [one_line(cell, 200) for cell in row]
            table.add_row(*(Text(cell, style=STYLES.get(cell.split(" ")[0], "")) for cell in cells))
        drawn.append(table)
    return Group(*drawn)


@contextmanager
def _keyboard() -> Iterator[Callable[[bytes, float], bool]]:
    """Whether a key is pressed within so many seconds. Without a terminal to read from none ever is."""
    terminal = [0] if os.isatty(0) else []
    before = [termios.tcgetattr(fd) for fd in terminal]
    for fd in terminal:
        tty.setcbreak(fd)
    try:
        yield lambda key, wait_s: any(key in os.read(fd, 64) for fd in select.select(terminal, [], [], wait_s)[0])
    finally:
        for fd, attributes in zip(terminal, before):
            termios.tcsetattr(fd, termios.TCSADRAIN, attributes)
