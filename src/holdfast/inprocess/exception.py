"""What does a `Wrapper` raise? NVRx's names."""

from __future__ import annotations


class RestartError(Exception):
    """What a `Wrapper` raises by itself."""


class RestartAbort(BaseException):
    """There is to be no further restart, on any rank that raises it."""


class HealthCheckError(RestartError):
    """This rank is not fit to go on; the cause is its `__cause__`."""


class InternalError(RestartError):
    """The wrapper itself has failed."""


class TimeoutError(RestartError):  # NVRx's name
    """Something took longer than it may."""


def in_words(error: BaseException) -> str:
    """For a log, which keeps what it is given: the error itself would keep its frames, and all that is in them."""
    return f"{type(error).__name__}: {error}"
