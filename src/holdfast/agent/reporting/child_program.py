"""What runs a program of `integrations` beside the agent? An interpreter of its own, without `site` and without what the user's
variables would have it load: whatever the job's environment is, the standard library and ours are there.
"""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
"""The folder that holds our package. Behind the standard library: it may hold others', too."""


def program(name: str) -> list[str]:
    """The command line of `integrations.NAME`, up to the arguments of its `main`."""
    code = f"import sys; sys.path.append(sys.argv[1]); from holdfast.integrations.{name} import main; main(*sys.argv[2:])"
    return [sys.executable, "-I", "-S", "-c", code, ROOT]
