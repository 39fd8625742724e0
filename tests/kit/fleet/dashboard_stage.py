"""A stage for the dashboard: its files, and a fleet of one's own making behind the paths of the HTTP API.

For what no real fleet shows on a test's word: a thousand nodes, names of ill will, a stream that breaks. What is made up
keeps to the API's own schemas, which a test holds it to.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import holdfast.supervisor

STATIC = Path(holdfast.supervisor.__file__).parent / "web" / "static"
KINDS = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
BEGAN = time.time()
LATER = BEGAN + 3600.0
"""When reports are said to have come, so that no slow test makes them old."""


def rank(number: int, local: int = 0, **other: Any) -> dict[str, Any]:
    """One that runs and gets on."""
    own = {"rank": number, "pid": 4000 + number, "local_rank": local, "beat_age_s": 0.3}
    return {**own, "state": "running", "step": 12_840, "step_s": 0.412, "exitcode": None, **other}


def node(name: str, state: str = "fit", **other: Any) -> dict[str, Any]:
    """One against which nothing is held, unless it is said."""
    usual: dict[str, Any] = {
        "standing": "fit" if state in ("spare", "lost") else state,
        "reason": "",
        "by": "",
        "domain": "",
        "linked": state != "lost",
        "reported_at_unix": LATER,
        "devices": [],
        "history": [{"state": state, "reason": "as it was heard", "at_unix": BEGAN - 900}],
        "jobs": [],
        "repair": None,
    }
    return {"name": name, "state": state, **usual, **other}


def job(name: str, nodes: list[str], **other: Any) -> dict[str, Any]:
    """One that runs on these nodes."""
    usual: dict[str, Any] = {"state": "running", "round": 1, "attempt": 0, "outcome": "", "least": 1, "spares": []}
    usual |= {"waits": "", "is_open": False, "ranks": len(nodes), "trained": 0.97}
    return {
        "name": name,
        **usual,
        "nodes": nodes,
        "lives": [{"life": "l1", "at_unix": BEGAN, "round": 1, "outcome": "", "attempt": 0}],
        **other,
    }


def deed(id: str, node: str, job: str = "", **other: Any) -> dict[str, Any]:
    """A decision."""
    usual = {
        "at_unix": BEGAN,
        "trouble": "worker",
        "seen": "rank 3 ended with exit code 1",
        "policy": "default",
        "act": "restart-workers",
        "reason": "its job's own agents restart the ranks",
        "done": [],
        "outcome": "",
        "ended_at_unix": 0.0,
    }
    return {"id": id, "node": node, "job": job, **usual, **other}


def fleet(nodes: list[Any], jobs: list[Any] = [], deeds: list[Any] = [], **other: Any) -> dict[str, Any]:  # noqa: B006
    """All of it, as /api/fleet says it."""
    usual = {"version": 1, "generation": 1, "policy": "default", "lease_s": 5.0, "at_unix": BEGAN, "swaps": [], "totals": []}
    usual |= {"numbers": hour(0.0), "goodput": 0.97, "replacement_s": None, "replacement_by": ""}
    return {**usual, "nodes": nodes, "jobs": jobs, "deeds": deeds, **other}


def hour(at_unix: float, **other: Any) -> dict[str, Any]:
    """What is remembered of one; `detect`, `act` and `train` by their counts."""
    sums: dict[str, Any] = {"at_unix": at_unix, "incidents": {}, "trained_s": 3500.0, "lost_s": 100.0}
    return sums | {field: {"counts": other.pop(field, []), "sum_s": 0.0} for field in ("detect", "act", "train")} | other


class Stage:
    """It serves until it is closed."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self.fleet, self.version = shown, shown["version"]
        self.answers: dict[str, Any] = {}
        """Path → what GET answers."""
        self.posts: list[tuple[str, Any]] = []
        self.refuses = ""
        """The sentence by which a POST is refused. Empty: it is not."""
        self.is_up = True
        self.answers["/api/role"] = {"role": "operate", "logged_in": False}
        self.answers["/api/deeds"] = shown["deeds"]
        self._streams: list[queue.SimpleQueue[bytes]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def change(self, **changed: Any) -> None:
        """Say that something has changed, to whoever listens."""
        self.version += 1
        usual: dict[str, Any] = {
            "nodes": [],
            "jobs": [],
            "swaps": self.fleet["swaps"],
            "deeds": [],
            "gone": {"nodes": [], "jobs": []},
        }
        said = {"version": self.version, "at_unix": self.fleet["at_unix"], **usual, **changed}
        self.say("change", said)

    def say(self, event: str, value: Any) -> None:
        """To whoever listens."""
        for stream in self._streams:
            stream.put(_event(event, value))

    def cut(self) -> None:
        """End each stream, and take no other until `mend`."""
        self.is_up = False
        for stream in self._streams:
            stream.put(b"")

    def mend(self) -> None:
        self.is_up = True

    def close(self) -> None:
        self.cut()
        self._server.shutdown()
        self._server.server_close()

    # --- its threads ----------------------------------------------------------------------------------------------------

    def stream(self) -> queue.SimpleQueue[bytes]:
        own: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        own.put(_event("fleet", self.fleet))
        self._streams.append(own)
        return own


def _event(name: str, value: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()


def _handler(stage: Stage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if path == "/api/live" and stage.is_up:
                return self._live()
            if path == "/" or path.startswith("/static/"):
                file = STATIC / (Path(path).name or "index.html")
                return self._say(200, KINDS[file.suffix], file.read_bytes())
            if path == "/api/fleet":
                return self._plain(200, stage.fleet)
            if path in stage.answers:
                return self._plain(200, stage.answers[path])
            self._plain(404 if stage.is_up else 503, {"error": f"{path} is not known", "hint": ""})

        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stage.posts.append((unquote(self.path), said))
            if stage.refuses:
                return self._plain(409, {"error": stage.refuses, "hint": ""})
            self._plain(200, {"text": "it is begun"})

        def _live(self) -> None:
            self._head(200, "text/event-stream")
            own = stage.stream()
            while text := own.get():
                try:
                    self.wfile.write(text)
                except OSError:
                    return

        def _plain(self, status: int, value: Any) -> None:
            self._say(status, "application/json", json.dumps(value).encode())

        def _say(self, status: int, kind: str, text: bytes) -> None:
            self._head(status, kind)
            self.wfile.write(text)

        def _head(self, status: int, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Security-Policy", "default-src 'self'")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """To nobody."""

    return Handler
