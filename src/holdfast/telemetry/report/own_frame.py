"""Which line of the user's own does a traceback lead to? Below it are a library's, as a rule, which nobody here can mend."""

from __future__ import annotations

import re

from holdfast.core.job.ends import TRACEBACK

MOST_LINES = 60  # Of a traceback beyond which its middle is left out (a recursion has a thousand equal ones).

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
_MARGIN = re.compile(r"^ +\| ?", re.MULTILINE)  # Of what an exception group holds.
_LIBRARY = re.compile(r"^.*[/\\](?:site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]|^(?=<frozen )")


def own_frame(traceback: str) -> list[str]:
    """The last frame outside of libraries, as Python shows it, with its source line where that is known, and where below it the
    error was raised. Empty: there is no frame. Of an error with causes it is the last one's, which has not been handled."""
    traceback = _MARGIN.sub("", traceback) if f"Group {TRACEBACK}" in traceback else traceback
    lines = traceback.rsplit(TRACEBACK, 1)[-1].splitlines()
    frames = [(at, found) for at, line in enumerate(lines) if (found := _FRAME.match(line))]
    if not frames:
        return []
    at, frame = next((one for one in reversed(frames) if not _LIBRARY.search(one[1]["file"])), frames[-1])
    source = lines[at + 1 : at + 2]
    shown = [lines[at].strip(), *(f"  {line.strip()}" for line in source if not _FRAME.match(line) and line.startswith("   "))]
    last = frames[-1][1]
    if frame is not last:
        inside = _LIBRARY.sub("", last["file"])
        shown.append(f"raised below it, in {inside}:{last['line']}{', in ' + last['function'] if last['function'] else ''}")
    return shown


def folded(traceback: str) -> list[str]:
    """Its lines, without the middle where they are too many."""
    lines = traceback.rstrip().split("\n")
    if len(lines) <= MOST_LINES:
        return lines
    head, tail = MOST_LINES // 4, MOST_LINES // 2
    return [*lines[:head], f"  … {len(lines) - head - tail} lines left out …", *lines[-tail:]]
