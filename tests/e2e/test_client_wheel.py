"""Is the wheel `holdfast-client` enough for a script, and does it keep out of Holdfast's way, whichever was installed first?"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kit import ROOT
from kit.pythons import CLIENT, VERSIONS, python

pytestmark = pytest.mark.timeout(300)  # pip may have to download

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def ran(*argv: object, cwd: Path | None = None) -> str:
    """What a command says, with nothing of this environment in its path."""
    done = subprocess.run([*map(str, argv)], env=CLEAN, cwd=cwd or ROOT.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(python: Path | str, *args: object) -> str:
    return ran(python, "-m", "pip", "--disable-pip-version-check", "--quiet", *args)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of the client and of Holdfast, by name."""
    folder = tmp_path_factory.mktemp("wheels")
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, CLIENT)
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The interpreter of an empty environment."""
    ran(sys.executable, "-m", "venv", tmp_path / "there")
    return tmp_path / "there/bin/python"


FOUND = """
try:
    from holdfast.google import DeviceState
    from holdfast.client import heartbeat, stash
    heartbeat()
except ImportError as error:
    print("none" if error.name == "holdfast" else error)
else:
    try:
        import holdfast.cli.main
    except ModuleNotFoundError:
        print("client")
    else:
        print("whole")
"""


def found(python: Path, cwd: Path | None = None) -> str:
    """What a script of that environment imports: Holdfast `whole`, its `client` alone, or `none`."""
    return ran(python, "-c", FOUND, cwd=cwd).strip()


@pytest.mark.parametrize("version", VERSIONS)
def test_alone_in_an_empty_environment_it_is_all_that_a_script_needs(
    wheels: dict[str, Path], tmp_path: Path, version: str
) -> None:
    ran(python(version), "-m", "venv", tmp_path / "there")
    there = tmp_path / "there/bin/python"
    pip(there, "install", "--no-index", wheels["holdfast_client"])
    (line,) = pip(there, "freeze").splitlines()
    assert line.startswith("holdfast-client") and found(there) == "client"
    (tmp_path / "beside/holdfast").mkdir(parents=True)
    assert found(there, cwd=tmp_path / "beside") == "client", "a folder of that name is no package"


@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
def test_beside_holdfast_it_is_not_asked_and_either_goes_without_the_other(
    wheels: dict[str, Path], there: Path, editable: bool
) -> None:
    whole = ("--editable", ROOT) if editable else (wheels["holdfast"],)
    distributions = {"whole": ("holdfast", *whole), "client": ("holdfast-client", wheels["holdfast_client"])}
    with zipfile.ZipFile(wheels["holdfast"]) as one, zipfile.ZipFile(wheels["holdfast_client"]) as other:
        assert not {*one.namelist()} & {*other.namelist()}
    for first, removed in itertools.product(distributions, distributions):
        if editable and first == removed:
            continue  # as it is with the wheel
        (second,), (left,) = distributions.keys() - {first}, distributions.keys() - {removed}
        pip(there, "install", "--no-deps", *distributions[first][1:])
        assert found(there) == first
        pip(there, "install", "--no-deps", *distributions[second][1:])
        assert found(there) == "whole"
        pip(there, "uninstall", "--yes", distributions[removed][0])
        assert found(there) == left
        pip(there, "uninstall", "--yes", distributions[left][0])
        assert found(there) == "none"


def test_holdfast_is_found_in_a_folder_that_comes_later_on_the_path(
    wheels: dict[str, Path], there: Path, tmp_path: Path
) -> None:
    """As where a user has the client, and the machine Holdfast."""
    pip(there, "install", "--no-index", wheels["holdfast_client"])
    pip(there, "install", "--no-deps", "--target", tmp_path / "later", wheels["holdfast"])
    (site,) = tmp_path.glob("there/lib/python*/site-packages")
    (site / "later.pth").write_text(f"{tmp_path / 'later'}\n")
    assert ran(there, "-c", "import holdfast; print(holdfast.__file__)").startswith(str(tmp_path / "later"))


def test_a_type_checker_finds_its_types(wheels: dict[str, Path], there: Path, tmp_path: Path) -> None:
    pip(there, "install", "--no-index", wheels["holdfast_client"])
    (tmp_path / "train.py").write_text("from holdfast import client\nclient.progress('one')\n")
    check = [sys.executable, "-m", "mypy", "--python-executable", there, "--python-version", "3.10", "--strict", "train.py"]
    said = subprocess.run([*map(str, check)], env=CLEAN, cwd=tmp_path, capture_output=True, text=True).stdout
    assert said.count("error:") == 1 and 'has incompatible type "str"' in said, said
