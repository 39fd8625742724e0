"""A finding as text and as JSON: one sentence, then what it rests on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from holdfast.core.job.finding import ACTIONS, CLASSES, Finding, Quote
from holdfast.core.value import to_plain
from holdfast.telemetry.report.phrasing import count
from holdfast.telemetry.report.safe_text import one_line

SCHEMA = 1  # Version of `as_json`: raised when a key changes its meaning or goes.


def as_json(finding: Finding, *, sources: int = 0) -> dict[str, Any]:
    """The finding for programs. `class` is one of `core.job.finding.CLASSES`."""
    plain: dict[str, Any] = to_plain(finding)
    return {"schema": SCHEMA, "class": plain.pop("kind")} | plain | {"files_read": sources}


def as_lines(finding: Finding, *, sources: int = 0) -> Iterator[str]:
    """The finding for people."""
    yield one_line(finding.sentence, 1000)
    sure = f"{finding.confidence:.0%} sure" + (f", rule {finding.rule}" if finding.rule else "")
    yield f"  class: {finding.kind} ({CLASSES[finding.kind]}); {sure}"
    yield f"  advised: {finding.action} ({ACTIONS[finding.action]})"
    if finding.evidence:
        yield "evidence:"
        yield from (f"  {_where(quote)}{one_line(quote.text, 300)}" for quote in finding.evidence)
    if finding.effects:
        yield "taken for consequences:"
        yield from (f"  {one_line(effect)}" for effect in finding.effects)
    if sources:
        yield f"read: {count(sources, 'file')}"


def _where(quote: Quote) -> str:
    place = f"{os.path.relpath(quote.source)}:{quote.line}: " if quote.source and quote.line else ""
    who = "" if quote.rank is None else f"rank {quote.rank}: "
    return f"{place}{who}"
