"""Signals, without what `import signal` costs: its enumerations take 5 ms to make, a tenth of what a launcher needs to start.

`signal` here is the C module behind it: the same functions and numbers, but plain integers.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal
else:
    import _signal as signal

_found = [(getattr(signal, name), name) for name in dir(signal) if name.startswith("SIG") and name[3:4].isalpha()]
NUMBERS: dict[str, int] = {name: number for number, name in sorted(_found)}
"""`SIGTERM` → 15; of several names for one number the usual one comes first, as in `signal.Signals`."""

_NAMES: dict[int, str] = {}
for _name, _number in NUMBERS.items():
    _NAMES.setdefault(_number, _name)


def name_of(signum: int) -> str:
    """15 → `SIGTERM`; a number without a name (a real-time signal) as `signal 40`."""
    return _NAMES.get(signum, f"signal {signum}")
