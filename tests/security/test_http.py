"""What do a stranger, another page in a browser, and a token of too small a role achieve by HTTP? Nothing."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from kit.ports import port_of

httpx = pytest.importorskip("httpx", reason="httpx is not installed: pip install httpx")
pytest.importorskip("starlette", reason="the extra `supervisor` is not installed")

LOOKS, ACTS = "look-" + "x" * 20, "act-" + "y" * 20

OUT = (
    *(
        "../auth.py",
        "..%2fauth.py",
        "%2e%2e/%2e%2e/auth.py",
        "..\\auth.py",
        "....//auth.py",
        "..%252fauth.py",
        "..%c0%afauth.py",
    ),
    *("auth.py%00.html", "../" * 12 + "etc/passwd", "%2fetc%2fpasswd", "%2e%2e%2f" * 12 + "etc%2fpasswd"),
)
"""Ways out of a folder that some server has gone."""


class Door:
    """A supervisor with an API, which knows one node that is drained where somebody gets through."""

    def __init__(self, holdfast: Any, folder: Path, *flags: str) -> None:
        self.folder, self.holdfast = folder, holdfast
        where = ("--listen", "127.0.0.1:0", "--state", folder, "--lease", "0.2", "--http", "127.0.0.1:0")
        self.running = holdfast.start("supervisor", *where, "--policy", "google", *flags)  # it says the reason as it was given
        self.port = port_of(self.running, "dashboard at")
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    def raw(self, head: str, body: bytes = b"") -> str:
        """What comes back for these bytes, as they are. A server that has heard enough closes, and the kernel resets a
        link on which more has come meanwhile: then what came before counts, or nothing."""
        answer, reset = b"", (ConnectionResetError, BrokenPipeError)
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as link, suppress(*reset):
            link.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
            while piece := link.recv(1 << 16):
                answer += piece
        return answer.decode("latin-1")

    def asked(self, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
        """Status and answer of a GET whose path no client has tidied up."""
        answer = self.raw(f"GET {path} HTTP/1.1\nHost: {host}\nConnection: close")
        return int(answer.split()[1]), answer


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """State of a supervisor that has known a node `n1`."""
    from holdfast.core.wire.fleet import NodeKept
    from holdfast.supervisor.fleet.messages import Keep
    from holdfast.supervisor.store import SqliteStore

    store = SqliteStore(str(tmp_path / "fleet"))
    store.keep([Keep(table="nodes", key="n1", value=NodeKept(name="n1", state="spare", standing="fit", reason=""))])
    store.close()
    return tmp_path / "fleet"


@pytest.fixture
def door(holdfast, node) -> Door:
    """Without tokens."""
    return Door(holdfast, node)


@pytest.fixture
def locked(holdfast, node, tmp_path) -> Door:
    """With tokens."""
    (tmp_path / "tokens").write_text(f"read {LOOKS}\noperate {ACTS}\n")
    return Door(holdfast, node, "--http-token-file", str(tmp_path / "tokens"))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_another_page_in_the_users_browser_cannot_act(door):
    url, body = "/api/nodes/n1/drain", b'{"reason": "mine"}'
    simple = [{"Content-Type": kind} for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")]
    ours = {"Content-Type": "application/json"}
    forged = [
        *simple,
        {},
        {**ours, "Origin": "http://evil.example"},
        {**ours, "Origin": "null"},
        {**ours, "Sec-Fetch-Site": "cross-site"},
    ]
    for headers in forged:
        assert door.client.post(url, content=body, headers=headers).status_code in (400, 403), headers
    assert door.client.get(url).status_code in (404, 405)
    asked = door.client.options(url, headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"})
    assert asked.status_code == 405 and not [name for name in asked.headers if name.startswith("access-control")]
    (known,) = door.client.get("/api/fleet").json()["nodes"]
    assert known["standing"] == "fit"


def test_a_name_that_has_been_pointed_here_is_turned_away(door):
    for host in (
        "evil.example",
        f"evil.example:{door.port}",
        "127.0.0.1.evil.example",
        "127.evil.example",
        "",
        "localhost@evil.example",
    ):
        for path in ("/", "/api/fleet", "/healthz", "/openapi.json"):
            status, answer = door.asked(path, host)
            assert status == 400 and "n1" not in answer, (host, path)
    assert door.asked("/api/fleet", f"localhost:{door.port}")[0] == 200


@pytest.mark.parametrize("start", ["/static/", "/static//", "/api/jobs/", "/api/nodes/", "/"])
def test_no_path_leads_out_of_the_table(door, start):
    secret = "root:x:0:0"
    for path in OUT:
        status, answer = door.asked(start + path)
        assert status in (400, 404), (path, status)
        assert secret not in answer and "import hmac" not in answer, path


def test_no_incident_leads_out_of_a_jobs_folder(door):
    for id in ("../../../../etc/passwd", "%2e%2e%2f%2e%2e%2fetc", "round-1%00", "."):
        assert door.asked(f"/api/jobs/train/incidents/{id}")[0] == 404


@pytest.mark.parametrize("body", ['{"reason": 5}', '{"reason": ["a"]}', "[]", '"a"', "5", "{", "[" * 5000])
def test_a_body_that_is_none_is_refused_and_drains_nothing(door, body):
    told = door.client.post("/api/nodes/n1/drain", content=body, headers={"Content-Type": "application/json"})
    assert told.status_code == 400 and told.json()["hint"] == 'send {"reason": "…"}'
    assert door.client.get("/api/fleet").json()["nodes"][0]["standing"] != "draining"


def test_nothing_that_is_asked_for_becomes_a_header_or_a_line_of_the_log(door):
    for path in ("/api/nodes/n%0d%0aX-Evil:%201", "/static/%0d%0aX-Evil:%201", "/%0d%0aSet-Cookie:%20a=b"):
        status, answer = door.asked(path)
        head = answer.partition("\r\n\r\n")[0].lower()
        assert status == 404 and "x-evil" not in head and "set-cookie" not in head
    reason = "fan\nholdfast supervisor: n2: all is well\r\x1b[2J\u202e"
    while (told := door.client.post("/api/nodes/n1/drain", json={"reason": reason})).status_code == 409:
        assert "has just started" in told.text
    assert told.status_code == 200
    (deed,) = door.client.get("/api/deeds").json()
    assert "\n" not in deed["seen"] and "\x1b" not in deed["seen"] and "\u202e" not in deed["seen"] and "fan" in deed["seen"]
    said = door.running.stderr
    assert (
        "fan" in said
        and "\x1b" not in said
        and not [line for line in said.splitlines() if line.startswith("holdfast supervisor: n2")]
    )


def test_what_is_sent_may_be_nonsense(door):
    kind = {"Content-Type": "application/json"}
    for body in (b"", b"{}"):
        assert door.client.post("/api/jobs/nobody/stop", content=body, headers=kind).status_code == 404
    for body in (b"[]", b"{", b"[" * 10_000, b'{"reason": ' + b"[" * 5000, b"\xff\xfe", b"x" * 20_000):
        assert door.client.post("/api/nodes/n1/uncordon", content=body, headers=kind).status_code == 400, body[:20]
    for head in (
        "GET",
        "\0\1\2",
        "GET / HTTP/9.9",
        "POST /api/nodes/n1/drain HTTP/1.1\nHost: localhost\nContent-Length: nonsense",
    ):
        answer = door.raw(head + "\nConnection: close")
        assert not answer or answer.split()[1].startswith(("4", "5"))
    assert door.raw("GET /" + "a" * 100_000 + " HTTP/1.1\nHost: localhost\nConnection: close").split()[1:2] in (
        [],
        ["400"],
        ["404"],
        ["431"],
    )
    assert door.client.get("/healthz").status_code == 200


def test_who_leaves_in_the_middle_of_a_request_is_no_failure_of_ours(door):
    head = f"POST /login HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    with socket.create_connection(("127.0.0.1", door.port), timeout=60) as link:
        link.sendall(head.encode() + b"Content-Length: 20\r\n\r\ntok")
        link.shutdown(socket.SHUT_WR)
        link.recv(1)
    assert door.client.get("/healthz").status_code == 200
    assert "Traceback" not in door.running.stderr, door.running.stderr


def test_a_thousand_unfinished_requests_keep_nobody_out(door):
    head = f"POST /login HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    said = (b"", b"GET / HT", head.encode() + b"Content-Length: 20\r\n\r\ntok")
    with ExitStack() as links:
        for number in range(1100):
            link = links.enter_context(socket.create_connection(("127.0.0.1", door.port), timeout=60))
            with suppress(ConnectionError):
                link.sendall(said[number % 3])
        assert door.client.get("/healthz").status_code == 200
    assert "Traceback" not in door.running.stderr, door.running.stderr


def test_of_more_dashboards_than_may_be_open_at_a_time_the_rest_is_turned_away(door):
    from holdfast.supervisor.web.live import MOST_WATCHERS

    with ExitStack() as open_links:
        links = [open_links.enter_context(socket.create_connection(("127.0.0.1", door.port), timeout=60)) for _ in range(230)]
        for link in links:  # all of them, before any is answered
            link.sendall(b"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        statuses = [int(link.recv(1 << 16).split()[1]) for link in links]
    assert statuses.count(200) == MOST_WATCHERS and statuses.count(503) == 230 - MOST_WATCHERS


def test_a_request_that_does_not_come_to_its_end_is_given_up(door):
    door.client.get("/healthz")
    with socket.create_connection(("127.0.0.1", door.port), timeout=60) as link:
        link.sendall(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\n\r\n".encode())
        assert link.recv(1 << 16).startswith(b"HTTP/1.1 200")
        link.sendall(b"GET / HTTP/1.1\r\nHost:")  # the second over this connection
        with suppress(ConnectionResetError):
            assert b"" in iter(lambda: link.recv(1 << 16), None)


def test_roles_by_token_and_by_cookie(locked):
    get, post = locked.client.get, locked.client.post
    assert get("/").status_code == get("/healthz").status_code == get("/openapi.json").status_code == 200
    for path in (
        "/api/fleet",
        "/api/live",
        "/api/deeds",
        "/metrics",
        "/api/nodes/n1",
        "/api/jobs/train",
        "/api/jobs/train/incidents/1",
    ):
        assert get(path).status_code == get(path, headers=bearer("nonsense")).status_code == 401, path
        assert "n1" not in get(path).text
    assert get("/api/fleet", headers=bearer(LOOKS)).status_code == 200
    for path in ("/api/nodes/n1/drain", "/api/nodes/n1/uncordon", "/api/jobs/train/restart", "/api/jobs/train/stop"):
        assert post(path, json={}).status_code == 401
        assert post(path, json={}, headers=bearer(LOOKS)).status_code == 403
        assert post(path, json={}, headers=bearer(ACTS)).status_code in (200, 404, 409)
    assert get("/api/fleet", params={"token": ACTS}).status_code == 401, "a token in an address would stand in logs"

    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert post("/login", content="token=nonsense", headers=form).status_code == 401
    assert post("/login", content=f"token={ACTS}", headers={**form, "Origin": "http://evil.example"}).status_code == 403
    answer = post("/login", content=f"token={LOOKS}", headers=form)
    cookie = answer.headers["set-cookie"]
    assert answer.status_code == 303 and "HttpOnly" in cookie and "SameSite=strict" in cookie and LOOKS not in cookie
    assert get("/api/fleet").status_code == 200 and post("/api/nodes/n1/drain", json={}).status_code == 403
    post("/logout", json={})
    assert get("/api/fleet").status_code == 401
    said = locked.running.stdout + locked.running.stderr
    assert LOOKS not in said and ACTS not in said


def test_every_answer_forbids_frames_and_scripts_of_others(door):
    for path in ("/", "/api/fleet", "/nowhere", "/healthz"):
        headers = door.client.get(path).headers
        assert (
            "default-src 'self'" in headers["content-security-policy"]
            and "frame-ancestors 'none'" in headers["content-security-policy"]
        )
        assert headers["x-content-type-options"] == "nosniff" and "unsafe" not in headers["content-security-policy"]
        assert "server" not in headers


def test_an_open_door_and_a_file_that_says_nothing_are_refused_at_the_start(holdfast, tmp_path):
    (tmp_path / "tokens").write_text("operate short\n")
    for flags in (
        ("--http", "0.0.0.0:0"),
        ("--http-token-file", tmp_path / "tokens"),
        ("--http-token-file", tmp_path / "none"),
    ):
        for command in (("supervisor", "--listen", "127.0.0.1:0"), ("web",)):
            done = holdfast.run(*command, "--state", tmp_path / "fleet", *flags)
            assert done.returncode == 2 and "--http" in done.stderr, (command, flags)


def test_the_state_of_a_fleet_is_its_users_alone(door):
    assert json.loads(door.client.get("/api/fleet").text)["nodes"]
    assert (door.folder / "supervisor.sock").stat().st_mode & 0o077 == 0
