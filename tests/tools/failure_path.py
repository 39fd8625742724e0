"""Which of our functions does a failure pass through, from the death of a rank to the first line of its next life?

    python tests/tools/failure_path.py        each file, with its functions

Runs a job of one rank on one node, which dies once and is restarted, and lists every function of ours that the agent calls
in between. What the restarted rank itself runs is not the agent's and does not count.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import ROOT

OURS = str(ROOT / "src/holdfast") + "/"
SCRIPT = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(1)  # its start is over
with open(f"{sys.argv[1]}/{os.environ['TORCHELASTIC_RESTART_COUNT']}", "w") as file:
    file.write(str(time.monotonic()))
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""


def path_of_a_failure() -> dict[str, list[str]]:
    """The functions of ours that are called between a rank's death and its next life, by file."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "dies_once.py")
        script.write_text(SCRIPT)
        if os.fork() == 0:
            _run_noting(folder, ["run", "--max-restarts", "1", "--state-dir", f"{folder}/state", str(script), folder])
        os.wait()
        died, lives_again = (float(Path(folder, life).read_text()) for life in ("0", "1"))
        found: dict[str, set[str]] = defaultdict(set)
        for calls in Path(folder).glob("calls.*"):
            for at, file, function in json.loads(calls.read_text()):
                if died <= at <= lives_again and not function.endswith(">"):  # a comprehension is part of its function
                    found[file.removeprefix(OURS)].add(function)
    return {file: sorted(functions) for file, functions in sorted(found.items())}


def _run_noting(folder: str, argv: list[str]) -> NoReturn:
    """The command line, in this process; guardian and agent write their calls into `folder` at their end."""
    from holdfast.cli.main import main

    calls: list[tuple[float, str, str]] = []
    leave = os._exit

    def note(frame: FrameType, what: str, _: Any) -> None:
        if what == "call" and frame.f_code.co_filename.startswith(OURS):
            calls.append((time.monotonic(), frame.f_code.co_filename, frame.f_code.co_qualname))

    def write_and_leave(code: int) -> NoReturn:
        sys.setprofile(None)
        Path(folder, f"calls.{os.getpid()}").write_text(json.dumps(calls))
        leave(code)

    os._exit = write_and_leave
    threading.setprofile(note)
    sys.setprofile(note)
    main(argv)
    leave(0)


if __name__ == "__main__":
    by_file = path_of_a_failure()
    for where, functions in by_file.items():
        print(f"{where}: {', '.join(functions)}")
    print(f"a failure passes through {len(by_file)} files and {sum(map(len, by_file.values()))} functions (reach: 35 and 220)")
