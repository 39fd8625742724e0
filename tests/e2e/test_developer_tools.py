"""Do `tools/changed.py` and `tools/mutate.py` do what they say, in a small checkout of their own?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit import TESTS

FILES = {
    "src/holdfast/__init__.py": "",
    "src/holdfast/sums.py": "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return 2 * a\n",
    "tests/unit/test_sums.py": "from holdfast import sums\n\ndef test_add():\n    assert sums.add(1, 2) == 3\n",
    "tests/sim/test_stories.py": "def test_nothing(): ...\n",
    "tests/e2e/test_whole.py": "from holdfast import sums\n\ndef test_double():\n    assert sums.double(2) == 4\n",
    "docs/index.md": "Sums.\n",
}
ROWS = {
    "a sum is a difference": ("a + b", "a - b"),
    "the double is a third more": ("2 * a", "3 * a"),
    "the double of two alone is right": ("2 * a", "a * a"),
}
DRIVER = f"""\
import sys
from importlib import import_module
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from tools.mutations import Mutation
rows = [Mutation(name, "sums.py", *texts) for name, texts in {ROWS!r}.items()]
tool, root, *argv = sys.argv[1:]
sys.exit(import_module(f"tools.{{tool}}").main(argv, Path(root), *[rows] * (tool == "mutate")))
"""


class Checkout:
    """A repository of those files, and the tools in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder.with_name("results.jsonl")
        for path, text in FILES.items():
            self.write(path, text)
        self.commit("-c", "init.defaultBranch=main", "init", "--quiet")

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def commit(self, *before: str) -> None:
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false")
        for words in (before or ("status", "--short"), ("add", "--all"), (*who, "commit", "--quiet", "--message", "Sums")):
            subprocess.run(["git", "-C", self.folder, *words], check=True, stdout=subprocess.DEVNULL)

    def start(self, tool: str, *argv: str) -> subprocess.Popen[str]:
        env = os.environ | {"PYTHONPATH": str(self.folder / "src")} if tool == "changed" else os.environ
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, tool, self.folder, *argv],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, tool: str, *argv: str) -> tuple[int, str]:
        """Exit code, and what it says."""
        process = self.start(tool, *argv)
        said, _ = process.communicate(timeout=100)
        return process.returncode, said

    def mutate(self, *argv: str) -> tuple[int, str]:
        return self.run("mutate", "--everyday=-q", "--results", str(self.results), *argv)

    def judged(self) -> dict[str, str]:
        """By name: the test that has found it."""
        results = (json.loads(line) for line in self.results.read_text().splitlines())
        return {result["name"]: result["by"] for result in results}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


# --- what has changed -------------------------------------------------------------------------------------------------------


def test_nothing_runs_where_nothing_has_changed(checkout: Checkout) -> None:
    assert checkout.run("changed") == (0, "nothing has changed since HEAD\n")


def test_who_reaches_the_change_is_run_and_nobody_else(checkout: Checkout) -> None:
    checkout.write("src/holdfast/sums.py", FILES["src/holdfast/sums.py"].replace("2 * a", "3 * a"))
    code, said = checkout.run("changed", "-v", "-p", "no:cacheprovider")
    assert code == 1 and said.startswith(
        "changed: src/holdfast/sums.py\n2 files of 3 can tell, first of all tests/unit/test_sums.py"
    )
    assert said.index("test_sums.py::test_add PASSED") < said.index("test_whole.py::test_double FAILED")
    assert "test_stories" not in said


def test_a_new_file_counts_and_so_does_what_was_committed_since(checkout: Checkout) -> None:
    checkout.write("tests/unit/test_more.py", "def test_more(): ...\n")
    code, said = checkout.run("changed", "-q", "-p", "no:cacheprovider")
    assert code == 0 and "1 file of 4 can tell" in said and "1 passed" in said
    checkout.commit()
    assert checkout.run("changed") == (0, "nothing has changed since HEAD\n")
    assert "1 file of 4 can tell" in checkout.run("changed", "--base", "HEAD~1", "-p", "no:cacheprovider")[1]


def test_what_no_test_reaches_is_said(checkout: Checkout) -> None:
    checkout.write("docs/index.md", "More sums.\n")
    assert checkout.run("changed") == (0, "changed: docs/index.md\nno test reaches that\n")


def test_no_test_begins_when_the_time_is_over_and_what_is_left_is_counted(checkout: Checkout) -> None:
    checkout.write("src/holdfast/sums.py", FILES["src/holdfast/sums.py"] + "\n\nMORE = 1\n")
    code, said = checkout.run("changed", "--seconds", "0", "-q", "-p", "no:cacheprovider")
    assert code == 0 and "the time is over: 2 tests in 2 files not run: make test" in said
    slow = (
        "import time\nfrom holdfast import sums\n\ndef test_add():\n    time.sleep(3)\n\ndef test_more():\n    assert False\n"
    )
    checkout.write("tests/unit/test_sums.py", slow)
    code, said = checkout.run("changed", "--seconds", "3", "-q", "-p", "no:cacheprovider")
    assert code == 0 and "1 passed" in said and "the time is over: 2 tests in 2 files not run: make test" in said


# --- mutations --------------------------------------------------------------------------------------------------------------


def test_a_mutation_is_found_by_a_test_or_survives_and_is_judged_once(checkout: Checkout) -> None:
    code, said = checkout.mutate()
    assert code == 0 and said.endswith("2 of 3 found\n  not found: the double of two alone is right\n"), said
    unit, whole = "tests/unit/test_sums.py::test_add", "tests/e2e/test_whole.py::test_double"
    assert list(checkout.judged().values()) == [unit, whole, ""]
    assert checkout.folder.joinpath("src/holdfast/sums.py").read_text() == FILES["src/holdfast/sums.py"]
    before = checkout.results.read_text()
    assert checkout.mutate() == (0, "2 of 3 found\n  not found: the double of two alone is right\n")
    assert checkout.results.read_text() == before
    checkout.write("docs/index.md", "More sums.\n")
    checkout.commit()
    code, said = checkout.mutate("--only", "a sum is a difference")
    assert code == 0 and said.endswith("1 of 1 found\n")
    assert len(checkout.results.read_text().splitlines()) == 4


def test_a_test_that_fails_anyway_has_found_nothing(checkout: Checkout) -> None:
    checkout.write("tests/unit/test_sums.py", "from holdfast import sums\n\ndef test_add():\n    assert sums is None\n")
    checkout.commit()
    code, said = checkout.mutate("--only", "a sum is a difference")
    assert code == 2 and "test_add fails without it too: the suite is red at" in said and not checkout.results.exists()


def test_what_it_has_started_ends_with_it(checkout: Checkout, tmp_path: Path, wait_until) -> None:
    """However detached: the watch for orphans sees the rest."""
    told = tmp_path / "told"
    checkout.write(
        "tests/unit/test_sums.py",
        "import subprocess\nfrom holdfast import sums\n\ndef test_add():\n"
        "    one = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"    open({str(told)!r}, 'w').close()\n    one.wait()\n",
    )
    checkout.commit()
    tool = checkout.start("mutate", "--everyday=-q", "--results", str(checkout.results))
    wait_until(told.exists)
    tool.send_signal(signal.SIGINT)
    said, _ = tool.communicate(timeout=60)
    assert (
        tool.returncode == 130 and "the next call begins with 'a sum is a difference'" in said and not checkout.results.exists()
    )


def test_tests_that_share_what_is_costly_go_to_one_worker_of_pytest(tmp_path: Path) -> None:
    """Whatever pytest and pytest-xdist make of the names of groups: these go together, and others to the next who is free."""
    pytest.importorskip("xdist")
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "tests/conftest.py").write_text("from kit.together import pytest_xdist_make_scheduler\n")
    shared = "import os, pytest\n\n@pytest.mark.parametrize('number', range(8))\ndef test_it(number):\n    "
    says = "open(f'{os.path.dirname(__file__)}/{os.environ[\"PYTEST_XDIST_WORKER\"]}.{number}', 'w')\n"
    (tmp_path / "tests/unit/test_house.py").write_text(shared + says)
    line = (sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "tests")
    done = subprocess.run(line, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(TESTS)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({path.name.partition(".")[0] for path in (tmp_path / "tests/unit").glob("gw*.*")}) == 1
