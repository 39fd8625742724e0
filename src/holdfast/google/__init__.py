"""The names of Google's resiliency client, over Holdfast's own: nothing here makes a rank or an agent wait.

    from holdfast.google import DeviceState, GoogleCloudResiliencyClient

or, for code that says `import supervisor`, `holdfast.google.install()` before it. It speaks to Google's host daemon and to
`holdfast daemon` alike. Under `holdfast run` nobody needs it: with GCP_HOST_DAEMON_PORT set the agent reports the ranks.
"""

from __future__ import annotations

import sys

from holdfast.core.wire.google_wire import DeviceState
from holdfast.google.client import GoogleCloudResiliencyClient

__all__ = ["DeviceState", "GoogleCloudResiliencyClient", "install"]


def install() -> None:
    """Have `import supervisor` find this package. ImportError: another `supervisor` has been imported already."""
    here = sys.modules[__name__]
    other = sys.modules.setdefault("supervisor", here)
    if other is not here:
        where = getattr(other, "__file__", None) or "this process"
        raise ImportError(f"another `supervisor` is already imported, from {where}: call holdfast.google.install() first")
