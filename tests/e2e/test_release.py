"""Can what is released be made again byte by byte, and does it say what it needs?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kit import ROOT


@pytest.mark.timeout(600)  # five environments, for which pip may have to download
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a release is made of what is committed")
def test_a_release_is_the_same_each_time_and_runs_a_job(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, ROOT / "tests/tools/release.py", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("*.whl"))) == len(list(tmp_path.glob("*.tar.gz"))) == 4
    locked = (tmp_path / "requirements.lock").read_text().splitlines()
    assert len(locked) >= 4 and all(re.fullmatch(r"[\w.-]+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in locked)
    bill = json.loads((tmp_path / "holdfast.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "holdfast"
    assert [f"{one['name']}=={one['version']}" for one in bill["components"]] == [line.split(" ")[0] for line in locked]
    again = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "-w", tmp_path / "again"]
    subprocess.run([*again, *tmp_path.glob("holdfast_client-*.tar.gz")], check=True)
    of_source, of_checkout = (next(folder.glob("holdfast_client-*.whl")) for folder in (tmp_path / "again", tmp_path))
    assert contents(of_source) == contents(of_checkout), "its files stand outside its folder, and are copied into the archive"


def contents(wheel: Path) -> dict[str, list[bytes]]:
    """Each file's lines, by name: the order of those of RECORD is the folder's."""
    with zipfile.ZipFile(wheel) as opened:
        return {name: sorted(opened.read(name).splitlines()) for name in opened.namelist()}
