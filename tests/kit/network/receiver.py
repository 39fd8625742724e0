"""Somebody who is told things by HTTP: keeps what was posted, and does to whoever posts what a test wants."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Post(NamedTuple):
    """One that came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """A server. `answers` are given in order, then 200: a status, one with headers, or None: no answer until the end."""

    def __init__(self, port: int, wait_until: Callable[..., Any]) -> None:
        self.answers: list[int | tuple[int, dict[str, str]] | None] = []
        self.posts: list[Post] = []
        """In order; those that were refused too."""
        self.taken: list[Post] = []
        self.wait_until = wait_until
        self.over, lock = threading.Event(), threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                if handler.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                post = Post(handler.path, dict(handler.headers), body)
                with lock:
                    self.posts.append(post)
                    answer = self.answers.pop(0) if self.answers else 200
                    if answer == 200:
                        self.taken.append(post)
                if answer is None:
                    self.over.wait()
                    return
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                handler.send_response(status)
                for name, value in {"Content-Length": "0", **headers}.items():
                    handler.send_header(name, value)
                handler.end_headers()

            def log_message(handler, format: str, *args: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads, self.server.block_on_close = True, False
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def wait_for(self, count: int, path: str = "") -> list[Post]:
        """The first so many that were taken, at that path."""

        def enough() -> list[Post] | None:
            found = [post for post in list(self.taken) if post.path.startswith(path)]
            return found if len(found) >= count else None

        return self.wait_until(enough, what=f"{count} posts")

    def close(self) -> None:
        """Let go of who still waits, and of the port."""
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def receiver(wait_until: Callable[..., Any], port: int = 0) -> Iterator[Receiver]:
    """One for a test."""
    made = Receiver(port, wait_until)
    try:
        yield made
    finally:
        made.close()
