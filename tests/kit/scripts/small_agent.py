"""The smallest agent there can be, under the guardian: one worker with escaping descendants, and a log of signals.

    small_agent.py DIRECTORY [--worker-end wait|exit] [--exit N] [--deaf] [--lease SECONDS [--once]]

DIRECTORY/agent gets the agent's pid, DIRECTORY/signals one line per signal, DIRECTORY/pids a file per descendant.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time

from holdfast.runtime.process import guardian, process

HERE = os.path.dirname(os.path.abspath(__file__))
NOTED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN + 5)


def agent(given: argparse.Namespace) -> int:
    folder = given.directory

    def note(signum: int, frame: object) -> None:
        with open(os.path.join(folder, "signals"), "a") as file:
            file.write(f"{signum}\n")

    noted, noting = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    if not given.default_signals:
        # One that comes between Python's last look for signals and the select itself does not interrupt it.
        signal.set_wakeup_fd(noting)
        for signum in NOTED:
            signal.signal(signum, note)
    pids = os.path.join(folder, "pids")
    os.mkdir(pids)
    worker = process.spawn([sys.executable, os.path.join(HERE, "escapees.py"), pids, given.worker_end], os.environ)
    while len(os.listdir(pids)) < 6:
        time.sleep(0.005)
    with open(os.path.join(folder, "agent.new"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(os.path.join(folder, "agent.new"), os.path.join(folder, "agent"))
    if given.deaf:
        while True:
            time.sleep(60)
    assert worker.pidfd is not None
    lease = guardian.lease
    assert lease is not None
    waiting = {worker.pidfd, guardian.guardian_lost_fd(), noted}
    while True:
        if given.lease and not (given.once and lease.until):
            lease.renew(time.monotonic() + given.lease)
        ready = select.select(waiting, [], [], given.lease / 4 if given.lease and not given.once else None)[0]
        if guardian.guardian_lost_fd() in ready:
            guardian.end_everything()
        if noted in ready:
            os.read(noted, 4096)
            continue
        if given.once:
            struck = lease.struck
            lease.none()  # its worker has ended, as in the agent: what is left is to exit, however long that takes
            return given.exit if struck else 1
        if ready:
            return given.exit


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--worker-end", default="wait")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--deaf", action="store_true", help="never look at anything again")
    parser.add_argument("--default-signals", action="store_true")
    parser.add_argument("--lease", type=float, default=0.0)
    parser.add_argument("--once", action="store_true", help="do not renew it; tell by the exit code who has ended the worker")
    given = parser.parse_args()
    sys.exit(guardian.guard(lambda: agent(given)))
