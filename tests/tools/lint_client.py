"""Does `holdfast-client` use anything that is newer than Python 3.10? Asks mypy about each of its modules by name.

    python tests/tools/lint_client.py

By name, because mypy keeps to itself what is wrong with modules that are only imported, and installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import ROOT
from kit.imports import SRC, name_of
from kit.pythons import client_files

OLDEST = "3.10"

if __name__ == "__main__":
    names = [name_of(path.relative_to(SRC)) for path in client_files() if path.suffix == ".py" and path.parent.name != "boot"]
    named = [word for name in names for word in ("-m", name)]
    os.chdir(ROOT)
    mypy = [sys.executable, "-m", "mypy", "--no-error-summary", "--python-version", OLDEST]
    os.execv(sys.executable, [*mypy, *named])
