"""Which faults has `holdfast inject` added to what this host says? Checks read them beside the host's own.

The agent has them in a file without a name, which goes with the agent, and a variable tells its checks where.
"""

from __future__ import annotations

import json
import os
from typing import Any

WHERE = "HOLDFAST_INJECTED"  # Variable of a check's process. Not there: nothing was added.


def kmsg() -> tuple[str, ...]:
    """Records of the kernel's log, as /dev/kmsg has them, by the monotonic clock."""
    return tuple(map(str, _told().get("kmsg", ())))


def memory_errors(index: int) -> int:
    """Memory errors of that GPU that were not corrected."""
    return int(_told().get("ecc", {}).get(str(index), 0))


def _told() -> dict[str, Any]:
    path = os.environ.get(WHERE)
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            told: dict[str, Any] = json.load(file)
    except (OSError, ValueError):  # it is just being written anew, or the agent has ended
        return {}
    return told
