"""What tests are made of, in rooms by subject; README.md says what is where."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
"""The checkout."""
KIT = Path(__file__).parent
SCRIPTS = KIT / "scripts"
"""Programs that tests run, as ranks or beside them."""
LIGHT_TORCH = f"import sys; sys.path.append({str(SCRIPTS)!r}); import light_torch\n"
"""How a script begins that tests something else than torch's compiler, and is to start in half of the time."""
