"""Is this agent alive? An HTTP server answers; torch has only the hook.

`TORCHELASTIC_HEALTH_CHECK_PORT` names its port: 200 while the agent's watchdog makes progress, or there is none to watch; 503
once it has made none for `timeout` seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.elastic.utils.logging import get_logger
from holdfast.telemetry.health_http import HealthHttpServer

log = get_logger(__name__)


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
        except OSError as error:
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
