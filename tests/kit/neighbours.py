"""Another user of this host: programs that run as `nobody`. It needs root, which is then the user who is attacked."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534

_BECOMES = f"""
import os, resource, signal, socket, sys, time, urllib.request
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY}), os.umask(0o022)
"""


def _becomes(source: str) -> str:
    """It imports what `source` does before it is nobody: our Python may lie where nobody else may read."""
    imports = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Import | ast.ImportFrom)]
    return "\n".join(map(ast.unparse, imports)) + _BECOMES + source


def as_nobody(source: str, *args: object) -> str:
    """What a program of another user prints."""
    words = [sys.executable, "-c", _becomes(source), *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, cwd="/").stdout


@contextmanager
def beside(source: str, *args: object, is_ours: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A program of another user, or of ours, that has printed a line and runs on until the block ends."""
    words = [sys.executable, "-c", source if is_ours else _becomes(source), *map(str, args)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd="/") as running:
        assert running.stdout is not None and running.stdout.readline()
        try:
            yield running
        finally:
            running.kill()
