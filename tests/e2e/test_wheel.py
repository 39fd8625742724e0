"""Does the wheel, in an empty environment with the core dependencies only, run a job?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kit import ROOT

pytestmark = pytest.mark.timeout(300)  # pip may have to download


def pip(python: Path | str, *args: object) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `holdfast` command of an environment that holds nothing but our wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, *(ROOT / "distributions").iterdir())
    (wheel,) = folder.glob("holdfast-*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip(folder / "venv/bin/python", "install", wheel)
    return folder / "venv/bin/holdfast"


@pytest.fixture
def command(installed: Path, tmp_path: Path):
    """Run the installed command, away from the checkout, with nothing of this environment in its path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    clean["HOLDFAST_STATE_DIR"] = str(tmp_path / "state")

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        given = [installed, *map(str, args)]
        return subprocess.run(given, env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    return run


def test_the_wheel_runs_a_job_and_lists_it(command) -> None:
    job = command("run", "--nproc-per-node", "2", ROOT / "examples/minimal.py")
    assert job.returncode == 0, job.stderr
    said = sorted(re.findall(r"rank \d of 2 \(local \d\)", job.stdout))  # ranks share stdout: a line may be cut by another
    assert said == ["rank 0 of 2 (local 0)", "rank 1 of 2 (local 1)"]

    jobs = command("jobs")
    assert jobs.returncode == 0, jobs.stderr
    assert "succeeded" in jobs.stdout


def test_the_wheel_brings_the_dashboard(installed: Path) -> None:
    there = {path.name for path in installed.parents[1].glob("lib/python*/site-packages/holdfast/supervisor/web/static/*")}
    assert there == {path.name for path in (ROOT / "src/holdfast/supervisor/web/static").iterdir()} and "index.html" in there


def test_the_wheel_asks_for_the_core_dependencies_only(installed: Path) -> None:
    listed = subprocess.run([installed.with_name("python"), "-m", "pip", "freeze"], capture_output=True, text=True, check=True)
    names = {line.split("=")[0].split(" ")[0].lower() for line in listed.stdout.splitlines()}
    of_rich = {"markdown-it-py", "mdurl", "pygments"}
    assert names == {"holdfast", "msgspec", "pyyaml", "rich", "prometheus_client"} | of_rich


def test_the_wheel_brings_the_dashboard_and_the_manual_page(installed: Path) -> None:
    (page,) = installed.parents[1].glob("lib/python*/site-packages/holdfast/supervisor/web/static/index.html")
    assert page.read_text().startswith("<!doctype html>")
    page = installed.parents[1] / "share/man/man1/holdfast.1"
    assert page.read_text() == (ROOT / "docs/holdfast.1").read_text()


def test_the_extra_nvrx_installs_the_script_ft_launcher_and_nothing_else_does(installed: Path, tmp_path: Path) -> None:
    script = installed.with_name("ft_launcher")
    assert not script.exists() and imported(installed) == "none"
    wheels = installed.parents[2]
    pip(installed.with_name("python"), "install", "--no-index", "--find-links", wheels, "holdfast[nvrx]")
    program = "import os; print(os.environ['WORLD_SIZE'])"
    (tmp_path / "train.py").write_text(program)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    options = ("--nproc-per-node=2", "--ft-rank-heartbeat-timeout", "60", "--ft-per-cycle-applog-prefix", "job.log")
    command, env["HOLDFAST_STATE_DIR"] = (script, *options, "train.py"), str(tmp_path / "state")
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted((tmp_path / "job_cycle0.log").read_text().splitlines()) == ["0: 2", "1: 2"]
    assert imported(installed) == "ours"
    pip(installed.with_name("python"), "uninstall", "--yes", "holdfast-ft-launcher", "holdfast-nvrx")
    assert not script.exists() and imported(installed) == "none"


IMPORTS = """
try:
    from nvidia_resiliency_ext import fault_tolerance
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_client import RankMonitorClient
except ImportError:  # pip leaves an empty folder of a package without __init__.py
    print("none")
else:
    print("ours" if RankMonitorClient.__module__.startswith("holdfast.") else "theirs")
"""


def imported(installed: Path) -> str:
    """Whose client a script of that environment imports by NVRx's name: `ours`, `theirs`, or `none`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([installed.with_name("python"), "-c", IMPORTS], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def stand_in(folder: Path, *packages: str) -> Path:
    """A wheel with the name and the layout of NVRx's, in which `packages` have an `__init__.py`. 0.4.1 has none at the top."""
    at = folder / "nvidia_resiliency_ext-0.4.1-py3-none-any.whl"
    info = "nvidia_resiliency_ext-0.4.1.dist-info"
    with zipfile.ZipFile(at, "w") as wheel:
        for package in packages:
            wheel.writestr(f"{package}/__init__.py", "")
        wheel.writestr("nvidia_resiliency_ext/fault_tolerance/rank_monitor_client.py", "class RankMonitorClient: pass\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: nvidia-resiliency-ext\nVersion: 0.4.1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*wheel.namelist(), f"{info}/RECORD"]))
    return at


AT_THE_TOP = ("nvidia_resiliency_ext", "nvidia_resiliency_ext/fault_tolerance")


@pytest.mark.parametrize("packages", [AT_THE_TOP, AT_THE_TOP[1:]], ids=["with __init__.py", "without"])
def test_nvrx_s_own_package_is_imported_where_it_is_installed_in_whatever_order(
    installed: Path, tmp_path: Path, packages: tuple[str, ...]
) -> None:
    python = installed.with_name("python")
    (ours,) = installed.parents[2].glob("holdfast_nvrx-*.whl")
    theirs = stand_in(tmp_path, *packages)
    distributions = {"ours": (ours, "holdfast-nvrx"), "theirs": (theirs, "nvidia-resiliency-ext")}
    with zipfile.ZipFile(ours) as one, zipfile.ZipFile(theirs) as other:
        assert not {*one.namelist()} & {*other.namelist()}
    for first, second in (("ours", "theirs"), ("theirs", "ours")):
        for removed, left in ((first, second), (second, first)):
            pip(python, "install", "--no-deps", distributions[first][0])
            assert imported(installed) == first
            pip(python, "install", "--no-deps", distributions[second][0])
            assert imported(installed) == "theirs"
            pip(python, "uninstall", "--yes", distributions[removed][1])
            assert imported(installed) == left
            pip(python, "uninstall", "--yes", distributions[left][1])
            assert imported(installed) == "none"


def test_the_wheel_says_that_it_is_typed(installed: Path) -> None:
    assert len(list(installed.parents[1].glob("lib/python*/site-packages/holdfast/py.typed"))) == 1
