"""Is the way to the first worker still light? Every module loaded on it delays the start of every job, and every restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
HEAVY = (
    "dataclasses typing logging subprocess asyncio pathlib tempfile shutil traceback inspect datetime uuid email http ssl "
    "urllib concurrent multiprocessing random msgspec yaml rich prometheus_client torch"
)
"""Each costs milliseconds (dataclasses 16, typing 10, asyncio 100, torch 1500), and can wait until the workers run."""

PROBE = """
import json, os, sys
def watch(event, args):
    if event in ("os.posix_spawn", "subprocess.Popen", "os.exec") and sys.argv[-1] in map(os.fsdecode, args[1]):
        with open(os.environ["LOADED"], "w") as file:
            json.dump(sorted(set(sys.modules) - before), file)
before = set(sys.modules)
sys.addaudithook(watch)
from holdfast.__main__ import main
raise SystemExit(main())
"""


@pytest.mark.parametrize("words", [("run",), ("ft_launcher", "--ft-rank-heartbeat-timeout", "60")], ids=" ".join)
def test_nothing_heavy_is_loaded_before_the_first_worker_of_one_node_starts(script, tmp_path: Path, words) -> None:
    loaded = tmp_path / "loaded.json"
    env = os.environ | {"LOADED": str(loaded), "HOLDFAST_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(SRC)}
    # -S: what this environment's own .pth files load is not ours.
    command = [sys.executable, "-S", "-c", PROBE, *words, "--nproc-per-node", "2", str(script("pass"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    modules = json.loads(loaded.read_text())
    assert "holdfast.agent.agent" in modules
    heavy = sorted({module.split(".")[0] for module in modules} & set(HEAVY.split()))
    assert not heavy, f"{heavy} loaded before the first worker; import inside the function that needs it"
