"""`holdfast token`: a fresh secret for the nodes of one job, to prove with that they belong together."""

from __future__ import annotations

import argparse
import os
import sys
from base64 import urlsafe_b64encode

from holdfast.core.errors import UsageError
from holdfast.runtime.private_files import new_file
from holdfast.runtime.secrets import secret_in

HELP = "make a secret by which a job's nodes know each other"

SECRET_BYTES = 32  # As long as the key of the MAC that it is used for.


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--write", metavar="FILE", help="write it to FILE, which only you may read; without it, print it")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")


def run(options: argparse.Namespace) -> int:
    """Make one."""
    token = urlsafe_b64encode(os.urandom(SECRET_BYTES)).decode().rstrip("=")
    if options.write is None:
        if options.force:
            raise UsageError("--force: there is no FILE to replace", hint="give --write FILE")
        print(token)
        return 0
    _write(options.write, token, replace=options.force)
    bring = f"bring it to every node, and give each --token-file {options.write}"
    print(f"wrote a token to {options.write}; {bring}", file=sys.stderr)
    return 0


def check_token_file(path: str, flag: str = "--token-file", may: str = "join the job or stop it") -> str:
    """What is unwise about a token file that `flag` names; empty: nothing. `may`: what a stranger could do with it. UsageError
    when it is of no use."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        what = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise UsageError(f"{flag}: {path} {what}", hint=f"make one with `holdfast token --write {path}`") from error
    if not os.access(path, os.R_OK):
        raise UsageError(f"{flag}: {path} cannot be read", hint="it must be readable for the user who runs the job")
    if os.path.isdir(path):
        raise UsageError(f"{flag}: {path} is a directory", hint=f"make one with `holdfast token --write {path}/token`")
    secret_in(path, flag)
    if mode & 0o077:
        who = "every user of this host" if mode & 0o007 else "its group"
        return f"{flag}: {path} is open to {who}, who can then {may}: chmod 600 {path}"
    return ""


def _write(path: str, token: str, *, replace: bool) -> None:
    try:
        new_file(path, f"{token}\n", replace=replace)
    except FileExistsError as error:
        raise UsageError(
            f"--write: {path} exists", hint="use it as it is, or --force: nodes with the old token are then shut out"
        ) from error
    except OSError as error:
        hint = "name a file in a folder that this user may write to"
        raise UsageError(f"--write: cannot write {path}: {error.strerror}", hint=hint) from error
