"""Does the watch for orphans, which every test here relies on, see what it should?"""

from __future__ import annotations

import subprocess
import sys

DETACH = """
import os, subprocess
os.setsid()
print(subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)
"""


def test_a_detached_grandchild_is_seen_until_it_is_gone(alive, wait_until) -> None:
    assert alive() == []
    child = subprocess.run([sys.executable, "-c", DETACH], capture_output=True, text=True, check=True)
    grandchild = int(child.stdout)
    wait_until(lambda: alive() == [grandchild])
    subprocess.run(["kill", "-9", str(grandchild)], check=True)
    wait_until(lambda: alive() == [])
