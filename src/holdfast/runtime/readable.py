"""Can the file be read that a flag names?"""

from __future__ import annotations

import os

from holdfast.core.errors import UsageError

CHECK_FILE = "check its path and rights: it must be readable for this user"


def readable(path: str, flag: str) -> None:
    """UsageError: it cannot."""
    if not os.access(path, os.R_OK):
        what = "cannot be read" if os.path.exists(path) else "does not exist"
        raise UsageError(f"{flag}: {path} {what}", hint=CHECK_FILE)
