"""What runs in a check's own process? `python -m holdfast.health.child JSON`: one look; its verdict is JSON on descriptor 3."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

from holdfast.core.value import replace, to_plain
from holdfast.health.check import Look
from holdfast.health.verdict import STATES, Verdict

ANSWER_FD = 3
CHARS = 400  # Characters of a reason: it goes to the coordinator, which takes no more than 500.


def main(told: str) -> int:
    """Look, and answer. An exception of the check is its traceback on stderr, and exit code 1."""
    task = json.loads(told)
    module, _, name = task.pop("target").partition(":")
    check = import_module(module)
    for part in name.split("."):
        check = getattr(check, part)
    verdict = check(Look(**task))  # type: ignore[operator]
    if not isinstance(verdict, Verdict) or verdict.state not in STATES:
        raise TypeError(f"a check returns a Verdict, and this one returned {verdict!r}")
    verdict = replace(verdict, reason=str(verdict.reason)[:CHARS], advice=str(verdict.advice)[:CHARS])
    answer = json.dumps(to_plain(verdict), default=str).encode(errors="replace")
    while answer:
        answer = answer[os.write(ANSWER_FD, answer) :]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
