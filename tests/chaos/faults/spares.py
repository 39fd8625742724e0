# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""Warm spares, which import what the script has imported before a restart needs them: scripts that do odd things then."""

from __future__ import annotations

import contextlib
import os
import signal

from chaos.fault import fault
from chaos.job import Job, Lost
from chaos.node import send

SCRIPT = "import odd\nimport holdfast.client\nholdfast.client.heartbeat()\n"
READY_S = 8.0


def _spares(job: Job) -> list[int]:
    """Pids of the spares that are ready, once there are two or it is clear that there will be none."""
    ready = lambda: [event for node in job.nodes.values() for event in node.records() if event.get("event") == "SpareReady"]
    with contextlib.suppress(Lost):
        job.wait(lambda: len(ready()) >= 2, "spares", READY_S)
    return [int(str(event["pid"])) for event in ready()]


def _library(job: Job, source: str) -> None:
    """The module `odd`, where every node finds it and no spare thinks that it may change."""
    folder = job.base / "library"
    folder.mkdir(exist_ok=True)
    (folder / "odd.py").write_text(source)
    for node in job.nodes.values():
        node.env["PYTHONPATH"] = str(folder)


def odd(name: str, done: str, source: str, *, ddp: bool = False, smoke: bool = False) -> None:
    """A kind in which the script imports a module that does something, and a rank is killed once spares are ready."""

    @fault(f"warm: {name}", f"{done}; then a rank is killed", restarts=1, starts=False, script=SCRIPT, smoke=smoke, ddp=ddp)
    def play(job: Job) -> None:
        _library(job, source)
        job.start()
        job.trains()
        _spares(job)
        job.kill_rank(job.any_rank())
        job.again()


odd("plain", "the script imports a module like any other", "import decimal\n", smoke=True)
odd("sockets at import", "a module opens a listening socket and a connection to it when it is imported",
    "import socket\nserver = socket.create_server(('127.0.0.1', 0))\nlink = socket.create_connection(server.getsockname())\n")  # fmt: skip
odd("fixed port at import", "a module binds the same port whenever it is imported, if it can",
    "import os, socket\ntry:\n    server = socket.create_server(('127.0.0.1', 30011 + int(os.environ['CHAOS_NODE'][1:])))\nexcept OSError: server = None\n")  # fmt: skip
odd("threads at import", "a module starts threads when it is imported",
    "import threading, time\nfor _ in range(4): threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n")  # fmt: skip
odd("set_start_method", "a module calls multiprocessing.set_start_method when it is imported",
    "import multiprocessing\nmultiprocessing.set_start_method('spawn')\n")  # fmt: skip
odd(
    "child at import",
    "a module starts a child process when it is imported",
    "import subprocess\nchild = subprocess.Popen(['sleep', '3600'])\n",
)
odd(
    "cuda asked at import",
    "a module asks torch.cuda when it is imported",
    "import torch\ncuda = torch.cuda.is_available()\n",
    ddp=True,
)
odd("import writes", "a module writes to a file and to stdout when it is imported",
    "import os\nprint('a line at import')\nwith open(os.environ['TMPDIR'] + '/../written', 'a') as file: file.write('x')\n")  # fmt: skip
odd("import reads RANK", "a module keeps RANK when it is imported", "import os\nrank = os.environ['RANK']\n")
odd("signal handler at import", "a module handles SIGTERM when it is imported",
    "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n")  # fmt: skip
odd(
    "import fails in a spare",
    "a module fails to be imported by any process but a rank",
    "import os\nif 'RANK' not in os.environ: raise ImportError('not here')\n",
)
odd(
    "import ends a spare",
    "a module ends any process that imports it and is no rank",
    "import os\nif 'RANK' not in os.environ: os._exit(3)\n",
)
odd(
    "import hangs in a spare",
    "a module does not come back in any process but a rank",
    "import os, time\nif 'RANK' not in os.environ: time.sleep(3600)\n",
)
odd("import takes 5 s", "a module takes 5 s to be imported", "import time\ntime.sleep(5)\n")
odd(
    "atexit at import",
    "a module registers with atexit, and changes the working directory",
    "import atexit, os\natexit.register(lambda: None)\nos.chdir('/')\n",
)
odd("stdin at import", "a module reads stdin when it is imported", "import sys\ntext = sys.stdin.read() if sys.stdin else ''\n")
odd(
    "excepthook at import",
    "a module replaces sys.excepthook when it is imported",
    "import sys\nsys.excepthook = lambda *_: None\n",
)
odd("random at import", "a module seeds random when it is imported", "import random\nrandom.seed(1)\nfirst = random.random()\n")


def _begin(job: Job, *options: object, source: str = "import decimal\n") -> list[int]:
    _library(job, source)
    job.start(options=options)
    job.trains()
    return _spares(job)


@fault(
    "warm: script changed",
    "the script is changed while it trains; then a rank is killed",
    restarts=1,
    starts=False,
    script=SCRIPT,
)
def script_changed(job: Job) -> None:
    _begin(job)
    job.script.write_text(job.script.read_text() + "\n# changed\n")
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "warm: module changed",
    "a module that the script imports is changed while it trains; then a rank is killed",
    restarts=1,
    starts=False,
    script=SCRIPT,
)
def module_changed(job: Job) -> None:
    _begin(job)
    _library(job, "import fractions\nchanged = True\n")
    job.kill_rank(job.any_rank())
    job.again()


@fault("warm: environment changed", "the script changes variables of its environment that a module has read; then a rank is killed", restarts=1,
       starts=False, script="import os\nos.environ['ODD'] = os.environ['TORCHELASTIC_RESTART_COUNT']\n" + SCRIPT)  # fmt: skip
def environment_changed(job: Job) -> None:
    _begin(job, source="import os\nodd = os.environ.get('ODD')\n")
    job.kill_rank(job.any_rank())
    job.again()


@fault("warm: spares killed", "all spares are killed, and then a rank", restarts=1, starts=False, script=SCRIPT, smoke=True)
def spares_killed(job: Job) -> None:
    for pid in _begin(job):
        send(pid, signal.SIGKILL)
    job.kill_rank(job.any_rank())
    job.again()


@fault("warm: spares stopped", "all spares get SIGSTOP, and then a rank is killed", restarts=(1, 2), starts=False, script=SCRIPT,
       options=("--most-limit", 5, "--least-limit", 5, "--still-limit", 8))  # fmt: skip
def spares_stopped(job: Job) -> None:
    for pid in _begin(job):
        send(pid, signal.SIGSTOP)
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "warm: rank and its spare killed",
    "a rank is killed, and each spare as soon as it is to become one",
    restarts=(1, 2),
    starts=False,
    script=SCRIPT,
)
def spares_killed_late(job: Job) -> None:
    spares = _begin(job)
    job.kill_rank(job.any_rank())
    job.lasts(job.rng.uniform(0, 0.03))
    for pid in spares:
        send(pid, signal.SIGKILL)
    job.again()


@fault("warm: fork", "--warm-mode fork; a rank is killed", restarts=1, starts=False, script=SCRIPT)
def fork(job: Job) -> None:
    _begin(job, "--warm-mode", "fork")
    job.kill_rank(job.any_rank())
    job.again()


@fault("warm: fork, its process killed", "--warm-mode fork; the process that ranks are forked from is killed, and then a rank", restarts=1, starts=False,
       script=SCRIPT)  # fmt: skip
def fork_killed(job: Job) -> None:
    for pid in _begin(job, "--warm-mode", "fork"):
        send(pid, signal.SIGKILL)
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "warm: descriptors run out",
    "a module opens all descriptors but a few when it is imported",
    restarts=(1, 2),
    starts=False,
    script=SCRIPT,
)
def descriptors(job: Job) -> None:
    hold = "import os\nheld = []\ntry:\n    while len(held) < 200: held.append(os.open('/dev/null', os.O_RDONLY))\nexcept OSError: pass\n"
    _begin(job, source=hold)
    assert os.path.exists(job.base / "library")
    job.kill_rank(job.any_rank())
    job.again()
