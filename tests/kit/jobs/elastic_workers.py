"""Functions and programs that the compat tests run as workers."""

from __future__ import annotations

import os
import signal
import sys
import time

LEAVE_BEHIND = """
import os, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
sleeper = [sys.executable, "-c", deaf]
for own_session in (False, True):
    child = subprocess.Popen(sleeper, start_new_session=own_session, stdout=subprocess.PIPE)
    child.stdout.readline()
    with open(sys.argv[1], "a") as file:
        file.write(f"{child.pid}\\n")
sys.exit(int(sys.argv[2]))
"""
"""Leaves two children that ignore SIGTERM behind, one in a session of its own, and exits."""


def place():
    return f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"


def add(a, b):
    return a + b


def many_words(count):
    return ["word"] * count


def speak(word):
    print(f"{word} to stdout")
    print(f"{word} to stderr", file=sys.stderr)
    return word


def raise_or_wait(text):
    if text:
        raise ValueError(text)
    time.sleep(600)


def exit_or_wait(code):
    if code is not None:
        sys.exit(code)
    time.sleep(600)


def touch_and_wait(path):
    open(path, "w").close()
    time.sleep(600)


def shut_and_end_slowly(path):
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), os._exit(0)))
    os.closerange(3, 1024)
    open(path, "w").close()
    while True:
        time.sleep(0.01)  # short: a signal just before it is noted at its end


def vanish():
    os._exit(0)


def unpicklable():
    return lambda: None


def tensor(size):
    import torch

    return torch.arange(size)
