"""Which other Pythons does this machine have, and how do they get what runs inside a script?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kit import ROOT
from kit.imports import SRC

CLIENT = ROOT / "distributions/client"
"""The distribution `holdfast-client`."""

VERSIONS = ["3.10", "3.11", "3.12", "3.13"]
"""Those that a script may have."""


def python(version: str) -> Path:
    """An interpreter of that version, by pyenv too. The test is skipped where there is none."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    named = shutil.which(f"python{version}")
    for found in [*([named] if named else []), *pyenv.glob(f"versions/{version}.*/bin/python")]:
        if subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return Path(found)
    pytest.skip(f"there is no Python {version} here")


def client_config() -> dict[str, Any]:
    """The pyproject.toml of `holdfast-client`."""
    return tomllib.loads((CLIENT / "pyproject.toml").read_text())


def client_files() -> list[Path]:
    """What of the source `holdfast-client` is made of."""
    named = [ROOT / "src/holdfast" / name for name in client_config()["tool"]["hatch"]["build"]["hooks"]["custom"]["files"]]
    return sorted(file for path in named for file in (path.rglob("*.py") if path.is_dir() else [path]))


def with_client(version: str, folder: Path) -> Path:
    """The interpreter of a new environment, with the files of `holdfast-client` where pip puts them."""
    subprocess.run([python(version), "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    shutil.copy(CLIENT / "holdfast_client.pth", site)
    shutil.copytree(CLIENT / "holdfast_client", site / "holdfast_client")
    for file in client_files():
        place = site / "holdfast_client/lib" / file.relative_to(SRC)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    return folder / "bin/python"
