"""Where was a rank? Stacks as faulthandler and py-spy write them, and what is read from them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from kit.waiting import wait_for

from holdfast.core.page.stack_text import Frame, is_whole, main_thread, waits, where

LIB = "/usr/lib/python3.11"
TORCH = "/venv/lib/python3.11/site-packages/torch"

LOADING = f"""\
Thread 0x00007fa5d92db6c0 (most recent call first):
  File "{LIB}/threading.py", line 982 in run
  File "{LIB}/threading.py", line 1045 in _bootstrap_inner
  File "{LIB}/threading.py", line 1002 in _bootstrap

Current thread 0x00007fa5d9e3eb80 (most recent call first):
  File "/home/me/data.py", line 88 in load
  File "/home/me/train.py", line 12 in <module>
"""

REDUCING = f"""\
Thread 0x00007fa5d92db6c0 (most recent call first):
  File "{LIB}/threading.py", line 1002 in _bootstrap

Thread 0x00007fa5d9e3eb80 [MainThread] (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 2830 in all_reduce
  File "{TORCH}/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/me/train.py", line 41 in step
  File "<frozen runpy>", line 88 in _run_code
  File "<frozen runpy>", line 198 in _run_module_as_main
"""

SPIED = """\
Process 4711: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    read (/home/me/data.py:30)
    <module> (/home/me/train.py:12)
Thread 4720 (idle): "Thread-1"
    wait (/usr/lib/python3.11/threading.py:320)
"""


def test_the_main_thread_is_the_last_for_faulthandler_and_the_named_one_for_py_spy() -> None:
    assert main_thread(LOADING)[0] == Frame(file="/home/me/data.py", line="88", function="load")
    assert [frame.function for frame in main_thread(SPIED)] == ["read", "<module>"]
    assert main_thread(SPIED.replace(': "MainThread"', "")) == main_thread(SPIED), "without its name by its number"
    assert main_thread("") == () and main_thread("py-spy: permission denied\n") == ()


def test_where_it_was_is_the_innermost_frame_and_who_of_the_script_called_it() -> None:
    assert where(main_thread(LOADING)) == "load (data.py:88)"
    assert where(main_thread(REDUCING)) == "all_reduce (distributed_c10d.py:2830), called in step (train.py:41)"
    assert where(()) == ""


def test_a_script_that_has_ended_and_whose_thread_has_not_is_said_to_have(tmp_path):
    source = "import faulthandler, signal, sys, threading\nfaulthandler.register(signal.SIGUSR1)\n"
    source += "open(sys.argv[1], 'w').close()\nthreading.Thread(target=threading.Event().wait).start()\nsys.exit(3)"
    begun, said = tmp_path / "begun", tmp_path / "said"
    with said.open("w") as file:
        process = subprocess.Popen([sys.executable, "-c", source, begun], stderr=file)
    try:
        wait_for(begun.exists, what="its handler")

        def ended():
            process.send_signal(signal.SIGUSR1)
            return where(main_thread(said.read_text())).endswith("its script has ended, and a thread of it has not")

        wait_for(ended, what="the end of its script")
        wait_for(lambda: is_whole(said.read_text()), what="the end of what it shows")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("path", "function", "expected"),
    [
        ("distributed/distributed_c10d.py", "barrier", True),
        ("autograd/graph.py", "_engine_run_backward", True),
        ("autograd/graph.py", "increment_version", False),
        ("utils/data/dataloader.py", "_try_get_data", False),
        ("distributed/checkpoint/filesystem.py", "write_data", False),
    ],
)
def test_whoever_is_in_a_collective_waits_for_others(path: str, function: str, expected: bool) -> None:
    assert waits([Frame(file=f"{TORCH}/{path}", line="1", function=function)]) is expected


def test_a_frame_of_ones_own_below_a_collective_waits_for_nobody() -> None:
    hook = Frame(file="/home/me/train.py", line="3", function="my_hook")
    assert waits([hook, *main_thread(REDUCING)]) is False
    assert waits(()) is None


@pytest.mark.parametrize("text", [LOADING, REDUCING])
def test_stacks_are_whole_when_the_main_thread_s_outermost_frame_is_there(text: str) -> None:
    assert is_whole(text)
    lines = text.splitlines(keepends=True)
    for count in range(len(lines)):
        assert not is_whole("".join(lines[:count])), f"after {count} lines"
    assert not is_whole(text[:-1]), "the last line may go on"


def test_stacks_that_faulthandler_has_cut_short_are_whole() -> None:
    assert is_whole("".join(LOADING.splitlines(keepends=True)[:6]) + "  ...\n")
