"""What does it cost to report a rank to a host daemon that is well, gone, or takes connections and never answers?

Ours is `holdfast.google`; beside it Google's own client, where `make google` has put that: its figures stand in the note. A
daemon that hangs holds it for ever, so it is given `PATIENCE_S`.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from harness import HOLDFAST, Bench, Row, clean_environment

THEIRS = Path(sys.prefix) / "google" / "bin" / "python"
PATIENCE_S = 15.0
CALLS = 200

OURS = """
import sys, time
from holdfast.google import DeviceState, GoogleCloudResiliencyClient
port = int(sys.argv[1])
client = GoogleCloudResiliencyClient(port + 1, port, 0, 0, "train")
took = []
for _ in range(int(sys.argv[2])):
    time.sleep(0.005)
    began = time.perf_counter()
    client.update_state(DeviceState.RUNNING)
    took.append(1e6 * (time.perf_counter() - began))
print(*took, flush=True)
"""

GOOGLE_S = """
import sys, time
import supervisor_core as core
port = int(sys.argv[1])
info = core.WorkerInfo(worker_address=f"localhost:{port + 1}", worker_id="id", worker_name="n")
client = core.Worker(worker_info=info, host_address=f"localhost:{port}")
took = []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    client.send_heartbeat(info)
    took.append(1e6 * (time.perf_counter() - began))
print(*took, flush=True)
"""


@contextmanager
def daemon(kind: str) -> Iterator[int]:
    """The port of a daemon that is well (ours), gone, or hung."""
    if kind == "well":
        from holdfast.supervisor.daemon.google_service import serve

        server, port = serve("127.0.0.1", 0, lambda peer, method, message: None, lambda user: True)
        yield port
        server.stop(None).wait()
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if kind == "gone":
            listener.close()
        yield port


def calls_us(python: str, script: str, port: int, calls: int) -> list[float]:
    """Microseconds of each call; empty: it did not come back within PATIENCE_S."""
    command = [python, "-c", script, str(port), str(calls)]
    try:
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    except subprocess.TimeoutExpired:
        return []
    return [float(word) for word in done.stdout.split()]


def theirs(kind: str, port: int) -> str:
    """Google's figure, in words."""
    if not THEIRS.exists():
        return "Google's is not here: make google"
    took = calls_us(str(THEIRS), GOOGLE_S, port, CALLS if kind == "well" else 1)
    return f"Google's: {median(took) / 1000:.3g} ms" if took else f"Google's: not back after {PATIENCE_S:g} s"


def run(bench: Bench) -> list[Row]:
    """Three rows."""
    try:
        import grpc  # noqa: F401  # type: ignore[import-untyped]
    except ImportError:
        return []
    rows = []
    for kind in ("well", "gone", "hung"):
        with daemon(kind) as port:
            samples = calls_us(sys.executable, OURS, port, bench.times(CALLS))
            note = "" if bench.quick else theirs(kind, port)
        rows.append(
            Row(f"reporting a rank, host daemon {kind}", "µs", {HOLDFAST: samples}, "≤ 100 µs", median(samples) <= 100, note)
        )
    return rows
