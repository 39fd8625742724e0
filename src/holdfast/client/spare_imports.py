"""Imports in a spare worker, ahead of time, what its worker will import, and finds an import that did what no spare may do.

What comes before and after is in `client.spare`.

Standard library only, nothing newer than Python 3.8, and nothing of Holdfast by name: the bootstrap loads this file.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import PathFinder
from _thread import allocate_lock, get_native_id, start_new_thread
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from holdfast.client.hooks import Notebook

GPU_DRIVERS = ("/dev/nvidia-uvm", "/dev/kfd")
"""Opened by a process that initialises CUDA or ROCm; not by NVML, which merely counts."""

GONE_WITHIN_S = 1.0  # A thread that has ended is there for some microseconds more.
LOWER_BY = 5  # Of the nice value while it imports: a third of what others are given.

AT_LOAD = "!"
"""Instead of `core.page.layout.CHANGED`: a variable that compiled code reads as it is loaded, where nobody sees it."""


class Course:
    """What the script had changed before each of its imports, and whether an import here finds what it found there. A library
    that changes a variable itself does so here too."""

    def __init__(self, notebook: Notebook | None, reads: set[str]) -> None:
        """`reads`: names of the variables that have been read so far."""
        self.notebook, self.reads = notebook, reads
        self.until = ""  # The variable at whose change we have to stop. Empty: there has been none.
        self._read_before: dict[str, bool] = {}
        self._elsewhere: dict[str, str] = {}

    def goes_on(self, line: str) -> bool:
        """Past such a line, or not."""
        told, _, more = line[1:].partition(" ")
        if line[0] == "?":
            self._elsewhere[told] = more
        elif not self._is_made_here(line[1:]):
            if line[0] == AT_LOAD:
                self.until = told
                return False
            self._read_before.setdefault(told, told in self.reads)
            self.reads.discard(told)
        return True

    def _is_made_here(self, change: str) -> bool:
        if self.notebook is None:
            return False
        self.notebook.look()
        return change in self.notebook.changed

    def contradiction(self) -> str:
        """Why what has been imported is not what the script would find; empty: it is."""
        for name, before in self._read_before.items():
            if name in self.reads:
                return f"the script changes {name} before its imports read it: set it for the whole job, and it need not"
            if before:
                self.reads.add(name)
        for name, origin in self._elsewhere.items():
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if spec is not None and spec.origin != origin:
                there = origin or "elsewhere, by a changed sys.path"
                return f"the script has {name} from {there}, and what is imported ahead has it from {spec.origin}"
        return ""


def prepare(lines: Iterable[str], course: Course | None = None) -> str:
    """Import the modules of `lines`: `core.page.layout` tells what stands in each. Returns why that cannot be; empty: done."""
    site = sys.modules.get("site")
    if getattr(site, "ENABLE_USER_SITE", False) and PathFinder.find_spec("usercustomize") is not None:
        return "this Python has a usercustomize module, which is to run once the environment is known"
    course, present = course or Course(None, set()), os.getcwd()
    raise_again = _lower()
    try:
        why = _import_as_script(lines, course)
    finally:
        raise_again()
    if why:
        return why
    return "an import has changed the directory" if os.getcwd() != present else course.contradiction()


def _import_as_script(lines: Iterable[str], course: Course) -> str:
    """Import them where `sys.path` and `__main__` are as the script will find them. Why that cannot be; empty: done."""
    folder, put_back = _folder(), _nothing
    try:
        local = set()
        if folder is not None:
            local = _local_names(folder)
            sys.path.insert(0, folder)
        put_back = _show_script()
        why = _import_each(lines, course, local)
        if not why and folder is not None and sys.path[:1] != [folder]:
            return "an import has put something before the script's directory in sys.path"
        return why
    finally:
        if folder is not None and folder in sys.path:
            sys.path.remove(folder)
            sys.path_importer_cache.pop(folder, None)
        put_back()


def _import_each(lines: Iterable[str], course: Course, local: set[str]) -> str:
    """Import all but the modules `local` to the script, as far as the course goes on. Why one cannot be; empty: done."""
    for line in lines:
        if line[:1] in ("=", "?", AT_LOAD):
            if not course.goes_on(line):
                break
        elif line and line not in sys.modules and line.partition(".")[0] not in local:
            try:
                __import__(line)
            except BaseException as error:
                return f"importing {line} failed: {type(error).__name__}: {error}"
    return ""


def _folder() -> str | None:
    """What Python is going to put first on sys.path: the script's folder, with -m the present one. None: nothing."""
    if getattr(sys.flags, "safe_path", False):
        return None
    if sys.argv[0] == "-m":
        return os.getcwd()
    script = os.path.realpath(sys.argv[0])
    return script if os.path.isdir(script) else os.path.dirname(script)


def _show_script() -> Callable[[], None]:
    """Have `__main__` tell its file, as it will: some ask whether Python runs a script. Returns what undoes that."""
    main, script = sys.modules["__main__"], os.path.join(os.getcwd(), sys.argv[0])
    if hasattr(main, "__file__") or not os.path.isfile(script):
        return _nothing
    main.__file__ = script
    return lambda: vars(main).pop("__file__", None)


def _nothing() -> None:
    """To be undone."""


def _local_names(folder: str) -> set[str]:
    """The user's own modules beside the script: not imported ahead of time unless a library asks for one."""
    try:
        found = os.listdir(folder)
    except OSError:
        return set()
    folders = {name for name in found if os.path.isdir(os.path.join(folder, name))}
    # A folder without an __init__.py is a package too, where no other is found of its name.
    packages = {name for name in folders if os.path.exists(os.path.join(folder, name, "__init__.py")) or not _is_found(name)}
    return packages | {name.partition(".")[0] for name in found if name.endswith((".py", ".pyc", ".so"))}


def _is_found(name: str) -> bool:
    """Whether a package of that name is installed, which goes before a folder that only may be one."""
    spec = PathFinder.find_spec(name)
    return spec is not None and spec.origin is not None


def _lower() -> Callable[[], None]:
    """Lower our priority, by a little: a host whose processors are never idle has spares too. Returns what undoes it, for all
    threads that there are by then. Where that is not allowed (RLIMIT_NICE), nothing is done."""
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
    ended, able, who = allocate_lock(), [], []

    def attempt() -> None:
        who.append(f"/proc/self/task/{get_native_id()}")
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
    until = monotonic() + GONE_WITHIN_S
    while os.path.exists(who[0]) and monotonic() < until:  # it is not to be counted among those that imports have started
        os.sched_yield()
    return bool(able)


def own_files() -> Iterable[str]:
    """Files of the modules that are loaded and neither Python's nor installed: somebody may be at work on them."""
    library = {os.path.dirname(file) + os.sep for file in (os.__file__, os.path.realpath(os.__file__))}
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and os.path.isabs(path) and not path.startswith((ours, *library)) and not _is_installed(path):
            yield path


def _is_installed(path: str) -> bool:
    return any(f"{os.sep}{folder}{os.sep}" in path for folder in ("site-packages", "dist-packages"))


def identity(path: str) -> tuple[int, int]:
    """What of a file changes when somebody writes to it: time (ns) and size; (0, 0): there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def unfit(sockets_before: set[str], drivers: Collection[str] = GPU_DRIVERS) -> str:
    """What an import has done that no spare may do; empty: nothing."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        return "an import has initialised CUDA"
    for link in _links().values():
        if link in drivers:
            return f"an import has opened {link}"
    return "an import has opened a socket" if sockets() - sockets_before else ""


def unforkable(files_before: Collection[int] = ()) -> str:
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
    for fd, link in _links().items():
        if fd not in files_before and (not link.startswith("/dev/") or link.startswith("/dev/shm/")):
            return f"it cannot be forked: its imports hold {link} open, and forked processes would share its offset"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if "/dev/shm/sem." in line:  # a rank that dies with it would leave it taken, for all ranks of all lives
                return "it cannot be forked: its imports have made a lock that forked processes share (multiprocessing.Lock)"
    return ""


def _links() -> dict[int, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[int(fd)] = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
    return found


def files() -> set[int]:
    """Descriptors that this process has open."""
    return {*_links()}


def sockets() -> set[str]:
    """Those that this process has open."""
    return {link for link in _links().values() if link.startswith("socket:")}
