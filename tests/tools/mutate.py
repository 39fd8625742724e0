"""Does the suite see a wrong decision? Makes one after the other in a copy of the checkout, and runs the tests until one fails.

    make mutations                            those that have no result for this commit yet
    python tests/tools/mutate.py --list       all, with the test that has found each at this commit
    python tests/tools/mutate.py --only "the budget allows one restart more" --again

What HEAD has is judged, and the checkout is left alone. A test that fails without the mutation too has found nothing: the suite
is red at this commit then, and that is said. Exit codes: 0; 1 where more than `MAY_SURVIVE` are not found; 2 where that cannot
be told.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))

from holdfast.runtime.process import process  # noqa: E402
from tools.changed import QUIET, Graph, read  # noqa: E402
from tools.mutations import MUTATIONS, Mutation  # noqa: E402

EVERYDAY = ("--everyday", "-n", "6")
"""What `make test` gives pytest."""
ROWS_TEST = "tests/unit/test_mutations.py"
"""Left out: it holds each row to the source, and so finds every mutation."""
NEAREST = 25
"""So many test files that start no process are run first: those named like the mutated file, then the nearest to it."""
REST = ("tests", *(f"--ignore={folder}" for folder in QUIET))
RESULTS = ROOT / "bench-results" / "mutations.jsonl"
MAY_SURVIVE = 1
LINGER_S = 3.0
"""For so long after pytest's end what is to clear up behind it may live."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::[^\s\[]+(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)
"""A line of pytest's summary."""
TO_END_S = 20.0
"""For so long an interrupted pytest may clear up behind its tests."""


class Unclear(Exception):
    """Nothing can be said of this mutation, for a reason."""


class Result(NamedTuple):
    """What came of one mutation at one commit."""

    name: str
    commit: str
    by: str
    """The test that found it. Empty: none did."""
    stage: str
    took_s: float

    @property
    def line(self) -> str:
        """For a person."""
        if not self.by:
            return f"SURVIVED  {self.name} ({self.took_s:.0f} s)"
        return f"found     {self.name}\n          by {self.by} ({self.stage}, {self.took_s:.0f} s)"


# --- what has been judged, and what that says -------------------------------------------------------------------------------


def known(file: Path, commit: str) -> dict[str, Result]:
    """By name: the newest result at that commit. A line that was cut short says nothing."""
    found = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError, TypeError):
            if (result := Result(**json.loads(line))).commit == commit:
                found[result.name] = result
    return found


def keep(file: Path, result: Result) -> None:
    """Add one line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(json.dumps(result._asdict()) + "\n")


def verdict(results: Mapping[str, Result], rows: Iterable[Mutation]) -> tuple[str, int]:
    """The last words, and the exit code."""
    judged = [results[row.name] for row in rows if row.name in results]
    survivors = [one.name for one in judged if not one.by]
    text = f"{len(judged) - len(survivors)} of {len(judged)} found"
    return "\n".join([text, *(f"  not found: {name}" for name in survivors)]), int(len(survivors) > MAY_SURVIVE)


def found_by(output: str, code: int) -> str:
    """The first test that failed, by what pytest has said. Empty: none. Unclear: it did not come to that."""
    failed = FAILED.search(output)
    if code in (1, 2) and failed:  # 2: several processes were interrupted at the first failure
        return failed[1]
    if code == 0:
        return ""
    raise Unclear(f"pytest ended with {code} without a failed test:\n" + "\n".join(output.splitlines()[-20:]))


# --- one mutation -----------------------------------------------------------------------------------------------------------


def mutated(text: str, row: Mutation) -> str:
    """The file with the wrong decision in it. Unclear: the row is not about this text."""
    if (times := text.count(row.old)) != 1:
        raise Unclear(f"mend its row in tests/tools/mutations.py: {row.file} has this {times} times, not once:\n{row.old}")
    changed = text.replace(row.old, row.new)
    ast.parse(changed)
    return changed


class Copy:
    """A scratch copy of what a commit has, and the tests there."""

    def __init__(self, root: Path, commit: str, folder: Path) -> None:
        self.folder = folder
        archive = subprocess.run(["git", "-C", root, "archive", commit], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        # First on the path: an editable install is the checkout's, whose tests would find nothing here.
        path = os.pathsep.join(filter(None, (str(folder / "src"), os.environ.get("PYTHONPATH", ""))))
        self.env = os.environ | {"PYTHONPATH": path}

    def prove(self) -> None:
        """Unclear: the tests would run something else than this copy."""
        ask = [sys.executable, "-c", "import holdfast; print(holdfast.__file__, end='')"]
        told = subprocess.run(ask, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, text=True, check=True).stdout
        if not Path(told).is_relative_to(self.folder / "src"):
            raise Unclear(f"the tests would run {told}, not the copy in {self.folder}")

    def test(self, *args: str) -> str:
        """The first test that fails. Empty: none does."""
        command = [sys.executable, "-m", "pytest", "-x", *args]
        with tempfile.TemporaryFile("w+") as output:
            pytest = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for us
            )
            try:
                code = pytest.wait()
            finally:
                _end(pytest)
            output.seek(0)
            return found_by(output.read(), code)


def _end(pytest: subprocess.Popen[bytes]) -> None:
    """Whatever it has started ends with it: by its own fixtures if there is time, and the rest is killed."""
    if pytest.poll() is None:
        pytest.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.wait(TO_END_S)
    until = time.monotonic() + LINGER_S
    while process.descendants(os.getpid()) and time.monotonic() < until:  # what has lost its parent is ours: see `main`
        time.sleep(0.05)
    process.kill_tree([os.getpid()])
    pytest.wait()
    process.reap_strays(())


def nearest(graph: Graph, file: str) -> list[str]:
    """The test files that most likely find what is wrong with that one."""
    reaching = [test for test in graph.choose({f"src/holdfast/{file}"}) if test.startswith(QUIET) and test != ROWS_TEST]
    return sorted(reaching, key=lambda test: Path(file).stem not in test)[:NEAREST]


def stages(nearest: Iterable[str], everyday: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """What is run until a test fails: arguments of pytest's."""
    usual = (*everyday, f"--ignore={ROWS_TEST}")
    return {
        "nearest": (*usual, "-n", "0", *nearest),
        "unit and sim": (*usual, *QUIET),
        "the rest": (*usual, *REST),
    }


def judge(row: Mutation, root: Path, commit: str, runs: Mapping[str, tuple[str, ...]]) -> Result:
    """Make it, and run the tests until one finds it. Unclear: the tests fail without it, too, or cannot be run."""
    began, began_unix = time.monotonic(), time.time()
    with tempfile.TemporaryDirectory(prefix="holdfast-mutation-") as scratch:
        copy = Copy(root, commit, Path(scratch).resolve())
        file = copy.folder / "src" / "holdfast" / row.file
        right = file.read_text()
        file.write_text(mutated(right, row))
        copy.prove()
        by, stage = next(((by, stage) for stage, args in runs.items() if (by := copy.test(*args))), ("", ""))
        if by:
            file.write_text(right)
            # Python takes a compiled file for current if size and second are those of the text: a sign may be all that differs.
            os.utime(file, (began_unix + 10,) * 2)
            if copy.test(by):
                raise Unclear(f"{by} fails without it too: the suite is red at {commit[:9]}")
        return Result(row.name, commit, by, stage, round(time.monotonic() - began, 1))


# --- the command ------------------------------------------------------------------------------------------------------------


def main(argv: list[str], root: Path = ROOT, table: Iterable[Mutation] = MUTATIONS) -> int:
    """See the module's text."""
    options = _options(argv)
    commit = _git(root, "rev-parse", "HEAD")
    rows = [row for row in table if options.only in ("", row.name)]
    if not rows:
        print(f"no mutation {options.only!r}: --list shows them", file=sys.stderr)
        return 2
    results = known(options.results, commit)
    if options.list:
        print("\n".join(results[row.name].line if row.name in results else f"          {row.name}" for row in rows))
        return 0
    if _git(root, "status", "--porcelain"):
        print(f"what is not committed is not judged: this is about {commit[:9]}", file=sys.stderr)
    signal.signal(signal.SIGTERM, _interrupted)
    process.set_subreaper()
    graph, everyday = read(root, set()), shlex.split(options.everyday)
    code = 0
    for row in rows:
        if row.name in results and not options.again:
            continue
        runs = stages(nearest(graph, row.file), everyday)
        if options.quick:
            del runs["the rest"]
        try:
            results[row.name] = result = judge(row, root, commit, runs)
        except Unclear as why:
            print(f"unclear   {row.name}: {why}", flush=True)
            code = 2
            continue
        except KeyboardInterrupt:
            print(f"interrupted: the next call begins with {row.name!r}", file=sys.stderr)
            return 130
        if result.by or not options.quick:  # else there is more to be tried
            keep(options.results, result)
        print(result.line, flush=True)
    text, too_many = verdict(results, rows)
    print(text)
    return code or too_many


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", default="", help="this one")
    parser.add_argument("--list", action="store_true", help="show all, and what is known of each at this commit")
    parser.add_argument("--again", action="store_true", help="judge also those that have a result for this commit")
    parser.add_argument("--quick", action="store_true", help="run unit and sim only; what they do not find stays open")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON lines; default: %(default)s")
    parser.add_argument("--everyday", metavar="ARGS", default=shlex.join(EVERYDAY), help="pytest's; default: %(default)s")
    return parser.parse_args(argv)


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _interrupted(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
