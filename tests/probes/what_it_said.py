"""Run a script, and print what it has told its agent: what_it_said.py SCRIPT [ARGUMENTS]"""

from __future__ import annotations

import json
import os
import runpy
import sys

from holdfast.client import this_worker
from holdfast.core.value import to_plain
from holdfast.runtime.shm import create_page

sys.argv.pop(0)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    words = this_worker.words
    assert words is not None, "this worker has no page"
    copy = create_page()
    copy.map[:] = words.cast("B").tobytes()
    signs = to_plain(copy.signs())
    os.write(1, (json.dumps(signs | {"rank": os.environ["RANK"]}) + "\n").encode())
