"""Has the GPU done what the script gave it, and does it take more? All that a life in place asks of CUDA, so that a test can
play it.

A script's Python is ahead of its GPU: when an update's code is over, its kernels may wait for a collective still. If that is
aborted, they run all the same, on gradients that are no gradients. So an update counts when the GPU has done it. An error of a
kernel sticks to the process: from then on each call fails, and only a new process helps.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Device:
    """This rank's current GPU, if its script uses one."""

    def mark(self) -> Any:
        """A mark behind all that has been given to it so far. None: nothing is done later than the code says."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return None
        mark = torch.cuda.Event()
        mark.record()
        return mark

    def has_reached(self, mark: Any) -> bool:
        """Whether all before the mark is done. A GPU that is lost has done nothing."""
        try:
            return mark is None or bool(mark.query())
        except RuntimeError:
            return False

    def error(self, *, wait: bool) -> str:
        """Why this process can use it no more, in CUDA's words; empty: it can. `wait`: until all is done that it was given."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return ""
        try:
            if wait:
                torch.cuda.synchronize()
            elif not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream().query()
        except RuntimeError as error:
            return str(error).partition("\n")[0]
        return ""
