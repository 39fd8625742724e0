"""Is what the user wants run there? Looked at before anything of the job is made: no restart would bring it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from holdfast.agent.workers.launch import substitute
from holdfast.core.config.config import RunConfig
from holdfast.core.config.grammar import nearest
from holdfast.core.errors import UsageError


def check_script(config: RunConfig) -> None:
    """UsageError where the script, module or program of local rank 0 is not there, or cannot be read. What only the workers'
    own interpreter could tell is left to it."""
    script = config.training_script
    if not config.no_python and config.python != sys.executable:
        _check_interpreter(config.python)
    if config.no_python and not config.run_path:
        return _check_program(script)
    if config.module and not config.run_path:
        return _check_module(substitute(script, 0)) if config.python == sys.executable else None
    if not script.startswith("-"):  # an option of the interpreter's, or the script on stdin
        _check_file(substitute(script, 0), config.training_script_args)


def _check_file(path: str, arguments: Sequence[str]) -> None:
    if os.path.isdir(path):
        if not os.path.exists(inside := os.path.join(path, "__main__.py")):
            raise UsageError(f"the script {path} is a folder without a __main__.py", hint=_beside(inside))
    elif not path:
        raise UsageError("the script's name is empty", hint='if it was "$SOMETHING", that variable is empty')
    elif not os.path.exists(path):
        where = "" if os.path.isabs(path) else f" (looked for in {os.getcwd()})"
        raise UsageError(f"the script {path} is not there{where}", hint=_instead(path, arguments))
    elif not os.access(path, os.R_OK):
        raise UsageError(f"this user may not read the script {path}", hint="correct its rights (chmod), or run as its owner")


def _instead(path: str, arguments: Sequence[str]) -> str:
    """What may have been meant: `python train.py`, `--tee 3 3 train.py`, or a file whose name is like it."""
    if arguments and arguments[0].endswith(".py") and os.path.isfile(arguments[0]):
        return f"the first word that belongs to no flag is the script: did you mean {arguments[0]}? Then leave {path} out"
    return _beside(path)


def _beside(path: str) -> str:
    """What to do about a script that is not there."""
    folder, name = os.path.split(path)
    try:
        files = [file for file in os.listdir(folder or ".") if file.endswith(".py")]
    except OSError:
        return f"the folder {folder or '.'} is not there either: is its file system mounted on this node?"
    found = nearest(name, files)
    return f"did you mean {os.path.join(folder, found)}?" if found else "check the path, and the directory that you start from"


def _check_program(name: str) -> None:
    from shutil import which  # only --no-python asks

    found = which(name)
    if found is None:
        where = "is not there, or may not be executed" if os.sep in name else "is in no directory of PATH"
        here = os.sep not in name and os.path.exists(name)
        hint = f"for the one here: ./{name}" if here else "give its path, or correct PATH or its rights (chmod +x)"
        raise UsageError(f"the program {name} {where}", hint=hint)
    _check_first_line(found)


def _check_first_line(path: str) -> None:
    """Of a text that is executable the kernel wants to know by what. What is no text it may know by itself."""
    try:
        with open(path, "rb") as file:
            first = file.readline(256).rstrip()
    except OSError:
        return  # one may execute what one may not read
    if first.startswith(b"#!"):
        interpreter = os.fsdecode((first[2:].split() or [b""])[0])
        if not os.path.exists(interpreter):
            what = f"the program {path} names {interpreter!r} in its first line, which is not there"
            raise UsageError(what, hint="correct that line (#!)")
    elif first.isascii() and not set(first) & {0, 0x7F}:
        hint = f"begin it with #!/bin/sh, say, or give `sh {path}`"
        raise UsageError(f"the program {path} does not say in its first line what runs it", hint=hint)


def _check_interpreter(name: str) -> None:
    from shutil import which  # only where another interpreter is wanted

    if which(name) is None:
        raise UsageError(f"the interpreter {name} is not there, or may not be executed", hint="correct PYTHON_EXEC")


def _check_module(name: str) -> None:
    import importlib.machinery  # only -m asks
    import importlib.util  # and it takes 2 ms

    find = importlib.machinery.PathFinder.find_spec
    top, *below = name.split(".")
    theirs = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        spec = find(top, theirs) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return  # a module in an odd state is the interpreter's to judge
    at, folders = top, [*theirs, *sys.path]
    for part in below:
        if spec is not None:
            at, folders = f"{at}.{part}", list(spec.submodule_search_locations or ())
            spec = find(part, folders)  # by its last name: with all of it, a folder without __init__.py looks for its parent
    inner = None if spec is None else spec.submodule_search_locations
    if inner is not None and find("__main__", list(inner)) is None:
        raise UsageError(f"{name} is a package without a module __main__", hint=f"name a module of it: -m {name}.train, say")
    if spec is None:
        package, dot, missing = at.rpartition(".")
        found = nearest(missing, (one.removesuffix(".") for one in modules_in(folders)))
        hint = f"did you mean {package}{dot}{found}?" if found else "check its name, and that this interpreter has it"
        hint = "give a script's path without -m" if name.endswith(".py") else hint
        raise UsageError(f"there is no module {at} for {sys.executable}", hint=hint)


def modules_in(folders: Iterable[str]) -> Iterator[str]:
    """Names of modules and packages there, the latter with a dot behind. Nothing is imported."""
    for folder in folders:
        try:
            entries = list(os.scandir(folder or "."))
        except OSError:  # an archive, or there is no such folder
            continue
        for entry in entries:
            name = entry.name.removesuffix(".py")
            if name.isidentifier() and not name.startswith("__") and (entry.is_dir() or name != entry.name):
                yield f"{name}." if entry.is_dir() else name
