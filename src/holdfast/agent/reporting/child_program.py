"""How is a program of `integrations` started beside the agent? In an interpreter of its own, without `site` and without what
the user's variables would load: it finds the standard library and ours in any environment.
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
