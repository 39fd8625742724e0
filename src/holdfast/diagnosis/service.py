"""A service that says of a log whether its job should go on: NVRx's attribution service, by the same HTTP API, over our rules.

    POST /logs   {"log_path": "/logs/job_cycle3.log", "analysis_intent": "terminal", "job_id": …, "cycle_id": …, "user": …}
    GET  /logs?log_path=…&wait=false   → {"status": …, "result": …, "recommendation": {"action": …, "source": …, "reason": …}}
    GET  /healthz   /stats   /jobs   /inflight

`status` is pending, in_flight or completed; `action` STOP, RESTART, CONTINUE, UNKNOWN or TIMEOUT. Only logs under one root are
read, and clients show a token where there is one: the answers quote logs. One log is read after the other: who asks much,
waits. Where one takes long, the next is read beside it: a file server that hangs holds up its own logs. A log may be told of
before it is written: it is pending, and looked for again each time that somebody asks.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from queue import Full, Queue
from typing import Any
from urllib.parse import parse_qs, urlsplit

from holdfast.core.job.finding import Action, Finding
from holdfast.core.value import Value
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.evidence import Evidence
from holdfast.diagnosis.gather import gather
from holdfast.diagnosis.report import as_json
from holdfast.diagnosis.rule import Rules
from holdfast.runtime.http_server import BoundedHttpServer, JsonHandler
from holdfast.runtime.peer_user import is_ours, user_of

INTENTS = ("progressive", "terminal", "track_only")
MOST_BODY = 64 << 10
MOST_CLIENTS = 256  # At a time.
MOST_SLOW = 8  # So many logs may be slow to read (`Limits.slow_s`); then the others wait.
MOST_KEPT, WORD_CHARS, PATH_CHARS = 10_000, 256, 4096
"""Answers that are remembered; what is kept of each word that comes with a log; and the longest path, which is Linux's."""
MOST_LOG = 4 << 30  # Bytes of one file that are read, from its end.
STOP_FROM = 0.9  # From this confidence on STOP is recommended where a finding advises so.


class Limits(Value):
    """How much is borne."""

    most_waiting: int = 1000  # Logs that may wait to be read; then 503.
    slow_s: float = 30.0
    """After so long the next log is read beside one that is still being read. A GB takes ten seconds at most."""
    most_looking: int = 16  # Requests that look at files at the same time; where more do, the files do not answer (503).
    wait_s: float = 60.0  # How long `GET /logs` waits for an answer, unless wait=false.


class Refused(Exception):
    """A request that is answered with an error: HTTP status, code, and words."""

    def __init__(self, status: int, code: str, words: str) -> None:
        super().__init__(words)
        self.status, self.code, self.words = status, code, words


class Status(StrEnum):
    """How far the reading of a log has come."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    COMPLETED = "completed"


class Job:
    """One log that was submitted."""

    def __init__(self, path: str, said: dict[str, Any]) -> None:
        self.path, self.said = path, said
        self.status = Status.PENDING
        self.answer: dict[str, Any] = {}
        self.done = threading.Event()
        self.let_go = threading.Event()  # The reader has turned from it: it was read, or was not there.
        self.is_absent = False  # It was not there when it was to be read.
        self.begun = 0.0  # When it began to be read.

    def is_slow(self, now: float, slow_s: float) -> bool:
        """Whether it is still being read, after so long that something must be wrong."""
        return self.status == Status.IN_FLIGHT and now - self.begun > slow_s

    def begin(self, now: float) -> None:
        self.status, self.begun = Status.IN_FLIGHT, now

    def is_not_there(self) -> None:
        """It is not written yet."""
        self.status, self.is_absent = Status.PENDING, True

    def wait_again(self) -> None:
        """It is to be looked for once more."""
        self.is_absent = False
        self.let_go.clear()

    def end(self, result: dict[str, Any] | None, recommendation: dict[str, str]) -> None:
        """It was read, or cannot be (`result` None)."""
        self.answer = {"result": result, "recommendation": recommendation}
        self.status = Status.COMPLETED


class Service:
    """Answers on `host`:`port` (0: a free one) for logs under `root`. `read` makes evidence of a log, and `find` finds the
    file behind a path: both touch file servers, which may hang."""

    def __init__(
        self,
        root: str,
        rules: Rules,
        *,
        token: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits = Limits(),  # noqa: B008 (a value)
        read: Callable[..., Evidence] = gather,
        find: Callable[[str], str] = os.path.realpath,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root, self.rules, self.token = os.path.realpath(root), rules, token
        self.limits, self.read, self.find, self.clock = limits, read, find, clock
        self.jobs: OrderedDict[str, Job] = OrderedDict()
        self.counts = {"submitted": 0, "completed": 0, "failed": 0, "refused": 0}
        self._waiting: Queue[Job] = Queue(limits.most_waiting)
        self._asked: dict[str, str] = {}
        """Paths as they were told of → as they are known. Who asks for a verdict then touches no file, which may hang."""
        self._slow = threading.Semaphore(MOST_SLOW)
        self._looking = threading.Semaphore(limits.most_looking)
        self._lock = threading.Lock()
        self._server = BoundedHttpServer((host, port), _handler(self), most=MOST_CLIENTS)
        self.port = int(self._server.server_address[1])
        self._reader = threading.Thread(target=self._read_all, name="attribution", daemon=True)

    def serve(self) -> None:
        """Answer until `close`."""
        self._reader.start()
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """End `serve`."""
        self._server.shutdown()
        self._server.server_close()

    # --- requests -------------------------------------------------------------------------------------------------------

    def submit(self, said: dict[str, Any]) -> dict[str, Any]:
        """A log is told of. Refused."""
        path = self._allowed(said.get("log_path"), may_come=True)
        slow_s = self.limits.slow_s
        if (job := self.jobs.get(path)) is not None and job.is_slow(self.clock(), slow_s):
            raise Refused(503, "STALLED", f"that log has been read for {slow_s:g} s already: does its file server answer?")
        intent = said.get("analysis_intent", "terminal")
        if intent not in INTENTS:
            raise Refused(400, "INVALID_INTENT", f"analysis_intent must be one of {', '.join(INTENTS)}")
        job = Job(path, {key: _word(said.get(key)) for key in ("user", "job_id", "cycle_id")} | {"analysis_intent": intent})
        if intent != "track_only":
            try:
                self._waiting.put_nowait(job)
            except Full:
                raise Refused(503, "OVERLOADED", "too many logs are waiting to be read") from None
        with self._lock:
            self.jobs[path] = job
            self._asked[said["log_path"]] = path
            self.jobs.move_to_end(path)
            self.counts["submitted"] += 1
            while len(self.jobs) > MOST_KEPT:
                self.jobs.popitem(last=False)
            if len(self._asked) > 2 * MOST_KEPT:
                self._asked = {asked: known for asked, known in self._asked.items() if known in self.jobs}
        return {"submitted": True, "log_path": path, "status": job.status}

    def result(self, path: object, *, wait: bool) -> dict[str, Any]:
        """What is known of a log. Refused: it was not told of, or may not be read."""
        known = self._asked.get(path) if isinstance(path, str) else None
        job = self.jobs.get(known or self._allowed(path))
        if job is None:
            raise Refused(404, "NOT_FOUND", "that log was not submitted")
        self._look_again(job)
        if wait and not job.done.wait(self.limits.wait_s) and job.said["analysis_intent"] != "track_only":
            return {"status": job.status, "log_path": job.path, "recommendation": _recommend("TIMEOUT", "not read yet")}
        return {"status": job.status, "log_path": job.path, **job.answer}

    def _look_again(self, job: Job) -> None:
        with self._lock:
            if job.is_absent and not self._waiting.full():
                job.wait_again()
                self._waiting.put_nowait(job)

    def stats(self) -> dict[str, Any]:
        """How much was asked."""
        return self.counts | {"waiting": self._waiting.qsize(), "kept": len(self.jobs), "root": self.root}

    def listed(self, *statuses: str) -> list[dict[str, Any]]:
        """Logs that were told of, the last one last."""
        with self._lock:
            jobs = list(self.jobs.values())
        wanted = [job for job in jobs if job.status in statuses or not statuses]
        return [{"log_path": job.path, "status": job.status, **job.said} for job in wanted]

    def admit(self, header: str, connection: socket.socket) -> None:
        """Let a request pass that shows the token; where there is none, one of this user or of root. Refused."""
        if not self.token:
            if not is_ours(user_of(connection)):
                raise Refused(403, "FORBIDDEN", "this service belongs to another user; with --token-file others may ask")
        elif not hmac.compare_digest(header.encode(), f"Bearer {self.token}".encode()):
            raise Refused(401, "UNAUTHORIZED", "show the token: Authorization: Bearer …")

    def _allowed(self, path: object, *, may_come: bool = False) -> str:
        if not isinstance(path, str) or not os.path.isabs(path) or "\0" in path or len(path) > PATH_CHARS:
            raise Refused(400, "INVALID_PATH", f"log_path must be an absolute path of at most {PATH_CHARS} characters")
        if not self._looking.acquire(blocking=False):
            waiting = self.limits.most_looking
            raise Refused(503, "STALLED", f"files below {self.root} do not answer: {waiting} requests wait")
        try:
            return self._real(path, may_come=may_come)
        except ValueError:  # half of a character's two
            raise Refused(400, "INVALID_PATH", "log_path cannot be the name of a file") from None
        finally:
            self._looking.release()

    def _real(self, path: str, *, may_come: bool) -> str:
        real = self.find(path)
        if os.path.commonpath((real, self.root)) != self.root:
            raise Refused(403, "OUTSIDE_ROOT", "log_path is not below the root of this service")
        if not os.path.isfile(real) and (os.path.exists(real) or not may_come):
            raise Refused(404, "NOT_FOUND", "there is no such log")
        return real

    # --- reading --------------------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        while True:
            job = self._waiting.get()
            self._slow.acquire()
            threading.Thread(target=self._read, args=(job,), daemon=True).start()
            job.let_go.wait(self.limits.slow_s)

    def _read(self, job: Job) -> None:
        job.begin(self.clock())
        try:
            if not os.path.exists(job.path):
                return job.is_not_there()
            evidence = self.read([job.path], self.rules, most_bytes=MOST_LOG)
            if self.find(job.path) != job.path:  # a link that was put in its way since it was submitted: told of as of no log
                return job.is_not_there()
            finding = attribute(evidence)
            took_s = round(self.clock() - job.begun, 3)
            advised = recommendation(finding, evidence, terminal=job.said["analysis_intent"] == "terminal")
            job.end(as_json(finding, sources=1) | {"processing_s": took_s}, advised)
            self.counts["completed"] += 1
        except Exception as error:  # the next log must be read all the same
            job.end(None, _recommend("UNKNOWN", f"it could not be read: {error}"))
            self.counts["failed"] += 1
        finally:
            if not job.is_absent:
                job.done.set()
            self._slow.release()
            job.let_go.set()


def recommendation(finding: Finding, evidence: Evidence, *, terminal: bool) -> dict[str, str]:
    """What to do, in the words of that API."""
    if not finding.rule and not finding.evidence:
        return _recommend("UNKNOWN" if terminal else "CONTINUE", finding.sentence)
    if finding.action == Action.STOP and finding.confidence >= STOP_FROM:
        return _recommend("STOP", finding.sentence)
    if not terminal and not any(one.rule.depth and not one.recovered for one in evidence.sightings):
        return _recommend("CONTINUE", finding.sentence)
    return _recommend("RESTART", finding.sentence)


def _word(said: object) -> object:
    """What is kept of it: who may ask may say much."""
    return said if said is None or (isinstance(said, int) and said.bit_length() < 64) else str(said)[:WORD_CHARS]


def _recommend(action: str, reason: str) -> dict[str, str]:
    return {"action": action, "source": "holdfast", "reason": reason}


def _handler(service: Service) -> type[JsonHandler]:
    class Handler(JsonHandler):
        def do_GET(self) -> None:
            self._answer(self._get)

        def do_POST(self) -> None:
            self._answer(self._post)

        def _answer(self, work: Callable[[], Any]) -> None:
            try:
                if self.path != "/healthz":
                    service.admit(self.headers.get("Authorization", ""), self.connection)
                self.reply(200, work())
            except Refused as refused:
                service.counts["refused"] += 1
                self.reply(refused.status, {"error_code": refused.code, "message": refused.words})

        def _get(self) -> Any:
            asked = urlsplit(self.path)
            said = {key: values[-1] for key, values in parse_qs(asked.query).items()}
            match asked.path:
                case "/logs":
                    return service.result(said.get("log_path"), wait=said.get("wait", "true").lower() not in ("false", "0"))
                case "/healthz":
                    return {"status": "ok"}
                case "/stats":
                    return service.stats()
                case "/jobs" | "/print":
                    return {"jobs": service.listed()}
                case "/inflight":
                    return {"jobs": service.listed(Status.PENDING, Status.IN_FLIGHT)}
            raise Refused(404, "NOT_FOUND", "there is /logs, /healthz, /stats, /jobs and /inflight")

        def _post(self) -> Any:
            if urlsplit(self.path).path != "/logs":
                raise Refused(404, "NOT_FOUND", "only /logs takes a POST")
            body = self.body(MOST_BODY)
            if body is None:
                raise Refused(413, "TOO_LARGE", f"a request has at most {MOST_BODY} bytes, and says how many")
            try:
                said = json.loads(body)
            except (ValueError, RecursionError):
                raise Refused(400, "INVALID_JSON", "the request is no JSON") from None
            if not isinstance(said, dict):
                raise Refused(400, "INVALID_JSON", "the request is no JSON object")
            return service.submit(said)

    return Handler
