"""How heavy is the dashboard's page of a job of 8,000 ranks in a real browser, and what does the fleet weigh on the wire?

The job runs on a thousand simulated hosts (`supervisor.Hosts`), of which one tells its ranks' steps each second while the page
is open.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from footprint import cpu_ns
from harness import HOLDFAST, Bench, Row, launch
from lost_node import everything
from supervisor import Hosts
from table import say

from holdfast.supervisor.web.serve import missing

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTS, RANKS, LIVE_S = 1000, 8, 30
TIMES = 5

PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
SHOWN = "(count) => document.querySelectorAll('[role=grid] a').length >= count && performance.now()"
SCREENS = "document.documentElement.scrollHeight / innerHeight"


@contextlib.contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """One of its own, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def opened(browser: Browser, url: str, hosts: int) -> dict[str, float]:
    """Milliseconds from the address's being asked for to the first paint, and until all hosts are on the page; its screens."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.goto(url)
        shown = page.wait_for_function(SHOWN, arg=hosts, timeout=60_000).json_value()
        return {"painted": page.evaluate(PAINTED), "shown": shown, "screens": page.evaluate(SCREENS)}
    finally:
        context.close()


def live(browser: Browser, url: str, hosts: Hosts, count: int, seconds: int) -> float:
    """Percent of a core that all of the browser takes while the page is open and steps come."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.goto(url)
        page.wait_for_function(SHOWN, arg=count, timeout=60_000)
        hosts.ask(f"change {seconds}")
        hosts.answer()
        time.sleep(2.0)  # what was drawn first is drawn
        processes = [pid for pid in everything(os.getpid()) if "chromium" in os.readlink(f"/proc/{pid}/exe")]
        before, begun = sum(map(cpu_ns, processes)), time.monotonic()
        time.sleep(seconds - 3.0)
        percent = 100 / 1e9 * (sum(map(cpu_ns, processes)) - before) / (time.monotonic() - begun)
        hosts.answer()
        return percent
    finally:
        context.close()


def on_the_wire(url: str) -> float:
    """kB of what is compressed as a browser asks for it."""
    asked = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return len(answer.read()) / 1000


def run(bench: Bench) -> list[Row]:
    """Five rows."""
    path, lacks = shutil.which("chromium"), missing()
    if path is None or lacks:
        say(f"no dashboard to open: {lacks or 'chromium'} is not installed")
        return []
    count, seconds = (64, 5) if bench.quick else (HOSTS, LIVE_S)
    with launch() as job, contextlib.closing(Hosts(job, count)) as hosts, chromium(path) as browser:
        hosts.connect()
        where = f"http://127.0.0.1:{hosts.watched.http_port()}"
        url = f"{where}/#/jobs/train"
        seen = [opened(browser, url, count) for _ in range(bench.times(TIMES))]
        weight, percent = on_the_wire(f"{where}/api/fleet"), live(browser, url, hosts, count, seconds)
    what = f"the page of a job of {count * RANKS:,} ranks"

    def row(told: str, unit: str, samples: list[float], most: float | None) -> Row:
        met = None if most is None else sorted(samples)[len(samples) // 2] <= most
        return Row(told, unit, {HOLDFAST: samples}, f"≤ {most:g} {unit}" if most else "", met)

    taken: dict[str, list[Any]] = {name: [one[name] for one in seen] for name in seen[0]}
    return [
        row(f"{what}: first paint", "ms", taken["painted"], 500),
        row(f"{what}: until each host is on it", "ms", taken["shown"], None),
        row(f"{what}: height", "screens", taken["screens"], 3),
        row(f"{what}: the browser's processor time, a change a second", "% of a core", [percent], 3),
        row(f"{count:,} nodes: /api/fleet on the wire", "kB", [weight], 80),
    ]
