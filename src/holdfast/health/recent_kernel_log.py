"""Reads what the kernel has logged lately: /dev/kmsg, record by record, with the age of each."""

from __future__ import annotations

import time
from collections.abc import Iterable

from holdfast.core.value import Value, replace
from holdfast.health import injected
from holdfast.health.check import Look
from holdfast.runtime.hardware.kmsg import now_s, parsed, records


class Line(Value):
    """One record."""

    seq: int  # The kernel counts them, from its start on.
    age_s: float  # Seconds since it was said.
    text: str
    is_injected: bool = False  # `holdfast inject` has said it.


def lines(look: Look) -> list[Line]:
    """All that the kernel still holds, oldest first, and what is injected. OSError: it may not be read (kernel.dmesg_restrict,
    a container)."""
    added = _all(injected.kmsg(), time.clock_gettime(time.CLOCK_MONOTONIC))
    try:
        said = _all(records(look.path("dev/kmsg")), _since_boot(look))
    except OSError:
        if not added:  # practice needs no right to read the real one
            raise
        said = []
    last = said[-1].seq if said else 0
    return said + [replace(line, seq=last + line.seq, is_injected=True) for line in added]


def _all(records: Iterable[str], now_s: float) -> list[Line]:
    said = (one for one in map(parsed, records) if one is not None)
    return [Line(seq=seq, age_s=max(0.0, now_s - at_s), text=text.strip()) for seq, at_s, text in said]


def _since_boot(look: Look) -> float:
    uptime = look.text("proc/uptime").split() if look.root != "/" else []
    return float(uptime[0]) if uptime else now_s()
