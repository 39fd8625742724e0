"""What does a spare worker do ahead of time? It imports what its worker is going to import, and sees whether that has done
anything that no spare may do. What comes before and after is `client.spare`.

As all that the bootstrap loads: the standard library only, nothing newer than Python 3.8, and nothing of Holdfast by name.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GPU_DRIVERS = ("/dev/nvidia-uvm", "/dev/kfd")
"""Opened by whoever initialises CUDA or ROCm; not by NVML, which merely counts."""

LOWER_BY = 5
"""Of the nice value while it imports: a third of what others are given."""


def prepare(names: Iterable[str]) -> str:
    """Import them. Returns why that cannot be; empty: it is done."""
    site = sys.modules.get("site")
    if getattr(site, "ENABLE_USER_SITE", False) and _findable("usercustomize"):
        return "this Python has a usercustomize module, which is to run once the environment is known"
    folder = _folder()
    local = _local_names(folder) if folder is not None else set()
    raise_again = _lower()
    try:
        if folder is not None:
            sys.path.insert(0, folder)
        for name in names:
            if name and name not in sys.modules and name.partition(".")[0] not in local:
                try:
                    __import__(name)
                except BaseException as error:
                    return f"importing {name} failed: {type(error).__name__}: {error}"
    finally:
        if folder is not None and folder in sys.path:
            sys.path.remove(folder)
            sys.path_importer_cache.pop(folder, None)
        raise_again()
    return ""


def _folder() -> str | None:
    """What Python is going to put first on sys.path: the script's folder, with -m the present one. None: nothing."""
    if getattr(sys.flags, "safe_path", False):
        return None
    if sys.argv[0] == "-m":
        return os.getcwd()
    script = os.path.realpath(sys.argv[0])
    return script if os.path.isdir(script) else os.path.dirname(script)


def _local_names(folder: str) -> set[str]:
    """The user's own modules beside the script: not imported ahead of time unless a library asks for one."""
    try:
        found = os.listdir(folder)
    except OSError:
        return set()
    packages = {name for name in found if os.path.exists(os.path.join(folder, name, "__init__.py"))}
    return packages | {name.partition(".")[0] for name in found if name.endswith((".py", ".pyc", ".so"))}


def _findable(name: str) -> bool:
    from _frozen_importlib_external import PathFinder

    return PathFinder.find_spec(name) is not None


def _lower() -> Callable[[], None]:
    """Make way for others, but not for ever: a host whose processors are never idle is to have spares too. Returns
    what undoes it, for every thread that has come to be meanwhile. Where that is not allowed (RLIMIT_NICE), nothing is done."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    if not _may_rise(usual):
        return lambda: None

    def undo() -> None:
        for thread in os.listdir("/proc/self/task"):
            try:
                os.setpriority(os.PRIO_PROCESS, int(thread), usual)
            except ProcessLookupError:
                continue

    os.setpriority(os.PRIO_PROCESS, 0, usual + LOWER_BY)
    return undo


def _may_rise(usual: int) -> bool:
    """Whether a thread of ours that has lowered its priority may take it back: tried by one that ends at once."""
    from _thread import allocate_lock, start_new_thread

    ended, able = allocate_lock(), []

    def attempt() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, usual + 1)
            os.setpriority(os.PRIO_PROCESS, 0, usual)
            able.append(True)
        except OSError:
            pass
        finally:
            ended.release()

    ended.acquire()
    start_new_thread(attempt, ())
    ended.acquire()
    return bool(able)


def own_files() -> Iterable[str]:
    """Files of the modules that are loaded and neither Python's nor installed: somebody may be at work on them."""
    installed = {os.path.realpath(prefix) + os.sep for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and not path.startswith((ours, *installed)) and os.path.isabs(path):
            yield path


def identity(path: str) -> tuple[int, int]:
    """What of a file changes when somebody writes to it: time (ns) and size; (0, 0): there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def unfit(sockets_before: set[str]) -> str:
    """What an import has done that no spare may do; empty: nothing."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        return "an import has initialised CUDA"
    for link in _links():
        if link in GPU_DRIVERS:
            return f"an import has opened {link}"
    return "an import has opened a socket" if sockets() - sockets_before else ""


def unforkable() -> str:
    """What an import has done that forked workers would share, each of which is to have its own; empty: nothing."""
    children = 0
    for thread in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/" + thread + "/children", encoding="ascii") as file:
                children += len(file.read().split())
        except OSError:  # a kernel that does not tell
            continue
    if children:
        return f"it cannot be forked: its imports have started {children} process" + "es" * (children > 1)
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if "/dev/shm/sem." in line:  # a rank that dies with it would leave it taken, for all ranks of all lives
                return "it cannot be forked: its imports have made a lock that forked processes share (multiprocessing.Lock)"
    return ""


def _links() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink("/proc/self/fd/" + fd))
        except OSError:
            continue
    return found


def sockets() -> set[str]:
    """Those that this process has open."""
    return {link for link in _links() if link.startswith("socket:")}
