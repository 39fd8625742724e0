"""How does a rank get on, in a few words? What its agent's monitor says of it (`monitor.machine`), for `holdfast status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.telemetry.report.phrasing import span

BASES = {"learned": " learned", "usual": " if it stands still"}
"""What a limit rests on that nobody gave: what healthy ranks have taken, or nothing yet."""


def described(progress: Mapping[str, Any]) -> str:
    """`step 120, in save, 0.3 s ago (limits: heartbeat 10 min learned, save 3 min)`; `-` where nothing is known."""
    if not progress:
        return "-"
    if progress.get("overdue"):
        return f"hangs: {progress['overdue']}"
    said = []
    if progress.get("step") is not None:
        said.append(f"step {progress['step']}")
    if progress.get("section"):
        said.append(f"in {progress['section']}")
    if progress.get("beat_age_s") is not None:
        said.append(f"{span(max(progress['beat_age_s'], 0.0))} ago")
    limits = ", ".join(_limit(one) for one in progress.get("limits") or () if one.get("limit_s"))
    if not said:
        return f"no sign yet{f' (limit: {limits})' if limits else ''}"
    return ", ".join(said) + (f" (limits: {limits})" if limits else "")


def _limit(one: Mapping[str, Any]) -> str:
    names = {"first": "start", "awaited": "first heartbeat", "beat": "heartbeat", "out": "out of sections"}
    kind = str(one.get("of"))
    name = names.get(kind, kind.removeprefix("section "))
    return f"{name} {span(one['limit_s'])}{BASES.get(str(one.get('basis')), '')}"
