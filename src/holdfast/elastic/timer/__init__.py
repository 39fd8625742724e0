"""A deadline for a block of code: a worker that is still in it then is killed, and the agent restarts the workers.

    from holdfast.elastic import timer

    timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))   # the agent runs the server
    with timer.expires(after=60):
        loss.backward()

`TORCHELASTIC_ENABLE_FILE_TIMER=1` makes the agent run the server. torch's own client speaks to it as well.
"""

from __future__ import annotations

from .api import TimerClient, TimerRequest, TimerServer, configure, expires
from .file_based_local_timer import FileTimerClient, FileTimerRequest, FileTimerServer
from .local_timer import LocalTimerClient, LocalTimerServer

__all__ = [
    "FileTimerClient",
    "FileTimerRequest",
    "FileTimerServer",
    "LocalTimerClient",
    "LocalTimerServer",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "expires",
]
