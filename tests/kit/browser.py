"""A real browser: `browser`, one for the tests of a file, and `page`, an empty one whose complaints fail the test."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium; the test is skipped where it is not there. No longer than one file's tests: an event loop runs meanwhile."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed: `make system` does it on Debian, as root")
    api.expect.set_options(timeout=PATIENCE_MS)
    with pytest.MonkeyPatch.context() as patch:
        if not os.path.isdir(os.environ.get("HOME", "")):  # what drives the browser will not start without one
            patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        with api.sync_playwright() as playwright:
            opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            yield opened
            opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page. Whatever a script or the content policy complained of while the test ran fails it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, ignore_https_errors=True)
    context.set_default_timeout(PATIENCE_MS)
    opened, complaints = context.new_page(), []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda said: complaints.append(said.text) if "Content Security Policy" in said.text else None)
    yield opened
    context.close()
    assert complaints == []


def tile(page: Page, name: str) -> Any:
    """A node's, on the dashboard's first page."""
    return page.get_by_role("grid", name="Nodes").get_by_role("link", name=re.compile(rf"^{re.escape(name)},"))
