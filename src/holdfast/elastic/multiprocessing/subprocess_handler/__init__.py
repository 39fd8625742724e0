"""One worker that is a program. `get_subprocess_handler` is the hook to start it otherwise."""

from __future__ import annotations

from holdfast.elastic.multiprocessing.subprocess_handler.handlers import get_subprocess_handler
from holdfast.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

__all__ = ["SubprocessHandler", "get_subprocess_handler"]
