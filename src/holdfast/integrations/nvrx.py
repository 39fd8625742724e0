"""How does a script with NVRx's own client talk to our agent? Ours takes its place.

NVRx's client looks for the socket of a monitor process, and there is none. In a rank that is watched our client replaces it
when the script imports it (`client.hooks`), with the same methods. A script that starts a monitor of NVRx's and names its
socket keeps NVRx's client.
"""

from __future__ import annotations

import os
from typing import Any

from holdfast.fault_tolerance import rank_monitor_client as ours
from holdfast.fault_tolerance.data import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR


def stand_in(module: Any) -> None:
    """`module`, which is NVRx's `rank_monitor_client`, has our client."""
    theirs = module.RankMonitorClient

    class RankMonitorClient(ours.RankMonitorClient):
        """Ours, or NVRx's where a monitor of that is named."""

        def __new__(cls) -> Any:
            return theirs() if FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR in os.environ else super().__new__(cls)

    module.RankMonitorClient = RankMonitorClient
    module.RankMonitorClientError = ours.RankMonitorClientError
