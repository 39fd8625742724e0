"""What is given away? Wheels and source archives that anybody can make again byte by byte, and what they need, by hash.

    python tests/tools/release.py [FOLDER]        (default: dist)

Everything is built twice, in environments of its own, with the same commit's time (SOURCE_DATE_EPOCH), and compared. Then all
wheels are installed into an empty environment, from the folder and by the lock only, and run a job. The lock is of this Python
and platform.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT, *sorted((ROOT / "distributions").iterdir())]
LOCK, BILL = "requirements.lock", "holdfast.cdx.json"


def ran(*argv: object, **more: Any) -> str:
    """What a command says. RuntimeError: it failed."""
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, argv))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(folder: Path, *needs: object) -> Path:
    """The Python of a new one."""
    ran(sys.executable, "-m", "venv", folder)
    python = folder / "bin/python"
    if needs:
        ran(python, "-m", "pip", "--disable-pip-version-check", "install", *needs)
    return python


def built(python: Path, folder: Path, epoch: str) -> dict[str, bytes]:
    """All archives, by name: of a copy of what is committed."""
    copy = folder / "source"
    copy.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", ROOT, "archive", "HEAD"], stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x", "-C", copy], input=archive, check=True)
    for source in SOURCES:
        place = copy / source.relative_to(ROOT)
        ran(python, "-m", "hatchling", "build", "-d", folder / "out", cwd=place, env=os.environ | {"SOURCE_DATE_EPOCH": epoch})
    return {path.name: path.read_bytes() for path in sorted((folder / "out").iterdir())}


def needed(python: Path, wheel: Path) -> list[dict[str, Any]]:
    """What pip would install beside it: name, version, hash and license of each."""
    asked = ("install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-", wheel)
    found = json.loads(ran(python, "-m", "pip", "--disable-pip-version-check", *asked))["install"]
    rows = [
        {
            "name": one["metadata"]["name"],
            "version": one["metadata"]["version"],
            "sha256": one["download_info"]["archive_info"]["hash"].partition("=")[2],
            "license": one["metadata"].get("license_expression") or one["metadata"].get("license", ""),
        }
        for one in found
        if one["metadata"]["name"] != "holdfast"
    ]
    return sorted(rows, key=lambda row: str(row["name"]).lower())


def lock(needs: list[dict[str, Any]]) -> str:
    """For `pip install --require-hashes -r`."""
    return "".join(f"{one['name']}=={one['version']} --hash=sha256:{one['sha256']}\n" for one in needs)


def bill(version: str, needs: list[dict[str, Any]], epoch: int) -> str:
    """The bill of materials, as CycloneDX 1.5 has it."""
    at = datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    root = {"type": "application", "name": "holdfast", "version": version, "bom-ref": f"pkg:pypi/holdfast@{version}"}
    parts = [
        {
            "type": "library",
            "name": one["name"],
            "version": one["version"],
            "bom-ref": (ref := f"pkg:pypi/{re.sub('[-_.]+', '-', one['name']).lower()}@{one['version']}"),
            "purl": ref,
            "hashes": [{"alg": "SHA-256", "content": one["sha256"]}],
            **({"licenses": [{"license": {"name": one["license"].splitlines()[0]}}]} if one["license"] else {}),
        }
        for one in needs
    ]
    whole = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": at, "component": root},
        "components": parts,
        "dependencies": [{"ref": root["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }
    return json.dumps(whole, indent=2) + "\n"


def tried(folder: Path, dist: Path, wheels: list[Path]) -> None:
    """Install all of it into an empty environment, by the lock and from the folder only, and run a job."""
    python = environment(folder)
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install")
    ran(*pip, "--require-hashes", "--no-deps", "-r", dist / LOCK)
    ran(*pip, "--no-index", "--no-deps", *wheels)
    ran(python, "-m", "pip", "check")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    (folder / "train.py").write_text("import os; os.write(1, f'world size {os.environ[\"WORLD_SIZE\"]}\\n'.encode())\n")
    env["HOLDFAST_STATE_DIR"] = str(folder / "state")
    said = ran(python.parent / "holdfast", "run", "--nproc-per-node", 2, "train.py", cwd=folder, env=env)
    if said.count("world size 2") != 2:
        raise RuntimeError(f"the job of two ranks said\n{said}")


def main(dist: Path) -> int:
    epoch = ran("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory(prefix="holdfast-release-") as name:
        folder = Path(name)
        python = environment(folder / "builder", "hatchling", "pip>=22.2")
        once, twice = (built(python, folder / part, epoch) for part in ("once", "twice"))
        if differing := [name for name in {*once, *twice} if once.get(name) != twice.get(name)]:
            print(f"not the same when they are built again: {', '.join(sorted(differing))}", file=sys.stderr)
            return 1
        dist.mkdir(parents=True, exist_ok=True)
        for archive, data in once.items():
            (dist / archive).write_bytes(data)
        wheels = [dist / name for name in once if name.endswith(".whl")]
        (wheel,) = (path for path in wheels if path.name.startswith("holdfast-"))
        needs = needed(python, wheel)
        (dist / LOCK).write_text(lock(needs))
        (dist / BILL).write_text(bill(wheel.name.split("-")[1], needs, int(epoch)))
        tried(folder / "empty", dist, wheels)
    print("\n".join(f"{dist / name}" for name in (*once, LOCK, BILL)))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()))
