"""How does an unmodified script show that it gets on? By its optimizers' steps, and the checkpoints that it saves.

`watch` waits until the script imports one of these modules, and then

- counts every optimizer's step as a heartbeat, and the steps of the optimizer with most steps as progress, unless the script
  tells its progress itself (`holdfast.client.progress`), or the step only makes the optimizer's state (`SET_UPS`);
- makes `torch.save` and torch.distributed.checkpoint's saves (`SAVES`) sections called `checkpoint`;
- notes when the script joins its first process group, when it has joined (then it can be asked for its collectives:
  `client.collectives`), and how long it loads its state before its first step;
- makes the time that a debugger or another prompt waits for a person a section called `debugger`;
- puts our client in place of NVRx's (`integrations.nvrx`), where Holdfast is installed.

For the script's next life the names of all modules it loads are noted (`Notebook`), if the agent wants them.

No import is added. Python's own finder is wrapped, and what it finds is given something to do once it has run. The script can
see a hook in torch's list of them, and a frame of ours in the traceback of a save that fails. torch.compile does not trace the
hook: a step that lies whole in a compiled function goes unnoticed.

Standard library only, nothing newer than Python 3.8, and nothing of Holdfast by name: the bootstrap loads this file.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import PathFinder
from _thread import RLock
from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, TypeVar

    from holdfast.client.writer import Writer

    F = TypeVar("F", bound=Callable[..., Any])
    T = TypeVar("T")
    Step = Callable[[Any, Any, Any], None]

CHECKPOINT, DEBUGGER = "checkpoint", "debugger"  # Names of the sections.

SAVES = ("save", "async_save", "save_state_dict")
"""Of distributed checkpoints. The last is deprecated, and one day it is gone: the others are marked by then."""

SET_UPS = {
    "torch.distributed.checkpoint.state_dict": ("", "_init_optim_state"),  # get_optimizer_state_dict and the like
    "deepspeed.runtime.bf16_optimizer": ("BF16_Optimizer", "initialize_optimizer_states"),
    "deepspeed.runtime.zero.stage_1_and_2": ("DeepSpeedZeroOptimizer", "initialize_optimizer_states"),
    "deepspeed.runtime.zero.stage3": ("DeepSpeedZeroOptimizer_Stage3", "initialize_optimizer_states"),
}
"""What makes an optimizer's state by a step with gradients of zero: module → class and method, or function."""

PROMPTS = {
    "cmd": ("Cmd", "cmdloop"),  # pdb
    "code": ("InteractiveConsole", "interact"),
    "IPython.terminal.debugger": ("TerminalPdb", "cmdloop"),  # ipdb
    "IPython.terminal.embed": ("InteractiveShellEmbed", "mainloop"),
    "pydevd": ("PyDB", "do_wait_suspend"),  # debugpy, PyCharm
}
"""Where prompts wait: module → class and method."""

MOST_OPTIMIZERS = 10_000  # So many are told apart; a script that makes one for each step begins to be counted anew then.


def watch(
    writer: Callable[[], Writer],
    note: Notebook | None = None,
    *,
    signs: bool = True,
    joined: Callable[[], None] = lambda: None,
    more: Mapping[str, Callable[[ModuleType], object]] | None = None,
) -> None:
    """Do the above for this process (`signs`), and note in `note` which modules are loaded. `writer()` is called at torch's
    import, `joined()` when the script has a process group, and what `more` has for a module once that is loaded."""
    hooked: list[Step] = []
    set_up = _SetUp()

    def step_hook() -> Step:
        if not hooked:
            hooked.append(_counter(writer(), set_up))
        return hooked[0]

    def marking(section: str | _SetUp, *names: str, of: str = "") -> Callable[[ModuleType], None]:
        def mark(module: ModuleType) -> None:
            holder = getattr(module, of) if of else module
            for name in names:
                setattr(holder, name, _within(section, getattr(holder, name), writer()))

        return mark

    def restores(module: ModuleType) -> None:
        _around(module, "load", lambda *_, **__: monotonic_ns(), writer().restored)

    def files(module: ModuleType) -> None:
        marking(CHECKPOINT, "save")(module)
        restores(module)

    def joins(module: ModuleType) -> None:
        def after(_: object) -> None:
            writer().joined()
            joined()

        _around(module, "init_process_group", writer().joining, after)

    actions: dict[str, Callable[[ModuleType], object]] = {}
    if signs:
        actions = {
            "torch.optim.optimizer": lambda module: module.register_optimizer_step_post_hook(step_hook()),
            "torch._dynamo.config": lambda module: module.ignore_logging_functions.add(step_hook()),
            "torch.serialization": files,
            "torch.distributed.checkpoint.state_dict_saver": marking(CHECKPOINT, *SAVES),
            "torch.distributed.checkpoint.state_dict_loader": restores,
            "torch.distributed.distributed_c10d": joins,
            "nvidia_resiliency_ext.fault_tolerance.rank_monitor_client": _stand_in,
            **{module: marking(DEBUGGER, method, of=holder) for module, (holder, method) in PROMPTS.items()},
            **{module: marking(set_up, method, of=holder) for module, (holder, method) in SET_UPS.items()},
        }
    _when_loaded({**actions, **(more or {})}, note)


def _stand_in(module: ModuleType) -> None:
    from importlib import import_module  # only for scripts that use NVRx

    import_module("holdfast.integrations.nvrx").stand_in(module)


class _SetUp:
    """While it is open, an optimizer's step is a heartbeat and no progress."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


def _counter(writer: Writer, set_up: _SetUp) -> Step:
    steps: dict[int, int] = {}  # of each optimizer but the last, by its id: most scripts have one
    last = mine = most = 0

    def optimizer_stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal last, mine, most
        try:
            if writer.steps_told or set_up.depth:
                return writer.heartbeat()
            if last != id(optimizer):
                steps[last] = mine
                last = id(optimizer)
                mine = steps.get(last, 0)
                if len(steps) > MOST_OPTIMIZERS:
                    steps.clear()
            mine += 1
            if mine <= most:
                return writer.heartbeat()
            most = mine
            writer.progress(mine, False)
        except Exception:
            return

    return optimizer_stepped


def _within(section: str | _SetUp, function: Callable[..., Any], writer: Writer) -> Callable[..., Any]:
    from functools import wraps  # only scripts with such a function need it

    @wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        try:
            context = writer.named(section) if isinstance(section, str) else section
        except ValueError:  # the script has used up all names for sections
            return function(*args, **kwargs)
        try:
            with context:
                return function(*args, **kwargs)
        except BaseException as error:
            _leave(error)
            raise

    return inside


def _leave(error: BaseException) -> None:
    """Take the caller's frame out of the traceback: who reads it looks for the fault there. Before Python 3.11 it stays."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _around(module: ModuleType, name: str, before: Callable[..., T], after: Callable[[T], object]) -> None:
    """Call `before`, with the same arguments, and then `after`, with what it returned, around each call that does not fail."""
    from functools import wraps  # only scripts with such a function need it

    function = getattr(module, name)

    @wraps(function)
    def around(*args: Any, **kwargs: Any) -> Any:
        begun = before(*args, **kwargs)
        try:
            answer = function(*args, **kwargs)
        except BaseException as error:
            _leave(error)
            raise
        after(begun)
        return answer

    setattr(module, name, around)


class Notebook:
    """The names of the modules that are loaded from now on, in a worker's page; and what of the process's beginning was no
    longer so: variables, and where a module was found. A spare imports under what the process begins with."""

    def __init__(self, layout: ModuleType, words: Callable[[], memoryview | None]) -> None:
        """`words()`: the page, if it is ours still."""
        self.layout, self.words, self.lock = layout, words, RLock()
        self.searched = {os.path.abspath(entry) for entry in sys.path}
        self.elsewhere: set[str] = set()  # What was found in none of these directories; without what belongs to it.
        self.changed: set[str] = set()  # `NAME SUM` of all changes that have been seen.
        self.begin_anew()

    def begin_anew(self) -> None:
        """The process begins now, with the variables that it has."""
        self._first = self._last = self._variables()

    @staticmethod
    def _variables() -> dict[bytes, bytes]:
        return dict(getattr(os.environ, "_data", ()))

    def look(self) -> set[str]:
        """Changes of variables since the last look: `NAME SUM` each."""
        if getattr(os.environ, "_data", self._last) == self._last:
            return set()
        from binascii import crc32  # only where a variable has changed

        before, self._last = self._last, self._variables()
        found = set()
        for name in {*before, *self._last}:
            value = self._last.get(name)
            if value not in (before.get(name), self._first.get(name)) and b"\n" not in name:
                found.add(f"{os.fsdecode(name)} {'-' if value is None else format(crc32(value), 'x')}")
        self.changed |= found
        return found

    def begin(self, spec: ModuleSpec) -> int:
        """A module's loading begins. Returns where that stands, for `end`; -1: nowhere."""
        words, layout, name = self.words(), self.layout, spec.name
        noted = words is not None and words[layout.HOOK] & layout.HOOK_MODULES
        with self.lock:
            for change in sorted(self.look()):
                if noted:
                    self._write(layout.CHANGED, change)
            if "." not in name and not self._was_searched(spec):
                self.elsewhere.add(name)
                if noted:
                    self._write(layout.ELSEWHERE, f"{name} {spec.origin}")
            if not noted or name.partition(".")[0] in self.elsewhere:
                return -1
            return self._write(layout.LOADING, name)

    def _was_searched(self, spec: ModuleSpec) -> bool:
        folder = os.path.dirname(spec.origin or "")
        return (folder if spec.submodule_search_locations is None else os.path.dirname(folder)) in self.searched

    def _write(self, mark: bytes, text: str) -> int:
        words, layout = self.words(), self.layout
        line = mark + text.encode("utf-8", "replace").replace(b"\n", b"?") + b"\n"
        if words is None or (end := words[layout.MODULES_END]) + len(line) > layout.MODULES_BYTES:
            return -1
        at = layout.MODULES * 8 + end
        words.cast("B")[at : at + len(line)] = line
        words[layout.MODULES_END] = end + len(line)
        return int(at)

    def end(self, at: int) -> None:
        """It is loaded."""
        words = self.words()
        if words is not None:
            words.cast("B")[at : at + 1] = self.layout.LOADED


def _when_loaded(actions: dict[str, Callable[[ModuleType], object]], note: Notebook | None) -> None:
    """Call `actions[name](module)` when the module `name` has run, for each of them, and note every one."""
    find = PathFinder.__dict__["find_spec"].__func__

    def find_spec(cls: type, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec: ModuleSpec | None = find(cls, fullname, path, target)
        if spec is not None and (note is not None or fullname in actions):
            _add_to(spec, actions.get(fullname), note)
        return spec

    PathFinder.find_spec = classmethod(_unseen(find_spec))  # type: ignore


def _add_to(spec: ModuleSpec, action: Callable[[ModuleType], object] | None, note: Notebook | None) -> None:
    loader: Any = spec.loader
    name = spec.name
    if getattr(loader, "name", None) != name:
        return  # one that loads other modules, too

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # that of its class is to be seen again
        at = note.begin(spec) if note is not None else -1
        loader.exec_module(module)
        if at >= 0 and note is not None:
            note.end(at)
        if action is None:
            return
        try:
            action(module)
        except Exception:  # another version of torch
            return

    loader.exec_module = _unseen(exec_module)


def _unseen(function: F) -> F:
    """Importlib's frames are left out of a traceback, and skipped when a warning names its caller: so is `function`'s."""
    function.__code__ = function.__code__.replace(co_filename="<frozen importlib._bootstrap_external>")
    function.__annotations__ = {}
    return function
