"""Is this agent alive? An HTTP server answers; torch has only the hook.

`TORCHELASTIC_HEALTH_CHECK_PORT` names its port: 200 while the agent's watchdog makes progress, or there is none to watch; 503
once it has made none for `timeout` seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast.elastic.utils.logging import get_logger
from holdfast.telemetry.health_http import HealthHttpServer

log = get_logger(__name__)

TORCHELASTIC_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
HEALTH_TIMEOUT_S = 60  # Without progress of the watchdog for so long, the agent counts as dead. torch: 60.


class HealthCheckServer:
    """`alive_callback` gives the epoch second of the agent's last progress; `timeout` seconds without any means dead.

    Subclass it to answer in another way, and give it to the agent or the launcher.
    """

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout
        self._http: HealthHttpServer | None = None

    def start(self) -> None:
        """Answer from now on. A port that is taken costs an error in the log, not the job."""
        if self._http is not None:
            return
        http = HealthHttpServer(lambda: self._alive_callback(), self._port, self._timeout)
        try:
            http.start()
        except (OSError, OverflowError) as error:  # the second: no port has such a number
            log.error("No health check server: port %s cannot be served (%s)", self._port, error)
            return
        self._http = http
        log.info("Health check server answers on port %s", http.port)

    def stop(self) -> None:
        """Stop answering."""
        if self._http is not None:
            self._http.stop()
            self._http = None

    @property
    def alive_callback(self) -> Callable[[], int]:
        """What it asks."""
        return self._alive_callback


def create_healthcheck_server(alive_callback: Callable[[], int], port: int, timeout: int) -> HealthCheckServer:
    """A server, not started yet."""
    return HealthCheckServer(alive_callback, port, timeout)


def server_from_environment(alive_callback: Callable[[], int]) -> HealthCheckServer | None:
    """A server at the port that TORCHELASTIC_HEALTH_CHECK_PORT names, started. None: it names none."""
    port = os.getenv(TORCHELASTIC_HEALTH_CHECK_PORT)
    if port is None:
        return None
    try:
        number = int(port)
    except ValueError:
        log.warning("No health check server: %s is %r, not a port", TORCHELASTIC_HEALTH_CHECK_PORT, port)
        return None
    server = create_healthcheck_server(alive_callback, number, HEALTH_TIMEOUT_S)
    server.start()
    return server
