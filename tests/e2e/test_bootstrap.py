"""A script under the bootstrap cannot tell that it is not run by plain `python -u`, and the agent learns what it needs.

That holds whether its process was started for it (cold), had waited for it (warm), or was forked from one that had (fork).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from kit import SCRIPTS
from kit.jobs.spares import Spare

from holdfast.agent.spares.import_list import at_load
from holdfast.agent.workers import launch
from holdfast.core.page import layout as page
from holdfast.runtime.shm.pages import Page, create_page

HOW = pytest.mark.parametrize("how", ["cold", "warm", "fork"])


class Ran:
    """What came of one run."""

    def __init__(self, code: int | None, out: bytes, err: bytes, seen: Page | None) -> None:
        self.result = code, _text(out), _text(err)
        self.page = seen


def _text(output: bytes) -> str:
    # A closed stderr makes Python dump the exception with its reference count, to which a hook of any kind adds.
    text = re.sub("0x[0-9a-f]{6,}", "0x(address)", output.decode("utf-8", "replace"))
    return re.sub(r"(object refcount : )\d+", r"\1(count)", text)


def run(
    words: list[str], *, ours: bool, cwd: Path, env: dict[str, str] | None = None, interpreter: str = sys.executable
) -> Ran:
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ} | (env or {})
    argv = [interpreter, "-u", *words]
    if not ours:
        done = subprocess.run(argv, cwd=cwd, env=environment, input=b"typed", capture_output=True)
        return Ran(done.returncode, done.stdout, done.stderr, None)
    seen = create_page(page.HOOK_SIGNS | page.HOOK_MODULES)
    environment = launch.bootstrap_env(environment, page_fd=seen.fd)
    done = subprocess.run(argv, cwd=cwd, env=environment, input=b"typed", capture_output=True, pass_fds=[seen.fd])
    return Ran(done.returncode, done.stdout, done.stderr, seen)


def run_ahead(words: list[str], how: str, modules: Iterable[str], *, cwd: Path, env: dict[str, str] | None = None) -> Ran:
    """As `run`, by a process that had waited: with other variables first, and with the modules imported."""
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ} | (env or {})
    before = environment | {"RANK": "7", "GONE": "1"}
    lines = [at_load(line) for line in modules]
    spare = Spare([sys.executable, "-u", *words], before, cwd, modules=lines, mode="fork" if how == "fork" else "spawn")
    try:
        assert spare.hear()[0] == "ready"
        answer, seen, out, err, code = spare.become(environment, b"typed")
        assert answer[0] == "taken", answer
    finally:
        spare.close()
    return Ran(code, out, err, seen)


def assert_alike(words: list[str], cwd: Path, env: dict[str, str] | None = None, how: str = "cold") -> Ran:
    """Run it both ways; twice plainly first, so that .pyc files are there for all."""
    run(words, ours=False, cwd=cwd, env=env)
    plain = run(words, ours=False, cwd=cwd, env=env)
    ours = run(words, ours=True, cwd=cwd, env=env)
    assert ours.page is not None
    if how != "cold":
        ours = run_ahead(words, how, ours.page.modules(), cwd=cwd, env=env)
    assert ours.page is not None
    assert ours.page.trouble == ""
    for mine, theirs in zip(ours.result[1:], plain.result[1:]):
        assert mine.splitlines() == theirs.splitlines()
    assert ours.result == plain.result
    return ours


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's working directory: scripts, a module beside them, a package, a program in a directory and in a zip file."""
    for probe in SCRIPTS.glob("*.py"):
        shutil.copy(probe, tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    shutil.copy(SCRIPTS / "facts.py", tmp_path / "package" / "__main__.py")
    shutil.copy(SCRIPTS / "parallel.py", tmp_path / "package" / "parallel.py")
    (tmp_path / "program").mkdir()
    shutil.copy(SCRIPTS / "facts.py", tmp_path / "program" / "__main__.py")
    with zipfile.ZipFile(tmp_path / "program.zip", "w") as archive:
        archive.write(SCRIPTS / "facts.py", "__main__.py")
    (tmp_path / "libraries").mkdir()
    latin = "# -*- coding: latin-1 -*-\nprint(ascii('é'))\nraise ValueError('é')\n"
    (tmp_path / "latin.py").write_text(latin, encoding="latin-1")
    (tmp_path / "broken.py").write_text("print('never'\n")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["facts.py"],
        ["facts.py", "--flag", "a b", "-u", "--", ""],
        ["./facts.py", "x"],
        ["{folder}/facts.py"],
        ["package/../facts.py"],
        ["-m", "facts", "x"],
        ["-m", "package", "x"],
        ["program", "x"],
        ["program.zip", "x"],
        ["latin.py"],
        ["broken.py"],
        ["missing.py"],
        ["missing/"],
        ["-m", "missing"],
        ["-m", "package.missing"],
        ["libraries"],
        ["-W", "error", "facts.py"],
        ["-P", "facts.py"],
        ["-O", "-X", "dev", "facts.py"],
    ],
    ids=" ".join,
)
@HOW
def test_a_script_finds_what_plain_python_shows_it(folder: Path, words: list[str], how: str) -> None:
    assert_alike([word.format(folder=folder) for word in words], folder, how=how)


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONPATH": "libraries"},
        {"PYTHONPATH": ""},
        {"PYTHONPATH": ":libraries:"},
        {"PYTHONSAFEPATH": "1"},
        {"PYTHONWARNINGS": "ignore"},
        {"PYTHONFAULTHANDLER": "1"},
        {"PYTHONDONTWRITEBYTECODE": "1"},
        {"HOLDFAST_JOB": "mine", "RANK": "3", "TORCHELASTIC_ERROR_FILE": ""},
    ],
    ids=str,
)
@HOW
def test_the_environment_is_as_the_user_set_it(folder: Path, env: dict[str, str], how: str) -> None:
    assert_alike(["facts.py"], folder, env, how)


@pytest.mark.parametrize(
    "custom",
    ["import sys; sys.argv.append('customised')", "raise RuntimeError('broken customisation')", "import nowhere_to_be_found"],
)
@HOW
def test_the_users_own_sitecustomize_runs(folder: Path, custom: str, how: str) -> None:
    (folder / "libraries" / "sitecustomize.py").write_text(custom)
    assert_alike(["facts.py"], folder, {"PYTHONPATH": "libraries"}, how)


@pytest.mark.parametrize("words", [["parallel.py", "x"], ["-m", "parallel"], ["-m", "package.parallel", "x"]], ids=" ".join)
@HOW
def test_multiprocessing_children_are_those_of_plain_python(folder: Path, words: list[str], how: str) -> None:
    ran = assert_alike(words, folder, how=how)
    assert ran.result[0] == 0, ran.result[2]


# --- what a script does before it imports -----------------------------------------------------------------------------------

READER = "import os\nfound = [os.environ.get(name) for name in ('OMP_NUM_THREADS', 'MINE')]\n"
LIBRARIES = {
    "reader.py": READER,
    "setter.py": "import os\nos.environ['OMP_NUM_THREADS'] = '5'\nimport reader\n",
    "asker.py": "import sys\nprint(getattr(sys.modules['__main__'], '__file__', None), sys.argv)\n",
    "twice.py": "print('the library that is installed')\n",
    "user.py": "import twice\n",
    "mover.py": "import os\nos.chdir('/')\n",
    "climber.py": "import sys\nsys.path.insert(0, '/nowhere')\n",
    "holder.py": "file = open(__file__)\n",
    "finder.py": """
import importlib.util, os, sys
class Finder:
    def find_spec(name, path=None, target=None):
        file = os.path.abspath("written/apart/__init__.py")
        return importlib.util.spec_from_file_location(name, file) if name == "apart" else None
sys.meta_path.append(Finder)
""",
}
OF_THE_SCRIPT = {
    "nothing": "import reader",
    "a variable that compiled code reads": "os.environ['OMP_NUM_THREADS'] = '3'\nimport reader",
    "a variable that is gone": "del os.environ['OMP_NUM_THREADS']\nimport reader",
    "a variable that nobody reads": "os.environ['OTHER'] = '3'\nimport reader",
    "a variable after it was read": "import reader\nos.environ['MINE'] = '3'\nimport setter",
    "a variable that a library sets": "import setter, reader",
    "the search path": "sys.path.insert(0, 'more')\nimport ours, reader",
    "what is asked of __main__": "import asker, reader",
}
NOT_AS_COLD = {
    "os.environ['MINE'] = '3'\nimport reader": "the script changes MINE before its imports read it: set it for the whole job",
    "sys.path.insert(0, 'more')\nimport user": "the script has twice from {folder}/more/twice.py, and what is",
    "import mover": "an import has changed the directory",
    "import climber": "an import has put something before the script's directory in sys.path",
}


@pytest.fixture
def early(folder: Path) -> Path:
    """Libraries that look at what a script does before it imports them."""
    for name, source in LIBRARIES.items():
        (folder / "libraries" / name).write_text(source)
    (folder / "more").mkdir()
    (folder / "more" / "ours.py").write_text("print('ours')\n")
    (folder / "more" / "twice.py").write_text("print('the one of the script')\n")
    for path in ("libraries/spaced/inner.py", "written/apart/__init__.py", "written/apart/inner.py"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


@pytest.mark.parametrize("what", OF_THE_SCRIPT)
@HOW
def test_imports_find_what_the_script_has_done_before(early: Path, what: str, how: str) -> None:
    (early / "early.py").write_text(f"import os, sys\n{OF_THE_SCRIPT[what]}\nprint(reader.found, sys.path)\n")
    ran = assert_alike(["early.py"], early, {"PYTHONPATH": "libraries", "OMP_NUM_THREADS": "1"}, how)
    assert ran.result[0] == 0, ran.result[2]


@pytest.mark.parametrize("source", NOT_AS_COLD, ids=lambda source: source.splitlines()[-1])
def test_where_an_import_would_find_something_else_there_is_no_spare(early: Path, source: str) -> None:
    (early / "early.py").write_text(f"import os, sys\n{source}\n")
    env = {"PYTHONPATH": "libraries"}
    ran = run(["early.py"], ours=True, cwd=early, env=env)
    assert ran.page is not None
    spare = Spare([sys.executable, "-u", "early.py"], os.environ | env, early, modules=map(at_load, ran.page.modules()))
    try:
        word, why = spare.hear()
    finally:
        spare.close()
    assert word == "failed" and why.startswith(NOT_AS_COLD[source].format(folder=early)), why


def test_only_what_comes_before_a_change_that_matters_is_imported_ahead(early: Path) -> None:
    (early / "early.py").write_text(f"import os, email\n{OF_THE_SCRIPT['a variable that compiled code reads']}\n")
    env = {"PYTHONPATH": "libraries"}
    ran = run(["early.py"], ours=True, cwd=early, env=env)
    assert ran.page is not None and {"email", "reader"} <= {*ran.page.modules()}
    spare = Spare([sys.executable, "-u", "early.py"], os.environ | env, early, modules=map(at_load, ran.page.modules()))
    try:
        word, _, _, until, *reads = spare.hear()
    finally:
        spare.close()
    assert (word, until) == ("ready", "OMP_NUM_THREADS") and "MINE" not in reads


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import spaced.inner", {"spaced.inner"}),  # a package without an __init__
        ("import finder, apart.inner", {"apart.inner"}),  # as of a library that is installed where it is written
        ("sys.path.append('more')\nimport ours", {"?ours {folder}/more/ours.py"}),
    ],
)
def test_what_is_imported_ahead_does_not_come_from_a_folder_of_the_script(early: Path, source: str, expected: set[str]) -> None:
    (early / "early.py").write_text(f"import sys\n{source}\n")
    ran = run(["early.py"], ours=True, cwd=early, env={"PYTHONPATH": "libraries"})
    assert ran.page is not None
    told = {line for line in ran.page.modules() if line.lstrip("?").startswith(("spaced", "apart", "ours"))}
    assert told - {"spaced", "apart"} == {line.format(folder=early) for line in expected}, ran.page.modules()


@pytest.mark.parametrize("whose", ["random", "numpy.random"])
@HOW
def test_a_seed_that_an_import_has_chosen_is_the_script_s(early: Path, whose: str, how: str) -> None:
    pytest.importorskip(whose, reason=f"{whose} is not installed")
    (early / "libraries" / "seeded.py").write_text(f"import {whose}\n{whose}.seed(7)\n{whose}.random()\n")
    (early / "early.py").write_text(f"import seeded, {whose}\nprint({whose}.random())\n")
    env = {"PYTHONPATH": "libraries", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    assert_alike(["early.py"], early, env, how)


def test_an_open_file_is_not_forked_for_its_offset_would_be_everybody_s(early: Path) -> None:
    for mode, expected in (("spawn", "ready"), ("fork", "failed")):
        env = os.environ | {"PYTHONPATH": "libraries"}
        spare = Spare([sys.executable, "-u", "facts.py"], env, early, modules=["holder"], mode=mode)
        try:
            word, *more = spare.hear()
        finally:
            spare.close()
        assert word == expected, more
    assert more[0].startswith(f"it cannot be forked: its imports hold {early}/libraries/holder.py open"), more


ENDINGS = re.findall(r'^    "([\w-]+)":', (SCRIPTS / "endings.py").read_text(), re.MULTILINE)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("words", "how"), [("endings.py", "cold"), ("-m endings", "cold"), ("endings.py", "warm"), ("-m endings", "fork")]
)
def test_every_end_is_that_of_plain_python(folder: Path, ending: str, words: str, how: str) -> None:
    ran = assert_alike([*words.split(), ending], folder, how=how)
    assert ran.page is not None
    raised = {"exception", "chained", "notes", "group", "unprintable", "recursion", "unicode"}
    raised |= {"thread-alive", "chained-hook", "held", "closed-stderr"}
    assert (ran.page.error_at_unix is not None) == (ending in raised)
    assert (ran.page.words[page.STATE] == page.FINISHING) == (ending not in {"_exit", "terminate", "kill", "exec"})


@pytest.mark.parametrize("ending", ["exception", "own-hook", "chained-hook", "unprintable", "unicode"])
def test_the_error_record_of_an_unmodified_script(folder: Path, ending: str) -> None:
    ran = run(["endings.py", ending], ours=True, cwd=folder, env={"TORCHELASTIC_ERROR_FILE": "error.json"})
    record = json.loads((folder / "error.json").read_text())
    assert ran.result[0] == 1
    assert set(record) == {"message"}
    assert set(record["message"]) == {"message", "extraInfo"}
    extra = record["message"]["extraInfo"]
    assert set(extra) == {"py_callstack", "timestamp"}
    assert extra["timestamp"].isdigit()
    if ending == "exception":
        assert record["message"]["message"] == "ZeroDivisionError: division by zero"
        assert extra["py_callstack"] == ran.result[2]


@pytest.mark.parametrize("ending", ["plain", "exit3", "interrupt", "terminate", "fork", "thread", "from-c"])
def test_no_error_record_without_an_uncaught_exception(folder: Path, ending: str) -> None:
    run(["endings.py", ending], ours=True, cwd=folder, env={"TORCHELASTIC_ERROR_FILE": "error.json"})
    assert not (folder / "error.json").exists()


def test_the_record_that_the_script_wrote_stays(folder: Path) -> None:
    (folder / "own.py").write_text("open('error.json', 'w').write('{}')\n1 / 0\n")
    run(["own.py"], ours=True, cwd=folder, env={"TORCHELASTIC_ERROR_FILE": "error.json"})
    assert (folder / "error.json").read_text() == "{}"


def test_a_signal_handler_that_raises_while_the_record_is_written_does_not_cost_it(folder: Path) -> None:
    handler = "def handler(*args):\n    raise RuntimeError('a data loader worker is gone')\n"
    dumps = "def dumps(*args, kept=json.dumps):\n    json.dumps = kept\n    os.kill(os.getpid(), 10)\n    return kept(*args)\n"
    source = f"import json, os, signal\n{handler}{dumps}signal.signal(10, handler)\njson.dumps = dumps\n1 / 0\n"
    (folder / "cut_short.py").write_text(source)
    run(["cut_short.py"], ours=True, cwd=folder, env={"TORCHELASTIC_ERROR_FILE": "error.json"})
    assert "ZeroDivisionError" in (folder / "error.json").read_text()


def test_the_error_file_is_found_after_a_change_of_directory(folder: Path) -> None:
    (folder / "wander.py").write_text("import os\nos.chdir('/')\n1 / 0\n")
    run(["wander.py"], ours=True, cwd=folder, env={"TORCHELASTIC_ERROR_FILE": "error.json"})
    assert (folder / "error.json").exists()


def test_the_client_finds_the_page(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import os\nimport holdfast.client as client\nclient.heartbeat()\nclient.progress(41)\n"
        "if os.fork() == 0:\n    client.progress(99)\n    os._exit(0)\nos.wait()\n"
    )
    ran = run(["train.py"], ours=True, cwd=folder)
    assert ran.result == (0, "", "")
    assert ran.page is not None
    assert (ran.page.signs().step, ran.page.signs().beats) == (41, 2)


def test_the_client_is_silent_without_an_agent(folder: Path) -> None:
    (folder / "train.py").write_text("import holdfast.client as client\nclient.heartbeat()\nclient.progress(41)\n")
    assert run(["train.py"], ours=False, cwd=folder).result == (0, "", "")


def test_a_page_of_another_version_is_left_alone(folder: Path) -> None:
    seen = create_page()
    seen.words[page.VERSION_AT] = page.VERSION + 1
    env = launch.bootstrap_env(os.environ, page_fd=seen.fd)
    subprocess.run([sys.executable, "endings.py", "plain"], cwd=folder, env=env, pass_fds=[seen.fd], check=True)
    assert seen.pid == 0


def test_the_script_runs_though_the_page_cannot_be_mapped(folder: Path) -> None:
    for fd in ("99", "nonsense"):
        env = launch.bootstrap_env(os.environ, page_fd=0) | {launch.PAGE_FD: fd}
        done = subprocess.run([sys.executable, "-u", "endings.py", "exit3"], cwd=folder, env=env, capture_output=True)
        assert (done.returncode, done.stderr) == (3, b"")


def test_run_path_runs_the_file_as_main(folder: Path) -> None:
    (folder / "path.py").write_text("import sys, endings\nprint(__name__, sys.argv, __file__)\nsys.exit(7)\n")
    argv = launch.worker_argv(interpreter=sys.executable, script="path.py", args=["a"], run_path=True, local_rank=0)
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "__main__ ['path.py', 'a'] path.py\n")


@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="needs another interpreter")
def test_another_interpreter_needs_no_holdfast(folder: Path) -> None:
    ran = run(["endings.py", "exception"], ours=True, cwd=folder, interpreter="/usr/bin/python3")
    plain = run(["endings.py", "exception"], ours=False, cwd=folder, interpreter="/usr/bin/python3")
    assert ran.result == plain.result
    assert ran.page is not None
    assert ran.page.error_at_unix is not None
