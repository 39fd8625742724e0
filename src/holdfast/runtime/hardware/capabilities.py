"""What can this host do? Each question is tried out rather than guessed from versions: containers, seccomp and sandboxes take
away what the kernel has. `safe_probes` asks them, each in a process of its own.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from holdfast.runtime.hardware import gpus as accelerators
from holdfast.runtime.process import process
from holdfast.runtime.process.safe_probes import Check, Fact, degraded, have, missing

ENOUGH_FILES = 4096  # Open files that a rank with some dozens of data loader workers and connections needs.

ENOUGH_SHM_BYTES = 1 << 30
"""What PyTorch's data loaders need for some batches of images; containers have 64 MiB unless told otherwise."""

MIB = 1 << 20

SLOW_S = 1.0  # For a nameserver's answer. The C library waits 5 s for one that is lost.


# ---- questions about the kernel ------------------------------------------------------------------------------------


def python() -> Fact:
    """Which interpreter is this? An older one than we need could not have installed us."""
    return have(f"{sys.version.split()[0]} at {sys.executable}", required=True)


def linux() -> Fact:
    """Is this Linux?"""
    seen = os.uname()
    found = f"{seen.sysname} {seen.release}, {seen.machine}, {len(os.sched_getaffinity(0))} CPUs for us"
    return have(found, required=True) if seen.sysname == "Linux" else missing(found, "", "run it on Linux")


def proc() -> Fact:
    """Does /proc show our processes?"""
    if blind := process.blindness():
        means = "no job can start: what its workers leave behind could not be found"
        return missing(blind, means, "mount -t proc proc /proc")
    return have("shows our processes", required=True)


def pidfd() -> Fact:
    """Can a process be waited for as a file descriptor?"""
    if process.pidfd_open(os.getpid()) is not None:
        return have("pidfd_open works")
    means = "a worker's end is learned from SIGCHLD, and signals go to pids"
    return degraded("refused", means, "Linux 5.3, and a seccomp profile that allows it")


def memfd() -> Fact:
    """Can memory be shared with a worker?"""
    try:
        os.close(os.memfd_create("holdfast-doctor", os.MFD_CLOEXEC))
    except (OSError, AttributeError) as error:
        means = "workers have no page: their death is seen when their memory has been freed, and hangs are not seen"
        return degraded(str(error), means, "allow memfd_create in the seccomp profile")
    return have("memfd_create works")


def robust_mutex() -> Fact:
    """Does the kernel mark a dead process's mutex? Tried with a child that dies holding one."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    seen = _die_holding_a_mutex(ctypes.CDLL(None), ctypes.c_void_p(address), ctypes.c_void_p(address + 512))
    if seen == _EOWNERDEAD:
        return have("marked when its owner dies")
    means = "the death of a worker with much memory is seen only when that has been freed, some 0.1 s for each GB"
    return degraded(f"not marked ({os.strerror(seen)})", means)


_EOWNERDEAD = 130


def _die_holding_a_mutex(libc: ctypes.CDLL, mutex: ctypes.c_void_p, attributes: ctypes.c_void_p) -> int:
    """What pthread_mutex_trylock says about a mutex whose owner is dead."""
    libc.pthread_mutexattr_init(attributes)
    libc.pthread_mutexattr_setpshared(attributes, 1)
    libc.pthread_mutexattr_setrobust(attributes, 1)
    libc.pthread_mutex_init(mutex, attributes)
    owner = os.fork()
    if owner == 0:
        libc.pthread_mutex_lock(mutex)
        os._exit(0)
    os.waitpid(owner, 0)
    return int(libc.pthread_mutex_trylock(mutex))


def subreaper() -> Fact:
    """Do orphans of our workers come to us?"""
    if process.set_subreaper():
        return have("orphans of workers come to us")
    means = "a process that detaches itself twice from its worker may outlive the job"
    return degraded("refused", means, "allow prctl in the seccomp profile")


def ptrace() -> Fact:
    """May a process look into another of the same user? py-spy does."""
    scope = _read("/proc/sys/kernel/yama/ptrace_scope").strip() or "0"
    child = os.fork()
    if child == 0:
        os._exit(0 if ctypes.CDLL(None).ptrace(0, 0, None, None) == 0 else 1)
    blocked = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    found = "refused" if blocked else f"yama scope {scope}"
    if not blocked and (scope == "0" or os.geteuid() == 0):
        return have(found)
    means = "py-spy and gdb cannot look into a hung worker; Holdfast itself does not need it"
    advice = "docker run --cap-add SYS_PTRACE" if blocked else "sysctl kernel.yama.ptrace_scope=0, or run as root"
    return degraded(found, means, advice)


def cgroup() -> Fact:
    """Which cgroups are there, and how much memory do they give?"""
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        limit = _read("/sys/fs/cgroup/memory.max").strip()
        return have("version 2" + (f", memory limit {int(limit) // MIB} MiB" if limit.isdigit() else ""))
    found = "version 1" if os.path.isdir("/sys/fs/cgroup/memory") else "none visible"
    return degraded(found, "a worker killed because memory ran out looks like any other SIGKILL")


# ---- questions about room ------------------------------------------------------------------------------------------


def shared_memory(path: str = "/dev/shm", enough_bytes: int = ENOUGH_SHM_BYTES) -> Fact:
    """How much room is in /dev/shm? Holdfast needs none of it; PyTorch's data loaders and NCCL do."""
    try:
        seen = os.statvfs(path)
        total, free = seen.f_blocks * seen.f_frsize, seen.f_bavail * seen.f_frsize
        found = f"{total // MIB} MiB, {free // MIB} MiB free"
    except OSError as error:
        free, found = 0, str(error.strerror)
    if free >= enough_bytes:
        return have(found)
    means = "enough for Holdfast; data loaders with workers, and NCCL, may end with SIGBUS"
    return degraded(found, means, "docker run --ipc=host or --shm-size=8g; in Kubernetes an emptyDir of medium Memory there")


def open_files() -> Fact:
    """How many files may a process open?"""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = ("unlimited" if one == resource.RLIM_INFINITY else str(one) for one in limits)
    found = f"{soft} (may be raised to {hard})"
    if soft == "unlimited" or int(soft) >= ENOUGH_FILES:
        return have(found)
    means = "enough for Holdfast; a rank with many data loader workers may run out (`Too many open files`)"
    return degraded(found, means, "ulimit -n 65536 before the job")


# ---- questions about the network -----------------------------------------------------------------------------------


def host_name() -> Fact:
    """Does this host's name lead to it?"""
    name = socket.gethostname()
    try:
        addresses = sorted({str(where[4][0]) for where in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
        found = f"{name} is {', '.join(addresses)}"
    except OSError as error:
        addresses, found = [], f"{name}: {error}"
    if any(not address.startswith("127.") and address != "::1" for address in addresses):
        return have(found)
    means = "jobs on this host alone run; other nodes cannot be told this one's address by its name"
    return degraded(
        found, means, "for several nodes: --local-addr with an address that the others reach, or an entry in /etc/hosts"
    )


def name_servers(slow_s: float = SLOW_S) -> Fact:
    """How long does it take to ask for an address's name? torch asks, whenever a rank connects to another's store."""
    asked = threading.Thread(target=_ask_for_name, daemon=True)
    began = time.monotonic()
    asked.start()
    asked.join(slow_s)
    if not asked.is_alive():
        return have(f"the name of an address is known after {time.monotonic() - began:.3f} s")
    means = "torch asks for the name of each address that ranks connect to: each start and restart may take as long"
    advice = "mend or remove the nameservers in /etc/resolv.conf, or give them less time there (options timeout:1)"
    return degraded(f"no answer within {slow_s:g} s about 127.0.0.1", means, advice)


def _ask_for_name() -> None:
    with suppress(socket.gaierror):
        socket.getnameinfo(("::ffff:127.0.0.1", 80), 0)  # as torch does: no /etc/hosts knows an address in this form


def ports() -> Fact:
    """Are there free ports?"""
    low, _, high = _read("/proc/sys/net/ipv4/ip_local_port_range").strip().partition("\t")
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    except OSError as error:
        return missing(str(error), "no master port can be had", "bring the loopback interface up (ip link set lo up)")
    given = f"the kernel gives {low} to {high} to ranks, and to agents without --agent-port" if high else "any"
    return have(f"{port} was free; {given}", required=True)


# ---- questions about devices and packages --------------------------------------------------------------------------


def gpus(environ: Mapping[str, str]) -> Fact:
    """Which GPUs are there, and does their driver answer?"""
    visible, tool = accelerators.count("gpu", environ), shutil.which("nvidia-smi")
    if not visible:
        return have("none visible; --nproc-per-node auto counts CPUs")
    if tool is None:
        return have(f"{visible} visible")
    said = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)  # its deadline is this child's
    if said.returncode == 0:
        return have(f"{visible} visible; the driver lists {len(said.stdout.splitlines())}")
    found = f"{visible} visible; nvidia-smi: {(said.stderr or said.stdout).strip()[:200]}"
    return degraded(found, "the driver is not well: ranks on it will fail", "dmesg; reboot")


def package(name: str, module: str, means: str, *, required: bool = False) -> Fact:
    """Is a package installed? Not imported: some take seconds."""
    try:
        there = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        there = False
    if not there:
        return (missing if required else degraded)("not installed", means, f"pip install {name}")
    try:
        found = version(name)
    except PackageNotFoundError:
        found = "installed"
    return have(found, required=required)


def py_spy(environ: Mapping[str, str]) -> Fact:
    """It is a program, and no module of its name is there to import."""
    found = shutil.which("py-spy", path=os.pathsep.join((os.path.dirname(sys.executable), environ.get("PATH", ""))))
    means = "of a hung worker that cannot show its stacks itself, only the kernel's view of it is kept"
    return have(found) if found is not None else degraded("not installed", means, "pip install py-spy")


PACKAGES: Sequence[tuple[str, str, str, bool]] = (
    ("msgspec", "msgspec", "no jobs of several nodes", True),
    ("PyYAML", "yaml", "no configuration files", True),
    ("rich", "rich", "no tables on terminals", True),
    ("prometheus-client", "prometheus_client", "no metrics", True),
    ("torch", "torch", "scripts that use PyTorch cannot run here; Holdfast itself does not need it", False),
)
"""Distribution, module, what its absence means, whether it is one of the core dependencies."""


def every_check(environ: Mapping[str, str]) -> dict[str, Check]:
    """All questions by name, in the order in which they are shown."""
    checks: dict[str, Check] = {
        "python": python,
        "linux": linux,
        "/proc": proc,
        "pidfd": pidfd,
        "memfd": memfd,
        "robust mutex": robust_mutex,
        "subreaper": subreaper,
        "ptrace": ptrace,
        "cgroup": cgroup,
        "/dev/shm": shared_memory,
        "open files": open_files,
        "host name": host_name,
        "nameservers": name_servers,
        "ports": ports,
        "gpus": partial(gpus, environ),
    }
    checks |= {name: partial(package, name, module, means, required=required) for name, module, means, required in PACKAGES}
    return checks | {"py-spy": partial(py_spy, environ)}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
