"""What went wrong where nothing failed? A rank whose last line is another than all others', a loss that has grown, steps that
have become slow, and silence before somebody ended the job; pure.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from statistics import median

from holdfast.core.job.finding import UNSURE, Action, Class, Finding, Quote
from holdfast.core.value import replace
from holdfast.diagnosis.evidence import Evidence
from holdfast.diagnosis.hangs.suspects import KEPT, are_few, blame
from holdfast.diagnosis.logs.tail import LEAST, Tail
from holdfast.diagnosis.tables import EFFECT

LEAST_RANKS = 4  # By fewer ranks' last lines nothing tells which is another.
SILENT_S, SILENT = 300.0, 10.0  # Silence: so long, and so many times as long as lines were apart.
GROWN = 1.5  # A loss that ends at so many times its lowest has grown.
SLOWER = 3.0  # And steps that take so many times as long have become slow.
NONE = 3  # Norms at the end that are no numbers: one alone is a step that was left out.
FEW = 5  # Numbers at the end, and as many at the beginning, that are compared.

HELP = {
    Class.DATA: ("go back to an earlier checkpoint; see the learning rate and the data since then", UNSURE[Class.DATA]),
    Class.UNKNOWN: ("see stacks, the data's source, and clocks and links of all nodes", Action.ASK),
}
"""What to do about a loss that went wrong; and about a job that only got slow or silent."""

_NUMBERS = re.compile(r"\d+(?:\.\d+)?")


def uneventful(evidence: Evidence) -> Finding | None:
    """The surest of these. None: nothing of the kind."""
    found = [one for tail in evidence.tails for one in _of_numbers(tail)]
    return _of_last_lines(evidence) or next(filter(None, found), None)


def _of_numbers(tail: Tail) -> tuple[Finding | None, ...]:
    return _of_loss(tail.losses), _of_norms(tail.norms), _of_pace(tail.times), _of_silence(tail)


def _of_last_lines(evidence: Evidence) -> Finding | None:
    last = {rank: line for tail in evidence.tails for rank, line in tail.last.items()}
    shapes = {rank: _NUMBERS.sub("0", line) for rank, line in last.items()}
    if len(last) < LEAST_RANKS or any(one.rank is not None and one.rule.depth == EFFECT for one in evidence.sightings):
        return None  # of ranks that complain of one another the last lines differ by chance
    most = Counter(shapes.values()).most_common(1)[0][0]
    odd = sorted(rank for rank, shape in shapes.items() if shape != most)
    if not are_few(odd, len(last)):
        return None
    says = f"said last, other than all others: {last[odd[0]][:120]}"
    other = next(rank for rank, shape in shapes.items() if shape == most)
    quotes = [Quote(text=last[rank], rank=rank) for rank in (odd[0], other)]
    return blame("last-lines", Class.UNKNOWN, 0.55, odd, says, KEPT, quotes)


def _of_loss(losses: Sequence[float]) -> Finding | None:
    if len(losses) < LEAST:
        return None
    end = losses[-FEW:]
    if not any(map(math.isfinite, end)):
        return _found(Class.DATA, "the loss is no number any more", f"loss: {end[-1]}")
    usual = [one for one in losses if math.isfinite(one)]
    lowest = min(median(usual[at : at + FEW]) for at in range(len(usual) - FEW + 1)) if len(usual) >= FEW else 0.0
    now = median(usual[-FEW:])
    if lowest > 0 and now > GROWN * lowest and now > lowest + 1:
        return _found(Class.DATA, f"the loss has grown from {lowest:g} to {now:g}", f"loss: {now:g}")
    return None


def _of_norms(norms: Sequence[float]) -> Finding | None:
    if len(norms) < FEW or any(map(math.isfinite, norms[-NONE:])):
        return None
    return _found(Class.DATA, "the gradients' norm is no number any more", f"gradient norm: {norms[-1]}")


def _of_pace(times: Sequence[float]) -> Finding | None:
    if len(times) < 2 * FEW:
        return None
    before, now = median(times[:FEW]), median(times[-FEW:])
    if before <= 0 or now < SLOWER * before:
        return None
    return _found(Class.UNKNOWN, f"steps take {now / before:.0f} times as long as in the beginning", f"{before:g} -> {now:g}")


def _of_silence(tail: Tail) -> Finding | None:
    if tail.usual_s <= 0 or tail.silent_s < max(SILENT_S, SILENT * tail.usual_s):
        return None
    says = f"nothing was written for {tail.silent_s / 60:.0f} minutes before it was ended: it hung"
    return _found(Class.UNKNOWN, says, f"{tail.silent_s:.0f} s")


def _found(kind: Class, says: str, shows: str) -> Finding:
    advice, action = HELP[kind]
    return replace(blame("uneventful", kind, 0.55, (), says, advice, [Quote(text=shows)]), action=action)
