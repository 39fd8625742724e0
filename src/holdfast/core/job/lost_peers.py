"""Which words of an error tell that another rank has gone? The agent asks, and a rank that may begin again in place."""

from __future__ import annotations

OF_OTHERS = (
    "Connection closed by peer", "gloo/transport/", "Application timeout caused pair closure",
    "ncclRemoteError", "remote process exited or there was a network error", "Connection closed by remote peer",
    "NCCL communicator was aborted", "DistBackendError", "DistNetworkError", "DistStoreError", "TCPStore", "HCCL error in: ",
    "The tasks have crashed", "tasks are unhealthy", "JAX distributed service detected fatal errors",
)  # fmt: skip
"""One of these is in what a rank says whose peers are gone: gloo, NCCL, c10d's store, HCCL, JAX. Not what any socket says."""


def follows(error: BaseException) -> bool:
    """Whether an exception tells of another rank's end."""
    if not isinstance(error, Exception):
        return False
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # it has no text
        return False
    return isinstance(error, ConnectionError) or any(words in said for words in OF_OTHERS)
