"""Did this node pass the pair test before the job? All nodes run that test before this check (`cli.run.pairs`)."""

from __future__ import annotations

import json
import os

from holdfast.health.check import Look
from holdfast.health.verdict import Verdict, degraded, fit

VERDICT = "HOLDFAST_PAIRS_VERDICT"  # Variable in which the verdict is handed down, as JSON.


def pairs(look: Look) -> Verdict:
    """What was found then. Later rounds have the same answer, until the node's agent is started again."""
    told = os.environ.get(VERDICT)
    if not told:
        return fit("does not apply: the job has one node, or this was not asked for with --check-before")
    try:
        return Verdict(**json.loads(told))
    except (ValueError, TypeError):
        return degraded(f"not known: {VERDICT} holds no verdict")
