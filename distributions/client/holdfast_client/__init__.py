"""Which `holdfast` is imported where this is installed? Holdfast itself, wherever on sys.path it is; else what is here.

Loaded at the start of every Python of this environment, so it imports nothing. The folder is on sys.path too, for type
checkers. But who comes first there depends on the order of site's folders, and Holdfast would be hidden by its own client.
"""

import sys
from _frozen_importlib_external import PathFinder

LIB = f"{__path__[0]}/lib"


class Holdfast:
    """Answers to that name, before a folder of the same name (a checkout, beside the script) does."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """The package of Holdfast; None: another name is asked for."""
        if name != "holdfast":
            return None
        return PathFinder.find_spec(name, [*(entry for entry in sys.path if entry != LIB), LIB])


sys.meta_path.insert(0, Holdfast)
