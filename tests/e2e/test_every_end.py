"""Every way in which a rank can end is named as the cause, though the other rank's collective breaks before the end is seen.

One job of two nodes plays one end in each attempt. `report`, `why`, `incidents` and the consoles of both nodes then say the
same sentence of each, and all who tell its cause the same one. What the other rank does is gloo's part: it fails as soon as its
peer's connection closes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kit.neighbours import run_out_of_memory

from holdfast.core.job.finding import Class
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.collect import diagnose, of_files
from holdfast.diagnosis.rule import load
from holdfast.diagnosis.story import incidents
from holdfast.supervisor.web.story import Story
from holdfast.telemetry.report.safe_text import one_line

RANK = r"""
import atexit, ctypes, os, resource, signal, socket, sys, threading, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
path, ends = f"{sys.argv[1]}/{attempt}", sys.argv[2:]
if rank == 0:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path + ".new")
    server.listen()
    os.rename(path + ".new", path)
    peer, _ = server.accept()
    done = peer.recv(1)  # closed by peer: nothing
    if not done:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2452")
    sys.exit(0)

def leaks():
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    files = []
    while True:
        files.append(open("/dev/null"))

def hook(replacement):
    sys.excepthook = replacement
    raise ValueError("the reason 4711")

def broken(*args):
    raise RuntimeError("the hook is broken")

def chain():
    error = None
    for number in range(2000):
        error, cause = ValueError(f"link {number}"), error
        error.__cause__ = cause
    raise error

class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def raises(error):
    raise error

def forever():
    return forever()

def killed_by_child():
    if os.fork() == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)

def kill(number):
    os.kill(os.getpid(), number)
    time.sleep(60)

def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    open(path + ".large", "w").write("x" * 100_000)

def spends():
    resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
    while True:
        pass

def in_thread():
    thread = threading.Thread(target=lambda: os._exit(21))
    thread.start()
    time.sleep(60)

client = socket.socket(socket.AF_UNIX)
while True:
    try:
        client.connect(path)
        break
    except OSError:
        time.sleep(0.005)
if attempt < len(ends):
    exec(ends[attempt])
client.send(b"x")
"""

SOON: dict[str, str] = {
    "sys.exit(0)": "exited with code 0 while other ranks were still training",
    "sys.exit(3)": "exited with code 3: its script called sys.exit",
    "sys.exit('no data left')": "exited with code 1: its script called sys.exit; its last line on stderr: no data left",
    "hook(broken)": "exited with code 1: ValueError: the reason 4711",
    "leaks()": "exited with code 1: OSError: [Errno 24] Too many open files: '/dev/null'",
}
"""An end, as the rank plays it, and its sentence."""

MORE: dict[str, str] = {
    "os._exit(0)": SOON["sys.exit(0)"],
    "sys.exit(256)": SOON["sys.exit(0)"],
    "os.execv('/bin/true', ['true'])": SOON["sys.exit(0)"],
    "raise SystemExit('no data left')": "exited with code 1: its script called sys.exit; its last line on stderr: no data left",
    "print(1, file=sys.stderr); sys.exit(2)": "exited with code 2: its script called sys.exit; its last line on stderr: 1",
    "sys.exit(-1)": "exited with code 255: its script called sys.exit",
    "atexit.register(client.close); sys.exit(5)": "exited with code 5: its script called sys.exit",
    "atexit.register(lambda: os._exit(11)); sys.exit(0)": "exited with code 11: it ended without Python's own end",
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); sys.exit(6)": "exited with code 6: its script",
    "os._exit(7)": "exited with code 7: it ended without Python's own end",
    "ctypes.CDLL(None).exit(13)": "exited with code 13: it ended without Python's own end",
    "in_thread()": "exited with code 21: it ended without Python's own end",
    "os.execv('/bin/sh', ['sh', '-c', 'sleep 0.3; exit 9'])": "exited with code 9: it had become another program by exec: s",
    "os.execv('/bin/sh', ['sh', '-c', 'exit 9'])": "exited with code 9: it ",
    "kill(signal.SIGKILL)": "was killed by SIGKILL",
    "kill(signal.SIGTERM)": "was killed by SIGTERM",
    "kill(signal.SIGHUP)": "was killed by SIGHUP",
    "kill(40)": "was killed by signal 40",
    "os.abort()": "was killed by SIGABRT",
    "ctypes.string_at(0)": "was killed by SIGSEGV",
    "killed_by_child()": "was killed by SIGKILL",
    "limited()": "was killed by SIGXFSZ: a file that it wrote had grown to the limit",
    "spends()": "was killed by SIGXCPU: it had used up its CPU time",
    "raise KeyboardInterrupt": "was killed by SIGINT: KeyboardInterrupt",
    "raise GeneratorExit('early')": "exited with code 1: GeneratorExit: early",
    "raise MemoryError": "exited with code 1: MemoryError",
    "forever()": "exited with code 1: RecursionError: maximum recursion depth exceeded",
    "chain()": "exited with code 1: ValueError: link 1999",
    "raise Odd": "exited with code 1: Odd: <exception without a text>",
    "raise ValueError('a \\ud800 b')": r"exited with code 1: ValueError: a \ud800 b",
    "raise ValueError('h' * 8_000_000)": "exited with code 1: ValueError: hhhhhhhh",
    "raise OSError(28, 'No space left on device', '/ckpt/7.pt')": "exited with code 1: OSError: [Errno 28] No space left on",
    "raise type('Two\\nLines', (Exception,), {})('x')": "exited with code 1: Two Lines: x",
    "hook(lambda *it: print('sorry', file=sys.stderr))": "exited with code 1: ValueError: the reason 4711",
    "hook(lambda *it: os._exit(5))": "exited with code 5: it ended without Python's own end",
    "compile('x = (', 'other.py', 'exec')": "exited with code 1: SyntaxError: ",
    "import no_such_module": "exited with code 1: ModuleNotFoundError: No module named 'no_such_module'",
    "import asyncio; asyncio.run(asyncio.wait_for(asyncio.sleep(9), 0.01))": "exited with code 1: TimeoutError",
    "{}['labels']": "exited with code 1: KeyError: 'labels'",
    "assert attempt < 0, 'shapes differ'": "exited with code 1: AssertionError: shapes differ",
    "1 / 0": "exited with code 1: ZeroDivisionError: division by zero",
    "open('/no/such/shard-1.bin')": "exited with code 1: FileNotFoundError: [Errno 2] No such file or directory",
    "socket.create_connection(('127.0.0.1', 1))": "exited with code 1: ConnectionRefusedError: [Errno 111]",
    "import json; json.loads('{')": "exited with code 1: JSONDecodeError",
    "b'\\xff'.decode()": "exited with code 1: UnicodeDecodeError",
    "raise FloatingPointError('loss is nan')": "exited with code 1: FloatingPointError: loss is nan",
    "raise OSError(28, 'No space left on device', '/dev/shm/7')": "exited with code 1: OSError: [Errno 28] No space left on",
    "raise RuntimeError('CUDA error: an illegal memory access was encountered')": "exited with code 1: RuntimeError: CUDA",
    "raise RuntimeError('Timed out after 1800000 ms')": "exited with code 1: RuntimeError: Timed out after",
    "raise PermissionError(13, 'Permission denied', '/ckpt')": "exited with code 1: PermissionError: [Errno 13]",
    "raise TypeError('forward() missing 1 argument')": "exited with code 1: TypeError: forward",
    "raise EOFError('Ran out of input')": "exited with code 1: EOFError: Ran out of input",
}


OF_MEMORY = ("raise MemoryError", "raise OSError(28, 'No space left on device', '/dev/shm/7')")
"""Those that are this rank's own want of memory, whatever the kernel did to another's process before."""


def play(holdfast: Any, script: Any, tmp_path: Any, port: int, ends: Sequence[str]) -> list[Any]:
    """Consoles of both nodes, of a job that has played these ends."""
    sockets = tmp_path / "s"
    sockets.mkdir()
    common = (
        *("--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", len(ends), "--backoff", 0, "--rdzv-id", "ends"),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", script(RANK), sockets, *ends),
    )
    nodes = [holdfast.start("run", "--node-name", name, *common) for name in ("n0", "n1")]
    done = [node.wait(120) for node in nodes]
    assert [one.returncode for one in done] == [0, 0], done
    return done


@pytest.mark.parametrize("ends", [SOON, MORE], ids=["soon", "more"])
def test_each_end_is_named_and_by_all_in_the_same_words(holdfast, script, tmp_path, free_port, ends):
    if ends is MORE:
        run_out_of_memory()  # another's process, of which the kernel's log and counts tell; where that can be had
    consoles = play(holdfast, script, tmp_path, free_port, list(ends))
    told = [json.loads(holdfast.run(command, "--json").stdout) for command in ("report", "why", "incidents")]
    lives = told[0]["timeline"]["lives"]
    shown = holdfast.run("report").stdout.splitlines()
    for number, (end, words) in enumerate(ends.items()):
        (sentence,) = _sentences(lives[number], told[1][number]["reason"])
        assert re.fullmatch(rf"rank \d \(local 0\) on n\d {re.escape(words)}.*", sentence), (end, sentence)
        incident = told[2][number]
        guilty = incident["failures"][0]
        assert (guilty["rank"], guilty["node"]) == (1, lives[number]["failures"][0]["node"]), end
        # The kernel's log is this host's, where other tests may break disks meanwhile.
        assert incident["finding"]["rank"] in (1, None), (end, incident["finding"])
        for_memory = incident["finding"]["class"] == Class.OOM_HOST and incident["finding"]["confidence"] >= 0.7
        assert not for_memory or end in OF_MEMORY, (end, incident["finding"])
        row = next(line for line in shown if line.startswith(f"{number + 1} "))
        assert sentence[:80] in row, (end, row)
        assert all(sentence[:80] in console.stderr for console in consoles), end
    _agree_on_causes(holdfast.jobs()[-1], list(ends))


def _agree_on_causes(job: Path, ends: Sequence[str]) -> None:
    """Whoever tells the cause of an end, and whose it is: the agent (on the console, to its policies and in its report),
    `incidents`, the dashboard, and `diagnose` of what was kept."""
    rules, story = load(), Story(str(job))
    told = incidents(str(job), story.timeline)
    assert len(told) == len(ends)
    for end, one, brief in zip(ends, told, story.incidents()):
        expected = one.finding.sentence, one.finding.rank
        agents, kept = diagnose(one.life.failures), attribute(of_files([one.folder], rules))
        assert (agents.sentence, agents.rank) == (kept.sentence, kept.rank) == expected, end
        assert (brief.cause, brief.rank) == (one_line(one.finding.sentence, 500), 1), end


def _sentences(life: dict[str, Any], reason: str) -> set[str]:
    """What report and why say, without what was decided."""
    from holdfast.core.job.failure import Failure, describe
    from holdfast.telemetry.record.plain_values import from_plain

    failure = from_plain(Failure, life["failures"][0])
    assert failure is not None and failure.rank == 1, life["failures"]
    return {describe(failure), reason.rpartition("; restarting all ranks")[0]}
