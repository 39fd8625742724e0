"""Is the agent alive, for a load balancer, Kubernetes or a person with curl? One tiny HTTP server in a thread.

Every path answers alike: 200 while the last progress is fresh, 503 once it is older than `stale_after_s`, each with a line of
JSON that says how old it is. The caller decides what counts as progress.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.runtime.http_server import BoundedHttpServer, JsonHandler

MOST_CLIENTS = 32  # At a time: an agent has other uses for its descriptors.


class HealthHttpServer:
    """Answers on `port` (0: a free one) of every address, since clients are on other hosts.

    `last_progress_at` returns epoch seconds. If it raises, the answer is 503 with what it said.
    """

    def __init__(
        self,
        last_progress_at: Callable[[], float],
        port: int,
        stale_after_s: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._last_progress_at, self._stale_after_s, self._clock = last_progress_at, stale_after_s, clock
        self._port = port
        self._server: BoundedHttpServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1]) if self._server else self._port

    def start(self) -> None:
        """Listen, and answer from now on. OSError: the port cannot be had."""
        self._server = BoundedHttpServer(("", self._port), _handler_for(self), most=MOST_CLIENTS)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="health-http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening. Any number of times."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def answer(self) -> tuple[int, dict[str, object]]:
        """Status code and body, as of now."""
        try:
            age_s = max(0.0, self._clock() - self._last_progress_at())
        except Exception as error:  # whatever the caller's function does, the answer must be given
            return 503, {"status": "unhealthy", "reason": f"{type(error).__name__}: {error}"}
        alive = age_s <= self._stale_after_s
        return (200 if alive else 503), {
            "status": "healthy" if alive else "unhealthy",
            "last_progress_age_s": round(age_s, 3),
            "stale_after_s": self._stale_after_s,
        }


def _handler_for(health: HealthHttpServer) -> type[JsonHandler]:
    class Handler(JsonHandler):
        def do_GET(self) -> None:
            self.reply(*health.answer())

        do_HEAD = do_GET

    return Handler
