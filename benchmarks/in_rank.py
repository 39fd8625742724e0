"""What does Holdfast cost inside a rank: on import, before the script's first line, and for each thing that it says?"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

from harness import HOLDFAST, PLAIN, Bench, Row, clean_environment, launch, worker

from holdfast.agent.workers.launch import bootstrap_env
from holdfast.runtime.shm.pages import create_page

IMPORT = "import time; t = time.perf_counter(); import holdfast.client; print(1000 * (time.perf_counter() - t))"


def import_ms() -> float:
    """Milliseconds that `import holdfast.client` takes in a fresh interpreter."""
    command = [sys.executable, "-c", IMPORT]
    return float(subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=True).stdout)


def first_line_ms(with_bootstrap: bool) -> float:
    """Milliseconds from exec to the script's first line, started as the agent starts a worker or as plain Python."""
    with launch() as job:
        env, page = {}, create_page(hook=True)
        if with_bootstrap:
            env = bootstrap_env({}, page_fd=page.fd)
        job.start([sys.executable, "-u", worker("first_line")], env, pass_fds=[page.fd])
        at = job.wait_for("first", 1)[0].at
        job.finish()
        if with_bootstrap and (page.trouble or not page.pid):
            raise RuntimeError(f"the bootstrap did not work: {page.trouble or 'nobody mapped the page'}")
        page.close()
        return 1000 * (at - job.started_at)


def calls_us() -> dict[str, float]:
    """Microseconds for one call of each kind, on a real page."""
    page = create_page()
    env = clean_environment() | bootstrap_env({}, page_fd=page.fd)
    how = {"capture_output": True, "text": True, "check": True}
    done = subprocess.run([sys.executable, worker("beat")], env=env, pass_fds=[page.fd], **how)
    if not page.signs().sections:
        raise RuntimeError("the calls did not reach the page")
    page.close()
    return dict(json.loads(done.stdout))


def run(bench: Bench) -> list[Row]:
    """Five rows; torchrun has none of these."""
    imports = [import_ms() for _ in range(bench.times(15))]
    lines: dict[str, list[float]] = {HOLDFAST: [], PLAIN: []}
    for _ in range(bench.times(25)):
        for contender, samples in lines.items():
            samples.append(first_line_ms(contender == HOLDFAST))
    added = median(lines[HOLDFAST]) - median(lines[PLAIN])
    taken = [calls_us() for _ in range(bench.times(5))]
    rows = [
        Row("`import holdfast.client`", "ms", {HOLDFAST: imports}, "≤ 5 ms", median(imports) <= 5),
        Row("a worker's exec → its first line", "ms", lines, "≤ 15 ms more than Python", added <= 15, f"{added:.1f} ms more"),
    ]
    for call, what, most in (
        ("heartbeat", "`heartbeat()`", 0.4),
        ("progress", "`progress(step)`", 0.4),
        ("section", "`with section(name)`, in and out", 1.0),
    ):
        samples_us = [costs[call] for costs in taken]
        rows.append(Row(what, "µs", {HOLDFAST: samples_us}, f"≤ {most:g} µs", median(samples_us) <= most))
    return rows
