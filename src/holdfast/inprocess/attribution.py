"""Why was a life cut short, and by whom? NVRx's names."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable


class Interruption(enum.Enum):
    """What has happened to a rank."""

    EXCEPTION = enum.auto()
    BASE_EXCEPTION = enum.auto()
    SOFT_TIMEOUT = enum.auto()
    HARD_TIMEOUT = enum.auto()
    TERMINATED = enum.auto()  # Its process is gone.
    UNRESPONSIVE = enum.auto()  # Its node, or its monitor.
    MONITOR_PROCESS_EXCEPTION = enum.auto()


@dataclasses.dataclass(frozen=True)
class InterruptionRecord:
    """One rank's."""

    rank: int
    interruption: Interruption

    @classmethod
    def from_str(cls, string: str) -> InterruptionRecord:
        """What `str` makes of one. ValueError: it is none."""
        found = re.search(r"rank=(\d+).*Interruption\.([A-Z_]+)", string)
        if found is None or found[2] not in Interruption.__members__:
            raise ValueError(f"{string!r} is no InterruptionRecord")
        return cls(int(found[1]), Interruption[found[2]])


def reasons(records: Iterable[InterruptionRecord]) -> str:
    """`rank 3: terminated, ranks 5, 7: exception`."""
    ranks: dict[Interruption, list[int]] = {}
    for record in records:
        ranks.setdefault(record.interruption, []).append(record.rank)
    return ", ".join(
        f"rank{'s' if len(those) > 1 else ''} {', '.join(map(str, sorted(those)))}: {kind.name.lower().replace('_', ' ')}"
        for kind, those in ranks.items()
    )
