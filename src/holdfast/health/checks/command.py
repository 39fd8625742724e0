"""What does the user's own command say about this node? Its exit code is the verdict, and its last line the reason."""

from __future__ import annotations

import os
import subprocess

from holdfast.core.value import replace
from holdfast.health.check import Look
from holdfast.health.verdict import DEGRADED, FIT, UNFIT, Verdict

STATES = {0: FIT, 1: UNFIT}
"""By exit code. Any other tells of the command rather than of the node: it was not found (127), or it crashed."""


def command(look: Look) -> Verdict:
    """Run it in a shell. Its children die with our process group at the deadline."""
    done = subprocess.run(
        ["/bin/sh", "-c", look.argument],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"HOLDFAST_CHECK_ROOT": look.root},
        check=False,
    )
    lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
    ended = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    verdict = Verdict(state=STATES.get(done.returncode, DEGRADED), reason=lines[-1] if lines else ended)
    if done.returncode == 0 or not lines:
        return verdict
    return replace(verdict, reason=f"{ended}: {lines[-1]}")
