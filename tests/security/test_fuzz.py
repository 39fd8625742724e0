"""A short run of the guided fuzzer, so that it does not rot; `make fuzz` gives it longer."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed: pip install '.[fuzz]'")
def test_the_decoder_stands_a_few_seconds_of_guided_fuzzing():
    fuzzer = Path(__file__).with_name("fuzz_decoder.py")
    done = subprocess.run([sys.executable, fuzzer, "4"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-4000:]


def test_without_the_fuzzer_s_library_it_says_so_and_ends_well():
    fuzzer = Path(__file__).with_name("fuzz_decoder.py")
    block = f"import sys, runpy; sys.modules['atheris'] = None; runpy.run_path({str(fuzzer)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("skipped: atheris is not installed")
