"""Flags whose defaults `PET_*` variables overrule: `torch.distributed.argparse_util` under our name, for parsers of your own.

parser.add_argument("--data", action=env, default="/data")      # PET_DATA=/other stands before /data, and --data before both
parser.add_argument("--dry-run", action=check_env)              # on with --dry-run, and with PET_DRY_RUN=1
"""

from __future__ import annotations

import os
from argparse import Action, ArgumentParser, Namespace
from typing import Any


class env(Action):
    """A flag with a value whose default the variable `PET_<dest>` overrules, for `add_argument(action=env)`."""

    def __init__(self, dest: str, default: Any = None, required: bool = False, **rest: Any) -> None:
        default = os.environ.get(f"PET_{dest.upper()}", default)
        super().__init__(dest=dest, default=default, required=required and not default, **rest)

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, values)


class check_env(Action):
    """A flag without a value that `PET_<dest>` set to a whole number other than 0 turns on."""

    def __init__(self, dest: str, default: bool = False, **rest: Any) -> None:
        default = bool(int(os.environ.get(f"PET_{dest.upper()}", int(default))))
        super().__init__(dest=dest, const=True, default=default, nargs=0, **rest)

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, self.const)
