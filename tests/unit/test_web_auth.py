"""Who is let in by HTTP, and as what: by token, by cookie, or by being this host's own user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.core.errors import UsageError
from holdfast.runtime.peer_user import in_proc
from holdfast.supervisor.web.auth import (
    COOKIE,
    OPERATE,
    READ,
    Gate,
    Refused,
    refuse_a_forgery,
    refuse_an_open_door,
    tokens,
)

LOOKS, ACTS = "look-" + "x" * 20, "act-" + "y" * 20
JSON = "application/json"


def nobody() -> None:
    """Of whom the kernel says nothing."""


def status(act) -> int:
    """With which status it is refused; 200: it is not."""
    try:
        act()
    except Refused as refused:
        return refused.status
    return 200


@pytest.mark.parametrize(
    ("needed", "token", "expected"),
    [
        (READ, None, 401),
        (READ, "nonsense", 401),
        (READ, "", 401),
        (READ, LOOKS, 200),
        (OPERATE, LOOKS, 403),
        (OPERATE, ACTS, 200),
        (READ, ACTS, 200),
        ("", None, 200),
    ],
)
def test_a_token_is_worth_its_role(needed, token, expected):
    gate = Gate({LOOKS: READ, ACTS: OPERATE})
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    assert status(lambda: gate.admit(needed, headers, nobody)) == expected


def test_a_cookie_is_worth_its_token_and_does_not_tell_it():
    gate = Gate({LOOKS: READ, ACTS: OPERATE})
    cookie = gate.cookie(ACTS)
    assert ACTS not in cookie and gate.cookie("nonsense") == ""
    assert status(lambda: gate.admit(OPERATE, {"cookie": f"a=b; {COOKIE}={cookie}"}, nobody)) == 200
    assert status(lambda: gate.admit(READ, {"cookie": f"{COOKIE}={ACTS}"}, nobody)) == 401
    assert status(lambda: Gate({LOOKS: READ}).admit(READ, {"cookie": f"{COOKIE}={cookie}"}, nobody)) == 401


@pytest.mark.parametrize("host", ["127.0.0.1:29180", "localhost", "[::1]:29180"])
def test_without_tokens_this_hosts_names_are_answered_to(host):
    assert status(lambda: Gate({}).admit(OPERATE, {"host": host}, os.geteuid)) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "127.evil.example",
        "localhost.evil.example:29180",
        "",
        "0.0.0.0:29180",
        "[::2]",
        "[::1]evil",
        "127.0.0.1:80:evil.example",
    ],
)
def test_without_tokens_no_other_name_is(host):
    assert status(lambda: Gate({}).admit("", {"host": host}, os.geteuid)) == 400


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"content-type": JSON}, 200),
        ({"content-type": JSON, "origin": "http://127.0.0.1:1"}, 200),
        ({"content-type": f"{JSON}; charset=utf-8", "sec-fetch-site": "same-origin"}, 200),
        ({}, 400),
        ({"content-type": "text/plain"}, 400),
        ({"content-type": f"text/plain; x={JSON}"}, 400),
        ({"content-type": JSON, "origin": "http://evil.example"}, 403),
        ({"content-type": JSON, "origin": "null"}, 403),
        ({"content-type": JSON, "origin": "http://127.0.0.1:2"}, 403),
        ({"content-type": JSON, "sec-fetch-site": "cross-site"}, 403),
        ({"content-type": JSON, "sec-fetch-site": "same-site"}, 403),
    ],
)
def test_what_another_page_could_have_sent_is_refused(headers, expected):
    assert status(lambda: refuse_a_forgery({"host": "127.0.0.1:1", **headers}, JSON)) == expected


@pytest.mark.parametrize("text", ["", "read", "admin abcdefghijklmnopqrstuvwxyz", "read short", f"read {LOOKS} more"])
def test_a_file_that_gives_no_role_a_token_is_refused(tmp_path, text):
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(UsageError):
        tokens(str(tmp_path / "tokens"))


def test_a_file_of_tokens(tmp_path):
    (tmp_path / "tokens").write_text(f"# who\nread {LOOKS}\n\noperate {ACTS}\n")
    assert tokens(str(tmp_path / "tokens")) == {LOOKS: READ, ACTS: OPERATE} and tokens(None) == {}


def test_without_tokens_the_door_is_on_this_host():
    refuse_an_open_door("127.0.0.1", {})
    refuse_an_open_door("0.0.0.0", {LOOKS: READ})
    with pytest.raises(UsageError, match="without tokens"):
        refuse_an_open_door("0.0.0.0", {})


def test_whose_socket_asks_stands_in_proc(tmp_path: Path):
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: 0100007F:{:04X} 0100007F:71FC {} 00000000:00000000 00:00000000 00000000  {}        0 1\n"
    (tmp_path / "tcp").write_text(head + row.format(4000, "01", 1234) + row.format(4001, "06", 77))
    long = "   0: 0000000000000000FFFF00000100007F:0FA2 0000000000000000FFFF00000100007F:71FC 01 0:0 0:0 0  55 0 1\n"
    (tmp_path / "tcp6").write_text(head + long)
    here = ("127.0.0.1", 0x71FC)
    found = [in_proc(here, ("127.0.0.1", port), str(tmp_path)) for port in (4000, 4001, 4002, 4003)]
    assert found == [(1234, 1), (77, 1), (55, 1), None]
    assert in_proc(("127.0.0.1", 1), ("127.0.0.1", 4000), str(tmp_path)) is None, "another connection from the same port"
    assert in_proc(here, ("nonsense", 1), str(tmp_path)) is None
    assert in_proc(here, ("127.0.0.1", 4000), str(tmp_path / "no")) is None


@pytest.mark.parametrize("user", [None, os.geteuid() + 1])
def test_another_users_process_is_refused_and_one_of_whom_nobody_knows(user):
    assert status(lambda: Gate({}).admit(READ, {"host": "localhost"}, lambda: user)) == 403


@pytest.mark.parametrize("user", [0, os.geteuid()])
def test_root_and_our_own_user_are_let_in(user):
    assert status(lambda: Gate({}).admit(READ, {"host": "localhost"}, lambda: user)) == 200
