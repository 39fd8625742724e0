"""A script's Python may be older than the agent's: with `holdfast-client`, it says and hears all that another does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit.pythons import VERSIONS, with_client

pytestmark = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture
def there(version: str, tmp_path: Path) -> Path:
    """The interpreter of an environment that has `holdfast-client`, and nothing else; test_client_wheel installs it by pip."""
    return with_client(version, tmp_path / "there")


TRAINS = """
import os, sys, time
from holdfast import client
from holdfast.client import stash

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

@client.record
def main():
    found = stash.latest()
    say("Python %d.%d" % sys.version_info[:2], "from", client.__file__)
    say("goes on after", found[0] if found else None, found[1]["weights"] if found else None)
    client.heartbeat()
    for step in range(3):
        with client.section("step"):
            client.progress(step)
        stash.save(step, {"weights": b"w%d" % step})
    if found is None:
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        raise ValueError("boom")

main()
"""


def test_our_agent_hears_its_steps_and_its_exception_and_gives_it_its_state_back(
    holdfast: Any, script: Any, there: Path, version: str, tmp_path: Path, wait_until: Any
) -> None:
    go = tmp_path / "go"
    job = holdfast.start("run", "--max-restarts", 1, "--nproc-per-node", 1, script(TRAINS), go, env={"PYTHON_EXEC": str(there)})
    job.wait_for_output("goes on after None")
    wait_until(lambda: '"step": 2' in holdfast.run("status", "--json").stdout, what="the agent knows the step")
    go.touch()
    ended = job.wait()
    assert ended.returncode == 0, ended.output
    assert ended.stdout.count(f"Python {version} from {there.parents[1]}/lib/") == 2 and "goes on after 2 b'w2'" in ended.stdout
    (failed,) = holdfast.events("FailureSeen")
    assert failed["failure"]["cause"] == "exception" and "ValueError: boom" in failed["failure"]["message"]


GOES_ON = """
import os, time
from holdfast import client

def train(life):
    os.write(1, f"rank {os.environ['RANK']} life {life.number} pid {os.getpid()}\\n".encode())
    if life.number > 0:
        return
    if os.environ["RANK"] == "1":
        if os.environ["HOLDFAST_ROUND"] == "1":
            while not os.path.exists(__file__ + ".met"):
                time.sleep(0.01)
            os.kill(os.getpid(), 9)
        return
    open(__file__ + ".met", "w").close()
    while True:
        time.sleep(0.01)

client.run_in_place(train)
"""


def test_who_has_not_failed_begins_again_in_its_process(holdfast: Any, script: Any, there: Path, version: str) -> None:
    ended = holdfast.run("run", "--max-restarts", 1, "--nproc-per-node", 2, script(GOES_ON), env={"PYTHON_EXEC": str(there)})
    assert ended.returncode == 0, ended.output
    lives = re.findall(r"rank 0 life (\d) pid (\d+)", ended.stdout)
    assert [number for number, _ in lives] == ["0", "1"] and len({pid for _, pid in lives}) == 1, ended.output


REPORTS = """
import sys
from holdfast import google
google.install()
import supervisor

port = int(sys.argv[1])
client = supervisor.GoogleCloudResiliencyClient(port + 1, port, local_rank=0, global_rank=5, workload_name="train")
for state in ("RUNNING", "FAILED"):
    client.update_state(supervisor.DeviceState[state])
"""


def test_google_s_names_reach_our_daemon(
    holdfast: Any, script: Any, there: Path, version: str, free_port: int, wait_until: Any
) -> None:
    pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")
    daemon = holdfast.start("daemon", "--port", free_port)
    daemon.wait_for_output("listening at")
    done = subprocess.run([there, script(REPORTS), str(free_port)])
    assert done.returncode == 0
    daemon.wait_for_output("rank 5 (localhost:" + f"{free_port + 1}) of train is FAILED")
