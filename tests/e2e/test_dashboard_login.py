"""Does the dashboard let in who has a token, and say what is wrong otherwise? A real supervisor, a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kit.browser import tile
from kit.ports import port_of

from holdfast.core.wire.fleet import NodeKept
from holdfast.supervisor.fleet.messages import Keep
from holdfast.supervisor.store import SqliteStore

pytest.importorskip("playwright", reason="playwright is not installed")
from playwright.sync_api import Page, expect

LOOKS, ACTS = "look-" + "x" * 20, "act-" + "y" * 20


@pytest.fixture(params=["http", "https"])
def locked(request: pytest.FixtureRequest, holdfast: Any, tmp_path: Path) -> tuple[str, Any]:
    """Address of a real supervisor that asks for a token and knows one node, `n1`; and its process."""
    pytest.importorskip("starlette", reason="starlette is not installed: pip install 'holdfast[supervisor]'")
    state, flags = tmp_path / "fleet", ["--http-token-file", tmp_path / "tokens"]
    (tmp_path / "tokens").write_text(f"read {LOOKS}\noperate {ACTS}\n")
    if request.param == "https":
        trustme = pytest.importorskip("trustme", reason="trustme is not installed: it makes the certificates")
        trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
        flags += ["--http-cert", tmp_path / "both.pem"]
    store = SqliteStore(str(state))
    store.keep([Keep(table="nodes", key="n1", value=NodeKept(name="n1", state="spare", standing="fit", reason=""))])
    store.close()
    running = holdfast.start("supervisor", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--state", state, *flags)
    return f"{request.param}://127.0.0.1:{port_of(running, 'dashboard at')}/", running


def tab_to(page: Page, name: str) -> None:
    """As one does who has no mouse."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == name:
            return
    raise AssertionError(f"Tab does not lead to {name}")


def test_one_logs_in_and_out_by_the_keyboard_alone(page, locked):
    url, _ = locked
    page.goto(f"{url}#/nodes/n1")
    expect(page.get_by_label("Token")).to_be_focused()
    expect(page.locator("#link")).to_have_text("log in")
    for _ in range(2):
        page.keyboard.type("no such token at all")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert").filter(has_text="there is no such token")).to_be_visible()
        expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type(ACTS)  # in place of the wrong one, which is selected
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name=re.compile("^n1"))).to_be_visible()
    expect(page.get_by_role("button", name="Drain")).to_be_enabled()
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["secure"] == url.startswith("https")
    page.reload()
    expect(page.get_by_role("heading", level=1, name=re.compile("^n1"))).to_be_visible()
    other = page.context.new_page()
    other.goto(url)
    expect(tile(other, "n1")).to_be_visible()
    tab_to(page, "Log out")
    page.keyboard.press("Enter")
    for one in (page, other):
        expect(one.get_by_label("Token")).to_be_visible()
        expect(one.get_by_role("button", name="Log out")).to_be_hidden()
    assert page.context.cookies() == []
    page.reload()
    expect(page.get_by_label("Token")).to_be_focused()


def test_who_has_a_token_to_read_sees_the_fleet_and_finds_the_buttons_off(page, locked):
    url, _ = locked
    page.goto(url)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Decisions").click()
    page.get_by_label("Token").fill(LOOKS)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1, name="Decisions")).to_be_visible()
    page.get_by_role("link", name="Fleet").click()
    tile(page, "n1").click()
    expect(page.get_by_role("button", name="Drain")).to_be_disabled()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def test_the_login_form_outlives_a_supervisor_that_is_away(page, locked):
    url, running = locked
    page.goto(url)
    page.get_by_label("Token").fill(LOOKS)
    running.kill()
    expect(page.locator("#link")).to_have_text("no supervisor")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert").filter(has_text="web server does not answer")).to_be_visible()
    expect(page.get_by_label("Token")).to_have_value(LOOKS)
