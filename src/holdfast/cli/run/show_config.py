"""What does `--print-config` print? Every value, and where it came from."""

from __future__ import annotations

import json
import shlex
import signal
from typing import Any

from holdfast.core.config.config import RunConfig
from holdfast.core.config.draft import Resolved
from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.value import to_plain

VALUE_WIDTH = 44  # Column of the origins; a longer value pushes its own to the right.


def as_text(resolved: Resolved) -> str:
    """One aligned line per value: name, value, origin."""
    values = _values(resolved)
    wide = max(map(len, values))
    rows = [(name, _shown(name, value), resolved.origins.get(name, "default")) for name, value in values.items()]
    across = min(VALUE_WIDTH, max(len(value) for _, value, _ in rows))
    return "\n".join(f"{name:<{wide}}  {value:<{across}}  {origin}" for name, value, origin in rows)


def as_json(resolved: Resolved) -> str:
    """`{"max_restarts": {"value": 3, "origin": "--max-restarts"}, …}`."""
    plain = {
        name: {
            "value": sorted(value) if isinstance(value, frozenset) else to_plain(value),
            "origin": resolved.origins.get(name, "default"),
        }
        for name, value in _values(resolved).items()
    }
    return json.dumps(plain, indent=2, ensure_ascii=False)


def _values(resolved: Resolved) -> dict[str, Any]:
    """Every value by its name; those of `ft` as `ft.monitor` and so on."""
    values = {name: getattr(resolved.config, name) for name in RunConfig.__fields__ if name != "ft"}
    return values | {f"ft.{name}": getattr(resolved.config.ft, name) for name in FaultTolerance.__fields__}


def _shown(name: str, value: Any) -> str:
    if value is None and name.startswith("ft.") and name.endswith(("_timeout", "_timeouts", "_limit")):
        return "none"  # which is something else than nothing said
    if value is None or value == "":
        return "-"
    if name in ("redirects", "tee"):
        return _streams(value)
    if isinstance(value, (dict, tuple, frozenset)):
        return _listed(name, value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _listed(name: str, value: Any) -> str:
    if name == "signals_to_handle":
        return ",".join(signal.Signals(number).name for number in value)
    if name == "training_script_args":
        return shlex.join(value)
    if isinstance(value, dict):
        return ",".join(f"{key}={_shown(name, item)}" for key, item in value.items())
    return ",".join(map(str, sorted(value) if isinstance(value, frozenset) else value))


def _streams(by_rank: dict[int, int]) -> str:
    """As it would be typed: one digit where all ranks agree."""
    values = set(by_rank.values())
    return str(values.pop()) if len(values) == 1 else ",".join(f"{rank}:{value}" for rank, value in by_rank.items())
