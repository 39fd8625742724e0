"""The attribution service: NVRx's HTTP API over our rules; and the launcher, which asks it, and waits for no verdict."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from kit.waiting import wait_for

from holdfast.agent.reporting.attribution import Attribution
from holdfast.diagnosis.gather import gather
from holdfast.diagnosis.rule import load
from holdfast.diagnosis.service import MOST_BODY, Limits, Service
from holdfast.rendezvous.coordinator.job import Phase

MISSING = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'apex'\n"


def ask(url: str, path: str, said: Any = None, token: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = None if said is None else said if isinstance(said, bytes) else json.dumps(said).encode()
    try:
        with urlopen(Request(url + path, body, headers), timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture
def service(holdfast: Any, tmp_path: Path) -> Callable[..., str]:
    """Starts `holdfast attribution serve` for logs below tmp_path/logs; returns its URL."""
    (tmp_path / "logs").mkdir()

    def start(*more: object, **how: Any) -> str:
        running = holdfast.start("attribution", "serve", "--root", tmp_path / "logs", "--port", 0, *more, **how)
        running.wait_for_output("attribution service at ")
        return str(running.stderr.split("service at ")[1].split(" ")[0])

    return start


def test_a_log_is_told_of_read_and_judged(service: Callable[..., str], tmp_path: Path) -> None:
    url, log = service(), tmp_path / "logs" / "job_cycle0.log"
    log.write_text("".join(f"{rank}: {line}\n" for rank in range(4) for line in MISSING.splitlines()))
    assert ask(url, "/healthz") == (200, {"status": "ok"})
    assert ask(url, "/logs", {"log_path": str(log), "job_id": "j", "cycle_id": 0})[0] == 200
    status, said = ask(url, f"/logs?{urlencode({'log_path': str(log)})}")
    assert status == 200 and said["status"] == "completed"
    assert said["recommendation"]["action"] == "STOP" and "apex" in said["recommendation"]["reason"]
    assert said["result"]["class"] == "environment" and said["result"]["everywhere"]
    assert ask(url, "/stats")[1]["completed"] == 1 and ask(url, "/inflight")[1] == {"jobs": []}


@pytest.mark.parametrize(
    ("text", "intent", "action"),
    [
        ("3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n", "terminal", "RESTART"),
        (" iteration 3/ 100 | lm loss: 2.1\n", "progressive", "CONTINUE"),
        (" iteration 3/ 100 | lm loss: 2.1\n", "terminal", "UNKNOWN"),
    ],
)
def test_what_may_pass_is_restarted_and_what_runs_goes_on(
    service: Callable[..., str], tmp_path: Path, text: str, intent: str, action: str
) -> None:
    url, log = service(), tmp_path / "logs" / "a.log"
    log.write_text(text)
    ask(url, "/logs", {"log_path": str(log), "analysis_intent": intent})
    assert ask(url, f"/logs?log_path={log}")[1]["recommendation"]["action"] == action


def test_only_logs_below_the_root_are_read(service: Callable[..., str], tmp_path: Path) -> None:
    url = service()
    (tmp_path / "secret.log").write_text("secret")
    (tmp_path / "logs" / "link.log").symlink_to(tmp_path / "secret.log")
    for path, status, code in (
        (tmp_path / "secret.log", 403, "OUTSIDE_ROOT"),
        (tmp_path / "logs" / ".." / "secret.log", 403, "OUTSIDE_ROOT"),
        (tmp_path / "logs" / "link.log", 403, "OUTSIDE_ROOT"),
        ("logs/a.log", 400, "INVALID_PATH"),
        (tmp_path / "logs", 404, "NOT_FOUND"),
        ("/\ud800", 400, "INVALID_PATH"),
    ):
        told, answer = ask(url, "/logs", {"log_path": str(path)})
        assert (told, answer["error_code"]) == (status, code), path
    assert ask(url, "/logs", b"no json")[0] == 400


def test_a_link_that_takes_a_submitted_log_s_place_is_not_read(service: Callable[..., str], tmp_path: Path) -> None:
    url, log, secret = service(), tmp_path / "logs" / "later.log", tmp_path / "secret.log"
    secret.write_text(MISSING)
    assert ask(url, "/logs", {"log_path": str(log)})[0] == 200
    log.symlink_to(secret)
    asked = [ask(url, f"/logs?log_path={log}&wait=false") for _ in range(3) if not time.sleep(0.3)]
    assert all(status == 403 or "recommendation" not in said for status, said in asked), asked


def test_a_log_is_told_of_before_it_is_written_and_judged_once_it_is(service: Callable[..., str], tmp_path: Path) -> None:
    """As NVRx's launcher does at the beginning of each cycle."""
    url, log, other = service(), tmp_path / "logs" / "job_cycle0.log", tmp_path / "logs" / "other.log"
    assert ask(url, "/logs", {"log_path": str(log)})[:1] == (200,)
    assert ask(url, f"/logs?log_path={log}&wait=false")[1]["status"] in ("pending", "in_flight")
    other.write_text(MISSING)
    ask(url, "/logs", {"log_path": str(other)})
    assert ask(url, f"/logs?log_path={other}")[1]["status"] == "completed", "what is not there holds up nobody"
    log.write_text(MISSING)
    assert wait_for(lambda: ask(url, f"/logs?log_path={log}&wait=false")[1].get("recommendation"))["action"] == "STOP"


def test_a_log_that_is_only_tracked_is_listed_and_never_read(service: Callable[..., str], tmp_path: Path) -> None:
    url, log = service(), tmp_path / "logs" / "a.log"
    log.write_text(MISSING)
    assert ask(url, "/logs", {"log_path": str(log), "analysis_intent": "track_only"})[0] == 200
    other = tmp_path / "logs" / "b.log"
    other.write_text(MISSING)
    ask(url, "/logs", {"log_path": str(other)})
    assert ask(url, f"/logs?log_path={other}")[1]["status"] == "completed", "which came later, and one thread reads"
    assert ask(url, f"/logs?log_path={log}&wait=false") == (200, {"status": "pending", "log_path": str(log)})
    assert [job["analysis_intent"] for job in ask(url, "/jobs")[1]["jobs"]] == ["track_only", "terminal"]
    assert ask(url, "/logs", {"log_path": str(log), "analysis_intent": "guess"})[1]["error_code"] == "INVALID_INTENT"


def test_a_request_that_is_too_large_is_not_read(service: Callable[..., str]) -> None:
    status, said = ask(service(), "/logs", b" " * (MOST_BODY + 1))
    assert (status, said["error_code"]) == (413, "TOO_LARGE")


class FileServer:
    """Hangs for paths that end with `hung`, until it answers."""

    def __init__(self, hung: str) -> None:
        self.hung, self.asked, self.answers = hung, Event(), Event()

    def _hang(self, path: str) -> None:
        if path.endswith(self.hung):
            self.asked.set()
            self.answers.wait()

    def read(self, paths: Any, *args: Any, **how: Any) -> Any:
        self._hang(paths[0])
        return gather(paths, *args, **how)

    def find(self, path: str) -> str:
        self._hang(path)
        return os.path.realpath(path)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """`here(limits=…, read=…)`: starts a service, in this process; returns its URL."""
    started: list[Service] = []

    def start(**how: Any) -> str:
        started.append(Service(str(tmp_path), load(), **how))
        Thread(target=started[-1].serve, daemon=True).start()
        return f"http://127.0.0.1:{started[-1].port}"

    yield start
    for one in started:
        one.close()


def test_a_verdict_that_is_late_and_a_log_that_finds_no_room_are_told_apart(here: Callable[..., str], tmp_path: Path) -> None:
    server = FileServer("a")
    url = here(limits=Limits(most_waiting=1, wait_s=0.0), read=server.read)
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(MISSING)
    assert ask(url, "/logs", {"log_path": str(tmp_path / "a")})[0] == 200
    server.asked.wait()  # whoever is taken now waits, and whoever comes after that finds no room
    assert ask(url, "/logs", {"log_path": str(tmp_path / "b")})[0] == 200
    for name, status in (("a", "in_flight"), ("b", "pending")):
        late = ask(url, f"/logs?log_path={tmp_path / name}")[1]
        assert (late["status"], late["recommendation"]["action"]) == (status, "TIMEOUT")
    status, said = ask(url, "/logs", {"log_path": str(tmp_path / "c")})
    assert (status, said["error_code"]) == (503, "OVERLOADED")
    assert ask(url, f"/logs?log_path={tmp_path / 'c'}&wait=false")[0] == 404, "it was not taken, and nobody waits for it"
    server.answers.set()


def test_a_log_whose_file_server_hangs_holds_up_no_other(here: Callable[..., str], tmp_path: Path) -> None:
    server = FileServer("hung")
    hung, well = tmp_path / "hung", tmp_path / "well"
    url = here(limits=Limits(slow_s=0.0), read=server.read)
    for log in (hung, well):
        log.write_text(MISSING)
        assert ask(url, "/logs", {"log_path": str(log)})[0] == 200
    assert ask(url, f"/logs?log_path={well}")[1]["recommendation"]["action"] == "STOP"
    server.asked.wait()
    assert ask(url, f"/logs?log_path={hung}&wait=false")[1]["status"] == "in_flight"
    status, said = ask(url, "/logs", {"log_path": str(hung)})
    assert (status, said["error_code"]) == (503, "STALLED"), "nobody is sent after the one who waits for it"
    server.answers.set()
    assert ask(url, f"/logs?log_path={hung}")[1]["recommendation"]["action"] == "STOP", "it is read once it answers"


def test_who_asks_for_a_verdict_touches_no_file_and_few_may_wait_for_one(here: Callable[..., str], tmp_path: Path) -> None:
    server = FileServer("b.log")
    log = tmp_path / "a.log"
    log.write_text(MISSING)
    url = here(limits=Limits(most_looking=1), find=server.find)
    ask(url, "/logs", {"log_path": str(log)})
    waits = Thread(target=ask, args=(url, "/logs", {"log_path": str(tmp_path / "b.log")}))
    waits.start()
    server.asked.wait()
    assert ask(url, f"/logs?log_path={log}")[1]["recommendation"]["action"] == "STOP"
    status, said = ask(url, "/logs", {"log_path": str(tmp_path / "c.log")})
    assert (status, said["error_code"]) == (503, "STALLED") and str(tmp_path) in said["message"]
    server.answers.set()
    waits.join()


def test_without_the_token_nothing_is_told(service: Callable[..., str], tmp_path: Path) -> None:
    url = service(env={"HOLDFAST_ATTRIBUTION_TOKEN": "sesame"})
    assert [ask(url, path)[0] for path in ("/stats", "/jobs", "/logs?log_path=/x", "/healthz")] == [401, 401, 401, 200]
    assert ask(url, "/stats", token="sesame")[0] == 200 and ask(url, "/stats", token="sesamy")[0] == 401


def test_it_does_not_listen_for_others_without_a_token(holdfast: Any, tmp_path: Path) -> None:
    done = holdfast("attribution", "serve", "--root", tmp_path, "--host", "0.0.0.0", "--port", 0)
    assert done.returncode == 2 and "there is no token" in done.stderr


def test_a_port_that_is_none_is_refused(holdfast: Any, tmp_path: Path) -> None:
    done = holdfast("attribution", "serve", "--root", tmp_path, "--port", 99999)
    assert done.returncode == 2 and "'99999' is not a port" in done.stderr


def test_the_launcher_tells_of_its_cycles_and_says_the_verdict(
    holdfast: Any, script: Any, service: Callable[..., str], tmp_path: Path
) -> None:
    """The first life fails; the second waits until the service has spoken of it, and then fails: no restart comes any more."""
    url, heard = service(), tmp_path / "heard"
    program = script(
        "import os, sys, time, pathlib\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': import apex_that_nobody_has\n"
        f"while not pathlib.Path({str(heard)!r}).exists(): time.sleep(0.02)\n"
        "sys.exit(3)\n"
    )
    running = holdfast.start(
        "ft_launcher", "--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "5", "--on-finding", "none", "--standalone",
        "--ft-per-cycle-applog-prefix", tmp_path / "logs" / "job.log", "--ft-attribution-endpoint", url,
        "--ft-attribution-stop-action", "no-restart", program,
    )  # fmt: skip
    running.wait_for_output("cycle 0: the attribution service says STOP")
    heard.touch()
    assert running.wait().returncode == 93
    assert len(holdfast.events("RoundFormed")) == 2
    assert "the attribution service says STOP" in holdfast.events("Decided")[-1]["reason"]


def test_a_service_that_is_not_there_costs_a_warning_and_no_restart(
    holdfast: Any, script: Any, free_port: int, tmp_path: Path
) -> None:
    done = holdfast(
        "ft_launcher", "--nnodes", "1", "--nproc-per-node", "1", "--max-restarts", "1", "--standalone",
        "--ft-per-cycle-applog-prefix", tmp_path / "job.log", "--ft-attrsvc-host", "127.0.0.1", "--ft-attrsvc-port", free_port,
        script("import os, sys; sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"),
    )  # fmt: skip
    assert done.returncode == 0 and len(holdfast.events("RoundFormed")) == 2


def test_a_service_that_takes_connections_and_never_answers_holds_up_no_restart(
    holdfast: Any, script: Any, tmp_path: Path
) -> None:
    """It may take a thousand seconds for each verdict, and gives none: three restarts happen all the same."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as hangs:

        def take() -> None:
            with suppress(OSError):
                while True:
                    taken.append(hangs.accept()[0])

        Thread(target=take, daemon=True).start()
        done = holdfast(
            "ft_launcher", "--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "3", "--on-finding", "none",
            "--standalone", "--ft-per-cycle-applog-prefix", tmp_path / "job.log",
            "--ft-attribution-endpoint", f"http://127.0.0.1:{hangs.getsockname()[1]}", "--ft-attribution-compute-timeout", 1000,
            script("import os, sys; sys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 3)"),
        )  # fmt: skip
        hangs.shutdown(socket.SHUT_RDWR)
    assert done.returncode == 0 and len(holdfast.events("RoundFormed")) == 4, done.output
    assert taken[0].recv(1 << 16).startswith(b"POST /logs")
    for link in taken:
        link.close()


def test_for_localhost_a_service_is_started_asked_and_ended(holdfast: Any, script: Any, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    program = script(
        "import os, time, pathlib\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': import apex_that_nobody_has\n"
        f"while not pathlib.Path({str(heard)!r}).exists(): time.sleep(0.02)\n"
    )
    running = holdfast.start(
        "ft_launcher", "--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "1", "--on-finding", "none", "--standalone",
        "--ft-per-cycle-applog-prefix", tmp_path / "job.log", "--ft-attribution-endpoint", "localhost", program,
    )  # fmt: skip
    running.wait_for_output("cycle 0: the attribution service says STOP")
    heard.touch()
    assert running.wait().returncode == 0


class Collector(BaseHTTPRequestHandler):
    """Takes results."""

    def do_POST(self) -> None:
        self.server.taken.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))  # type: ignore[attr-defined]
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


def test_the_service_is_told_of_a_cycle_s_end_once_its_log_is_whole_and_of_the_last_one_s_too(tmp_path: Path) -> None:
    collector, asked = ThreadingHTTPServer(("127.0.0.1", 0), Collector), list[str]()
    collector.taken = []
    Thread(target=collector.serve_forever, daemon=True).start()
    ft = {name: None for name in ("attrsvc_host", "attrsvc_port", "attribution_compute_timeout", "attribution_export_url")}
    ft |= {"per_cycle_applog_prefix": str(tmp_path / "job.log"), "attribution_stop_action": "report"}
    ft |= {"attribution_endpoint": f"http://127.0.0.1:{collector.server_address[1]}", "attribution_startup_timeout": 1.0}

    def is_whole(path: str) -> bool:
        asked.append(path)
        return len(asked) > 3  # as long as ranks write their last lines

    def ignore(*said: object) -> None:
        """Not asked here."""

    config: Any = SimpleNamespace(rdzv_id="job", ft=SimpleNamespace(**ft))
    seen: list[Any] = [None]
    one = Attribution(config, ignore, ignore, is_whole, rendezvous=lambda: seen[-1], clock=time.monotonic)
    try:
        for phase in (Phase.RUNNING, Phase.GATHERING):
            seen.append(SimpleNamespace(phase=phase, round=1))
            one.end_turn()
        one.close()
    finally:
        collector.shutdown()
        collector.server_close()
    assert [said["analysis_intent"] for _, said in collector.taken] == ["progressive", "terminal"]
    assert asked == [str(tmp_path / "job_cycle0.log")] * 4


@pytest.mark.parametrize("there", [True, False])
def test_results_are_sent_on_to_who_collects_them_or_not_and_nothing_waits(
    holdfast: Any, script: Any, service: Callable[..., str], free_port: int, wait_until: Any, tmp_path: Path, there: bool
) -> None:
    url, heard = service(), tmp_path / "heard"
    program = script(
        "import os, time, pathlib\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': import apex_that_nobody_has\n"
        f"while not pathlib.Path({str(heard)!r}).exists(): time.sleep(0.02)\n"
    )
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector) if there else None
    port = free_port if collector is None else collector.server_address[1]
    if collector is not None:
        collector.taken = []  # type: ignore[attr-defined]
        Thread(target=collector.serve_forever, daemon=True).start()
    try:
        running = holdfast.start(
            "ft_launcher", "--nnodes", "1", "--nproc-per-node", "1", "--max-restarts", "1", "--on-finding", "none",
            "--standalone", "--ft-per-cycle-applog-prefix", tmp_path / "logs" / "job.log", "--ft-attribution-endpoint", url,
            "--ft-attribution-export-url", f"http://127.0.0.1:{port}/results?team=a", program,
        )  # fmt: skip
        running.wait_for_output("cycle 0: the attribution service says STOP")
        if collector is not None:
            path, result = wait_until(lambda: collector.taken and collector.taken[0])
            assert path == "/results?team=a" and result["cycle_id"] == 0 and result["log_path"].endswith("job_cycle0.log")
            assert result["recommendation"]["action"] == "STOP" and result["result"]["class"] == "environment"
        else:
            running.wait_for_output(f"http://127.0.0.1:{port}/results?team=a did not accept a result: ")
        heard.touch()
        assert running.wait().returncode == 0
    finally:
        if collector is not None:
            collector.shutdown()
            collector.server_close()


@pytest.mark.parametrize(
    ("endpoint", "export", "said"),
    [
        ("localhost", "elsewhere", "--ft-attribution-export-url: 'elsewhere' is not http://"),
        ("localhost", "http://", "--ft-attribution-export-url: 'http://' is not http://"),
        ("http://h:port", "http://h", "--ft-attribution-endpoint: 'http://h:port' is neither localhost nor http://"),
        ("http://h:70000", "http://h", "--ft-attribution-endpoint: 'http://h:70000' is neither localhost nor http://"),
    ],
)
def test_where_results_go_and_who_is_asked_must_be_a_url(
    holdfast: Any, script: Any, tmp_path: Path, endpoint: str, export: str, said: str
) -> None:
    done = holdfast(
        "ft_launcher", "--nnodes", "1", "--standalone", "--ft-per-cycle-applog-prefix", tmp_path / "job.log",
        "--ft-attribution-endpoint", endpoint, "--ft-attribution-export-url", export, script("print(1)"),
    )  # fmt: skip
    assert done.returncode == 2 and said in done.stderr
