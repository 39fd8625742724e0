"""Is the way to the first worker still light? Every module loaded on it delays the start of every job, and every restart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
HEAVY = (
    "dataclasses subprocess asyncio pathlib tempfile shutil traceback inspect datetime uuid email http ssl "
    "urllib concurrent multiprocessing random msgspec yaml rich prometheus_client torch"
)
"""Each costs milliseconds (dataclasses 16, asyncio 100, torch 1500), and can wait until the workers run. Light enough for the
top of a module: argparse, re, enum, json, signal, typing, functools, collections, contextlib, ctypes, threading, socket.
logging is not: it loads traceback."""

PROBE = """
import os, sys, time
def note(path):
    with open(path, "w") as file:
        file.write("\\n".join(sorted(set(sys.modules) - before)))
def watch(event, args):
    if event in ("os.posix_spawn", "subprocess.Popen", "os.exec") and sys.argv[-1] in map(os.fsdecode, args[1]):
        note(os.environ["LOADED"])
def leave(code, leave=os._exit):
    if "holdfast.agent.agent" in sys.modules:
        until = time.monotonic() + 20
        while "holdfast.diagnosis.tables.torch" not in sys.modules and time.monotonic() < until:
            time.sleep(0.01)  # a thread loads it
        note(os.environ["LOADED"] + ".at-the-end")
    leave(code)
before = set(sys.modules)
sys.addaudithook(watch)
os._exit = leave
from holdfast.__main__ import main
raise SystemExit(main())
"""

UNTIL_SETTLED = """
import os, pathlib, time
state, until = pathlib.Path(os.environ["HOLDFAST_STATE_DIR"]), time.monotonic() + 30
while time.monotonic() < until and not any(path.is_socket() for path in state.rglob("*")):
    time.sleep(0.01)
"""
"""Ends when the agent has begun to do what it had put off: it is done with that before it hears of the end."""

FOR_AN_END = {
    *(
        "holdfast.agent.group.stopping",
        "holdfast.agent.group.shutdown",
        "holdfast.agent.group.hang_response",
        "holdfast.rendezvous.coordinator.failure_handling",
    ),
    *("holdfast.agent.reporting.final_report", "holdfast.agent.workers.error_files", "holdfast.runtime.hardware.gpus", "json"),
    *("holdfast.diagnosis.collect", "holdfast.diagnosis.tables.torch"),
}
"""What a failure or an end needs. It is loaded before: by then there may be no descriptor left to read it by, or another
version of us on the disk."""


POD = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1", "JOBSET_NAME": "a", "POD_NAME": "a"}
"""What tells an agent that it is in one; nobody answers there."""


@pytest.mark.parametrize(
    "words",
    [("run",), ("run", "--in-place-restart"), ("ft_launcher", "--ft-rank-heartbeat-timeout", "60")],
    ids=" ".join,
)
def test_nothing_heavy_is_loaded_before_the_first_worker_of_one_node_starts(script, tmp_path: Path, words) -> None:
    loaded = tmp_path / "loaded"
    env = os.environ | POD | {"LOADED": str(loaded), "HOLDFAST_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(SRC)}
    # -S: what this environment's own .pth files load is not ours.
    command = [sys.executable, "-S", "-c", PROBE, *words, "--nproc-per-node", "2", str(script(UNTIL_SETTLED))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    modules = loaded.read_text().splitlines()
    assert "holdfast.agent.agent" in modules
    heavy = sorted({module.split(".")[0] for module in modules} & set(HEAVY.split()))
    assert not heavy, f"{heavy} loaded before the first worker; import inside the function that needs it, and say why there"
    assert ("holdfast.agent.reporting.jobset" in modules) == ("--in-place-restart" in words)
    assert {*(tmp_path / "loaded.at-the-end").read_text().splitlines()} >= FOR_AN_END
