"""What has been added to this host's ills, for practice (`holdfast inject`)? Read by checks beside what the host itself says.

The agent has it in a file without a name, which goes when the agent does, and tells its checks where by a variable.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WHERE = "HOLDFAST_INJECTED"
"""Variable of a check's process. Not there: nothing was added."""


def kmsg() -> tuple[str, ...]:
    """Records of the kernel's log, as /dev/kmsg has them, by the monotonic clock."""
    return tuple(map(str, _told().get("kmsg", ())))


def memory_errors(index: int) -> int:
    """Memory errors of that GPU that were not corrected."""
    return int(_told().get("ecc", {}).get(str(index), 0))


def has_memory_errors() -> bool:
    """Whether any GPU has such errors."""
    return bool(_told().get("ecc"))


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
