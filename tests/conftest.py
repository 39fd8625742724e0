"""What every test can use: a `holdfast` command of its own, free ports, waiting for a condition, and a watch for orphans.

Every test that may start processes carries a mark in its environment (`kit/orphans.py`), which whatever it starts
inherits, children of children included. Whoever still carries it after the test is an orphan, and the test fails.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from kit import orphans, tiers
from kit.command import HERE, Holdfast
from kit.ports import ports
from kit.servers.etcd import Etcd
from kit.together import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from kit.waiting import wait_for

hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")  # no test is timed: a busy machine is no defect

for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    # Whoever starts us in the background (`nohup`, `&` in a script) has them ignored, and so would all that we start: a signal
    # with a handler is a command's default again.
    if signal.getsignal(signum) == signal.SIG_IGN:
        signal.signal(signum, lambda *_: None)

FIRST = ("e2e", "sim", "compat", "security", "unit")
"""Folders, the one with the longest tests first."""
QUIET_FOLDERS = ("unit", "sim")
"""Tests there start no process: no watch needed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everyday", action="store_true", help="leave out what is only in `make test-all` (tests/kit/tiers.py)")


def pytest_configure(config: pytest.Config) -> None:
    """Many tests put a shell script in the place of nvidia-smi, numactl and the like, in their temporary folder."""
    if len(tempfile.gettempdir().split()) != 1:
        raise pytest.UsageError(f"the folder for temporary files, {tempfile.gettempdir()!r}, has a space: set TMPDIR=/tmp, say")


def pytest_sessionstart(session: pytest.Session) -> None:
    plugins = session.config.pluginmanager
    if (terminal := plugins.get_plugin("terminalreporter")) is not None and not hasattr(session.config, "workerinput"):
        plugins.register(AtOnce(terminal))


class AtOnce:
    """Names each test that fails as it fails: a run of half an hour may not come to its summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.write_line(f"{report.when} of {report.nodeid} failed after {report.duration:.0f} s")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even read a file of which nobody asked for a test."""
    test = collection_path.relative_to(Path(__file__).parent) if collection_path.suffix == ".py" else None
    return True if test and config.getoption("everyday") and tiers.left_out(test.as_posix()) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what nobody asked for; skip, with the reason, what this machine cannot run; the longest first."""
    if config.getoption("everyday"):
        everyday, left_out = [], []
        for item in items:
            test = item.nodeid.removeprefix("tests/")
            taken = any(line.takes(test, item.fixturenames) for line in tiers.lines_of(test.partition("::")[0]))
            (left_out if taken else everyday).append(item)
        items[:] = everyday
        config.hook.pytest_deselected(items=left_out)
    if hasattr(config, "workerinput"):  # one of several workers: what takes long begins first
        items.sort(key=lambda item: (FIRST.index(item.path.parent.name), item.get_closest_marker("torch") is None))
    no_torch = None if importlib.util.find_spec("torch") else "PyTorch is not installed: pip install torch==2.13.0"
    no_root = None if os.geteuid() == 0 else "needs root"
    for item in items:
        for marker, reason in (("torch", no_torch), ("root", no_root)):
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Some ten thousand tests are there until the end: the collector of garbage need not look at them each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the test's commands have said: most flakes are seen once."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.when == "call" and report.failed and folder is not None:
        of_test = [command for command in HERE if command.folder.is_relative_to(folder)]
        report.sections += [(f"commands in {one.folder}", told) for one in of_test if (told := one.told())]
    return report


@pytest.fixture(autouse=True)
def test_mark(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """This test's mark. Afterwards: nothing that carries it may be alive."""
    mark = uuid.uuid4().hex
    # Jobs that cannot write to their home go elsewhere: not where another test, or another checkout's, sees them.
    monkeypatch.setenv("HOLDFAST_SPARE_FOLDERS", str(tmp_path_factory.getbasetemp() / f"spare-{mark[:12]}"))
    if request.path.parent.name in QUIET_FOLDERS:
        yield mark
        return
    monkeypatch.setenv(orphans.MARK, mark)
    yield mark
    if left := orphans.left_behind(mark):
        pytest.fail(f"left behind, {orphans.GRACE_S:.0f} s after the test: {left}", pytrace=False)


@pytest.fixture
def alive(test_mark: str) -> Callable[[], list[int]]:
    """`alive()`: pids of all that this test has started, directly or not, and that still live."""
    return lambda: orphans.marked(test_mark)


@pytest.fixture
def holdfast(tmp_path: Path, test_mark: str) -> Iterator[Holdfast]:
    """The command, with its own state directory; what it started is stopped at the end."""
    command = Holdfast(tmp_path)
    yield command
    command.stop_all()


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """`wait_until(predicate, timeout)`: the predicate's first true value, or the test fails."""
    return wait_for


@pytest.fixture
def free_port() -> int:
    """A TCP port that is free on this host now, and that neither another test nor the kernel gives to anybody meanwhile."""
    return ports(1)[0]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """`script("print(1)")`: a Python file of the test's own."""

    def write(source: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(source)
        return path

    return write


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A real one, which all tests of a module share: none of them may break it. No longer than a module: other tests run an
    agent's hands in this very process, which end all that it has started."""
    server = Etcd(tmp_path_factory.mktemp("etcd"))
    yield server
    server.stop()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Callable[..., Etcd]]:
    """`own_etcd(3)`: one of three members that the test may break."""
    started: list[Etcd] = []

    def start(size: int = 1, **how: Any) -> Etcd:
        started.append(Etcd(tmp_path / "etcd", size, **how))
        return started[-1]

    yield start
    for server in started:
        server.stop()
