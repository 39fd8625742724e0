"""What does an attribution service say of the logs of this job's cycles? The launcher's side; the service is ours or NVRx's.

A thread of the coordinator's agent tells the service of a cycle's log at its beginning (progressive) and its end (terminal),
and asks for the verdict every two seconds. STOP with --ft-attribution-stop-action no-restart ends all restarts.
"""

from __future__ import annotations

import _thread
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlencode, urlsplit

from holdfast.agent.component import Component
from holdfast.core.config.config import RunConfig
from holdfast.core.errors import StartError, UsageError
from holdfast.core.job.cycles import cycle_of, log_path
from holdfast.core.job.events import Event, RoundFormed
from holdfast.rendezvous.coordinator.job import Phase
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.runtime.net.ports import hold_port
from holdfast.runtime.secrets import take_secret

POLL_S = 2.0  # Between two questions; NVRx's.

TELL_S, ASK_S = 2.0, 10.0  # How long a request may take, and a question; what is late is left.

START_POLL_S = 0.1  # Between two looks whether the service that was started answers.

WHOLE_S, LOOK_S = 60.0, 0.02
"""How long a cycle's log may take to have all that its ranks wrote, before the service is told that it is whole; and between
two looks whether it has. Ranks that are being stopped still write, and who reads sooner misses the traceback."""

LAST_S = 1.0  # How long an agent that ends waits until the service has been told of its last cycle.

VERDICT_S = 60.0  # How long to ask for a verdict, unless --ft-attribution-compute-timeout says so.

OWN_PORT = 50050  # Where the service that is started for `localhost` listens, as NVRx's does, unless another one does.

TOKEN = b"HOLDFAST_ATTRIBUTION_TOKEN"


class Attribution(Component):
    """One job's questions. `say` is called by `end_turn` alone."""

    notes = (RoundFormed,)

    def __init__(
        self,
        config: RunConfig,
        say: Callable[[str, str], None],
        keep: Callable[[int], None],
        is_whole: Callable[[str], bool],
        *,
        rendezvous: Callable[[], Rendezvous | None],
        clock: Callable[[], float],
    ) -> None:
        """`keep` hears of the service's process, if one is started here. `is_whole`: nothing more comes from this node into the
        log at a path; any thread may ask. `rendezvous`: the coordinator's machine; None: it is elsewhere. UsageError."""
        ft = config.ft
        self.say, self.keep, self.is_whole, self.rendezvous, self.clock = say, keep, is_whole, rendezvous, clock
        self.prefix = ft.per_cycle_applog_prefix or ""
        self.url = f"http://{ft.attrsvc_host}:{ft.attrsvc_port}" if ft.attrsvc_host else (ft.attribution_endpoint or "")
        self.is_own = self.url == "localhost"
        if not self.is_own and not _is_url(self.url):
            raise UsageError(f"--ft-attribution-endpoint: {self.url!r} is neither localhost nor http://host:port")
        self.job, self.stops = config.rdzv_id, ft.attribution_stop_action == "no-restart"
        self.startup_s = ft.attribution_startup_timeout
        self.within_s = ft.attribution_compute_timeout or VERDICT_S
        self.seen = self.ended = 0
        self.export = ft.attribution_export_url or ""
        if self.export and not _is_url(self.export):
            raise UsageError(f"--ft-attribution-export-url: {self.export!r} is not http://host:port/path")
        self._exported = True  # Whether the last result could be sent there: what stays the same is not said again.
        self._tasks: SimpleQueue[tuple[int, str]] = SimpleQueue()
        self._results: SimpleQueue[tuple[str, str, bool]] = SimpleQueue()
        self._has_thread = False
        self._owed = 0  # Words for the service that it may not have been told yet.
        self._told: SimpleQueue[None] = SimpleQueue()  # One for each that it has been told, or would not take.
        self._service: Any = None
        self._token = (take_secret(TOKEN) or b"").decode()  # out of what workers inherit

    def recorded(self, event: Event, at_unix: float) -> None:
        self.end_turn()

    def end_turn(self) -> None:
        """See what has become of the round, and what was answered."""
        rendezvous = self.rendezvous()
        if rendezvous is not None:
            if rendezvous.phase is Phase.RUNNING and rendezvous.round > self.seen:
                self._end(self.seen)
                self.seen = rendezvous.round
                self._tell(self.seen, "progressive")
            elif rendezvous.phase is not Phase.RUNNING:
                self._end(self.seen)
        while not self._results.empty():
            text, level, stop = self._results.get()
            self.say(text, level)
            if stop and self.stops and rendezvous is not None:
                rendezvous.policy.heed(text)

    def close(self) -> None:
        """The agent ends; whatever is still asked is left."""
        until = self.clock() + LAST_S
        while self._owed and (left_s := until - self.clock()) > 0:
            with suppress(Empty):
                self._told.get(timeout=left_s)
                self._owed -= 1
        if self._service is not None:
            self._service.kill()

    def _end(self, round: int) -> None:
        if round > self.ended:
            self.ended = round
            self._tell(round, "terminal")

    def _tell(self, round: int, intent: str) -> None:
        self._owed += 1
        self._tasks.put((cycle_of(round), intent))
        if not self._has_thread:
            self._has_thread = True
            _thread.start_new_thread(self._work, ())

    # --- in the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        if self.is_own:
            self._start()
        awaited: dict[int, float] = {}
        while True:
            try:
                cycle, intent = self._tasks.get(timeout=POLL_S if awaited else None)
                if intent == "terminal":
                    until, never = self.clock() + WHOLE_S, SimpleQueue[None]()
                    while not self.is_whole(log_path(self.prefix, cycle)) and self.clock() < until:
                        with suppress(Empty):
                            never.get(timeout=LOOK_S)
                self._submit(cycle, intent)
                self._told.put(None)
                if intent == "terminal":
                    awaited = {cycle: 0.0}  # one at a time: what came of an older one matters no more
            except Empty:
                awaited = {cycle: asked + POLL_S for cycle, asked in awaited.items() if not self._ask(cycle, asked)}

    def _start(self) -> None:
        """Start a service. Other jobs on this host may have one too, for other logs: then it is at another port."""
        import subprocess

        held = None
        try:
            held = hold_port(rather=OWN_PORT)
            port, root = str(held.getsockname()[1]), os.path.dirname(self.prefix)
            self.url = f"http://127.0.0.1:{port}"
            argv = [sys.executable, "-m", "holdfast", "attribution", "serve", "--root", root, "--port", port]
            null, env = subprocess.DEVNULL, os.environb | ({TOKEN: self._token.encode()} if self._token else {})
            self._service = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, env=env)
            self.keep(self._service.pid)
            until, never = self.clock() + self.startup_s, SimpleQueue[None]()
            while self._request("GET", "/healthz", None, TELL_S)[0] != 200 and self.clock() < until:
                with suppress(Empty):
                    never.get(timeout=START_POLL_S)
        except (OSError, StartError) as error:
            why = getattr(error, "strerror", None) or str(error)
            self._results.put((f"the attribution service could not be started: {why}", "warning", False))
        finally:
            if held is not None:
                held.close()

    def _submit(self, cycle: int, intent: str) -> None:
        said = {"log_path": log_path(self.prefix, cycle), "job_id": self.job, "cycle_id": cycle, "analysis_intent": intent}
        status, answer = self._request("POST", "/logs", said, TELL_S)
        if status != 200 and intent == "terminal":
            why = answer.get("message") or answer.get("detail") or f"status {status}"
            told = f"the attribution service at {self.url} did not take cycle {cycle}'s log: {why}"
            self._results.put((told, "warning", False))

    def _ask(self, cycle: int, asked_s: float) -> bool:
        """Whether there is no more to ask."""
        query = urlencode({"log_path": log_path(self.prefix, cycle), "wait": "false"})
        status, answer = self._request("GET", f"/logs?{query}", None, ASK_S)
        if status != 200 or answer.get("status") != "completed":
            return asked_s >= self.within_s
        advised = answer.get("recommendation")
        advised = advised if isinstance(advised, dict) else {"action": "UNKNOWN", "reason": str(answer.get("result", ""))[:500]}
        action = str(advised.get("action", "UNKNOWN"))
        text = f"cycle {cycle}: the attribution service says {action}: {str(advised.get('reason', ''))[:1000]}"
        self._results.put((text, "warning" if action in ("STOP", "RESTART") else "info", action == "STOP"))
        if self.export:
            self._send({"job_id": self.job, "cycle_id": cycle, "log_path": log_path(self.prefix, cycle)} | answer)
        return True

    def _send(self, result: dict[str, Any]) -> None:
        """Hand a result on to who collects them. Once, and for `TELL_S` at most: what is late is left."""
        status, answer = self._request("POST", "", result, TELL_S, self.export)
        if not 200 <= status < 300 and self._exported:
            why = answer.get("message") or f"status {status}"
            self._results.put((f"{self.export} did not accept a result: {why}", "warning", False))
        self._exported = 200 <= status < 300

    def _request(
        self, method: str, path: str, said: dict[str, Any] | None, timeout_s: float, url: str = ""
    ) -> tuple[int, dict[str, Any]]:
        """(status, answer) of the server at `url`; empty: the service. Status 0: there was none."""
        to = urlsplit(url or self.url)
        kind = HTTPSConnection if to.scheme == "https" else HTTPConnection
        headers = {"Content-Type": "application/json"}
        if self._token and not url:  # the token is the service's, and nobody else's
            headers["Authorization"] = f"Bearer {self._token}"
        link = kind(to.hostname or "", to.port, timeout=timeout_s)
        try:
            at = (to.path.rstrip("/") if path else to.path or "/") + path + (f"?{to.query}" if to.query else "")
            link.request(method, at, None if said is None else json.dumps(said).encode(), headers)
            response = link.getresponse()
            text = response.read(1 << 20)
            answer = {} if url else json.loads(text or b"{}")
            return response.status, answer if isinstance(answer, dict) else {}
        except (OSError, HTTPException, ValueError) as error:
            return 0, {"message": str(error)}
        finally:
            link.close()


def _is_url(text: str) -> bool:
    """Whether requests can be made to it: `http://host:port`, or https, or with a path."""
    try:
        to = urlsplit(text)
        return to.scheme in ("http", "https") and bool(to.hostname) and to.port != 0
    except ValueError:  # no port is called so
        return False
