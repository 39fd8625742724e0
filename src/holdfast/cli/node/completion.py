"""`holdfast completion`: what a shell needs to complete commands and flags, made from the commands themselves."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping

from holdfast.cli.main import ASKING, LAUNCHING, OTHERS, command_module
from holdfast.cli.run.script_check import modules_in
from holdfast.core.config.flags import flags_of

HELP = "print what bash, zsh or fish needs to complete holdfast's commands and flags"
WHERE = {
    "bash": "source <(holdfast completion bash), in ~/.bashrc",
    "zsh": "source <(holdfast completion zsh), in ~/.zshrc",
    "fish": "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
}

MODULES = "modules"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    asked = f"`{MODULES}` lists what begins with START, for after -m; these ask for it"
    parser.add_argument("shell", choices=(*WHERE, MODULES), help="; ".join((*WHERE.values(), asked)))
    parser.add_argument("start", nargs="?", default="", metavar="START", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Print it."""
    if options.shell == MODULES:
        print("\n".join(sorted(_modules(options.start))))
        return 0
    words = {command: sorted(_flags(command)) for command in (*LAUNCHING, *OTHERS, *ASKING)}
    print("\n".join(_fish(words) if options.shell == "fish" else _bash(words, is_zsh=options.shell == "zsh")))
    return 0


def _flags(command: str) -> Iterator[str]:
    """Those of a command, in the spelling with hyphens."""
    if command in LAUNCHING:
        yield from (name for flag in flags_of(command) for name in flag.names if name.startswith("--") and "_" not in name)
    elif command in ASKING:
        parser = argparse.ArgumentParser(add_help=False)
        command_module(command).arguments(parser)
        yield from (name for action in parser._actions for name in action.option_strings if name.startswith("--"))
    yield "--help"


def _modules(start: str) -> set[str]:
    """What may follow `-m`: modules in the working directory, and of what is installed those that begin with `start`."""
    package, dot, begun = start.rpartition(".")
    folders = [os.path.join(folder, *package.split(".")) for folder in ("", *sys.path) if start or not folder]
    return {f"{package}{dot}{name}" for name in modules_in(folders) if name.startswith(begun)}


def _bash(words: Mapping[str, list[str]], *, is_zsh: bool) -> Iterator[str]:
    if is_zsh:
        yield "autoload -U +X bashcompinit && bashcompinit"
    yield "_holdfast() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" words='
    yield '    if [ "$COMP_CWORD" = 1 ]; then'
    yield f'        COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word")); return'
    yield "    fi"
    yield '    case "${COMP_WORDS[1]}" in'
    for command, flags in words.items():
        yield f'        {command}) words="{" ".join(flags)}" ;;'
    yield "    esac"
    yield '    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD - 1]}" in'
    yield f'        "run -m"|"run --module") COMPREPLY=($(holdfast completion {MODULES} "$word" 2>/dev/null))'
    yield "            compopt -o nospace 2>/dev/null; return ;;"
    yield "    esac"
    yield '    case "$word" in'
    yield '        -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;'
    yield '        *) COMPREPLY=($(compgen -f -- "$word")) ;;'
    yield "    esac"
    yield "}"
    yield "complete -o filenames -F _holdfast holdfast"


def _fish(words: Mapping[str, list[str]]) -> Iterator[str]:
    for command, flags in words.items():
        yield f"complete -c holdfast -n __fish_use_subcommand -a {command}"
        for flag in flags:
            yield f"complete -c holdfast -n '__fish_seen_subcommand_from {command}' -l {flag.removeprefix('--')}"
    after_m = "__fish_seen_subcommand_from run; and string match -qr -- '^(-m|--module)$' (commandline -opc)[-1]"
    yield f'complete -c holdfast -f -n "{after_m}" -a "(holdfast completion {MODULES} (commandline -ct))"'
