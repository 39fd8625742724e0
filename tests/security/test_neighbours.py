"""Another user of the host learns no secret of ours, changes nothing of ours, and loses nothing by us."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from kit.neighbours import beside

from holdfast.runtime.process.process import children_of

TAKES_THE_MARK = """
import resource, sys, time
line = next(line for line in open(f"/proc/{sys.argv[1]}/limits") if line.startswith("Max file locks"))
mark = int(line.split()[3])
resource.setrlimit(10, (mark, resource.getrlimit(10)[1]))
print("up", flush=True)
time.sleep(300)
"""

SAYS_IT = """
import os, sys, time
line = next(line for line in open(f"/proc/{sys.argv[1]}/limits") if line.startswith("Max file locks"))
os.environ["NOTE"] = line.split()[3]
os.execv(sys.executable, [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"])
"""

LEAVES_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen(["setsid", "sleep", "300"], env={"PATH": "/usr/bin:/bin"})
print("child", child.pid, flush=True)
time.sleep(300)
"""


@pytest.mark.root
def test_the_last_watch_ends_what_the_job_has_started_and_nothing_that_only_shows_its_mark(holdfast, script, wait_until):
    job = holdfast.start("run", script(LEAVES_A_CHILD))
    child = int(wait_until(lambda: job.stdout.partition("child ")[2].split())[0])
    (agent,) = [event["pid"] for event in wait_until(lambda: holdfast.events("AgentStarted"))]
    (watch,) = wait_until(lambda: [pid for pid in children_of(job.pid) if pid != agent])
    mark = Path(f"/proc/{agent}/limits").read_text().partition("Max file locks")[2].split()[0]
    assert mark.isdigit()
    shown = [Path(f"/proc/{pid}/{file}").read_text() for pid in (job.pid, agent, watch) for file in ("cmdline", "environ")]
    assert not any(mark in text for text in shown), "everybody sees command lines"
    with beside(TAKES_THE_MARK, agent) as neighbour, beside(SAYS_IT, agent, is_ours=True) as ours:
        os.kill(agent, signal.SIGSTOP)  # it sees nothing of the guardian's end
        job.kill(signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
        job.wait()
        wait_until(lambda: not Path(f"/proc/{child}").exists() and not Path(f"/proc/{watch}").exists())
        assert neighbour.poll() is None and ours.poll() is None
