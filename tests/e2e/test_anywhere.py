"""Does a job with a failure and a restart run wherever people put it? Without privileges, in what a container leaves of a host.

Some of these need root, to build the container's view; what runs in it then has none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kit import SCRIPTS

CONFINED = (sys.executable, str(SCRIPTS / "confined.py"))
NOBODY = 100_000 + os.getpid()
"""A user that no other test plays, so that all that is his can go in the end."""

JOB = """
import os, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
os.write(1, f"rank {rank} attempt {attempt} of user {os.getuid()}\\n".encode())
if attempt == 0 and rank == 1:
    while not os.path.exists(__file__ + ".rank-0"):
        time.sleep(0.01)
    raise RuntimeError("boom")
if attempt == 0:
    open(__file__ + ".rank-0", "w").close()
    time.sleep(300)
"""
"""Rank 1 fails once both have spoken."""


def works(*prefix: str) -> bool:
    """Can a Python behind `prefix` start another that finds Holdfast?"""
    inner = "import holdfast.runtime.process.guardian, ctypes"
    probe = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {inner!r}]))"
    with contextlib.suppress(OSError):
        return subprocess.run([*prefix, sys.executable, "-c", probe], capture_output=True, cwd="/").returncode == 0
    return False


@pytest.fixture(scope="session")
def unprivileged() -> tuple[str, ...]:
    """What to put before a command so that it runs without privileges."""
    if os.geteuid() != 0:
        return ()
    ways = [
        ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"),
        # Where nobody else may read this Python: an unprivileged user who owns our files, in a user namespace.
        ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}"),
    ]
    for way in ways:
        if works(*way):
            return way
    pytest.skip("neither setpriv nor a user namespace lets this Python run without privileges")


@pytest.fixture
def anyones() -> Iterator[Path]:
    """A folder that everybody may use."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
    folder.chmod(0o777)
    (folder / "job.py").write_text(JOB)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Ended(NamedTuple):
    code: int
    ranks: list[str]
    stderr: str


@pytest.fixture
def trains(anyones: Path):
    """`trains(*prefix)`: how the job ends when it is run behind `prefix`, with a state directory that it may use."""

    def run(*prefix: str, env: dict[str, str] | None = None, without: tuple[str, ...] = ()) -> Ended:
        full = {**os.environ, "HOLDFAST_STATE_DIR": str(anyones / "state"), **(env or {})}
        full = {name: value for name, value in full.items() if name not in without}
        options = ("--nproc-per-node", "2", "--max-restarts", "1", "--rdzv-id", anyones.name)
        command = [*prefix, sys.executable, "-m", "holdfast", "run", *options, str(anyones / "job.py")]
        done = subprocess.run(command, capture_output=True, text=True, env=full, cwd="/", timeout=60)
        return Ended(done.returncode, sorted(done.stdout.splitlines()), done.stderr)

    return run


def assert_restarted(ended: Ended) -> None:
    assert ended.code == 0, ended.stderr
    assert [line.split(" of ")[0] for line in ended.ranks] == [f"rank {r} attempt {n}" for r in (0, 1) for n in (0, 1)]
    assert "1 of 1 restart used" in ended.stderr
    assert "RuntimeError: boom; restarting" in ended.stderr


def within(*steps: str) -> tuple[str, ...]:
    """A mount namespace of the command's own, prepared by `steps`."""
    return ("unshare", "--mount", "sh", "-c", "; ".join(["set -e", *steps, 'exec "$@"']), "sh")


SMALL_SHM = "mount -t tmpfs -o size=64m none /dev/shm"
HIDDEN = "mount -t proc -o hidepid=2 proc /proc"
PIDS_ALONE = "mount -t proc -o subset=pid proc /proc"
READS_NOT_ALL = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""A root that may not read what nobody may."""
NO_SYSCTL = "mount -t tmpfs none /proc/sys"


def test_without_privileges(trains, unprivileged):
    ended = trains(*unprivileged)
    assert_restarted(ended)
    assert all(not line.endswith(" of user 0") for line in ended.ranks)


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        ("ptrace,process_vm_readv", ""),
        ("pidfd_open", "no pidfd"),
        ("memfd_create", ""),
        ("inotify_init1", ""),
        ("ptrace,process_vm_readv,pidfd_open,memfd_create,inotify_init1", "no pidfd"),
    ],
)
def test_where_system_calls_are_refused_it_says_what_is_worse(trains, unprivileged, refused, says):
    if not works(*CONFINED, refused):
        pytest.skip("no seccomp filter can be set here")
    ended = trains(*unprivileged, *CONFINED, refused)
    assert_restarted(ended)
    assert says in ended.stderr
    assert ended.stderr.count(says or "RuntimeError: boom; restarting") == 1, "said once, whatever the number of workers"


@pytest.mark.root
@pytest.mark.parametrize(
    "steps",
    [(SMALL_SHM,), (HIDDEN,), (NO_SYSCTL,), (PIDS_ALONE,), (HIDDEN, SMALL_SHM, NO_SYSCTL)],
    ids=["64 MB of shm", "others' processes hidden", "no sysctl", "a proc of pids alone", "all of it"],
)
def test_in_what_a_container_leaves(trains, unprivileged, steps):
    view = within(*steps)
    if subprocess.run([*view, "true"], capture_output=True).returncode:
        pytest.skip("this root may not mount")
    assert_restarted(trains(*view, *unprivileged))


@pytest.mark.root
@pytest.mark.parametrize(
    ("view", "why"),
    [
        (within("mount -t tmpfs none /proc"), "it is not mounted"),
        ((*within("mount -t tmpfs -o mode=000 none /proc"), *READS_NOT_ALL), "it cannot be read: Permission denied"),
        (("unshare", "--pid", "--fork", "--kill-child"), "it shows the processes of another pid namespace"),
    ],
    ids=["not mounted", "unreadable", "of another pid namespace"],
)
def test_without_a_proc_of_ours_it_says_so_in_a_line_and_starts_nothing(trains, anyones, view, why):
    if subprocess.run([*view, sys.executable, "-c", ""], capture_output=True).returncode:
        pytest.skip("this root may make no such namespace, or no Python starts in it")
    ended = trains(*view)
    assert (ended.code, ended.ranks) == (1, [])
    assert f"holdfast run: cannot run jobs without /proc: {why}\n  hint: mount -t proc" in ended.stderr
    assert "Traceback" not in ended.stderr
    env = os.environ | {"HOLDFAST_STATE_DIR": str(anyones / "state")}
    doctor = subprocess.run([*view, sys.executable, "-m", "holdfast", "doctor"], capture_output=True, text=True, env=env)
    assert doctor.returncode == 1 and f"missing   /proc              {why}\n" in doctor.stdout, doctor
    assert doctor.stdout.endswith("jobs cannot run here: /proc missing\n") and not doctor.stderr, doctor


@pytest.mark.root
def test_as_pid_1_of_a_container(trains):
    box = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*box, "true"], capture_output=True).returncode:
        pytest.skip("no pid namespaces for this root")
    assert_restarted(trains(*box))


@pytest.mark.parametrize("home", [None, "/nonexistent/home", "read-only"])
def test_without_a_home_the_state_lies_in_the_temporary_folder(trains, anyones, unprivileged, home):
    if home == "read-only":
        folder = anyones / "home"
        folder.mkdir(mode=0o555)
        home = str(folder)
    unset = ("HOLDFAST_STATE_DIR", "HOLDFAST_SPARE_FOLDERS", "XDG_STATE_HOME", *(("HOME",) if home is None else ()))
    state = Path(f"/tmp/holdfast-{NOBODY if unprivileged else os.getuid()}")
    job = state / "jobs" / anyones.name
    try:
        assert_restarted(trains(*unprivileged, env={"HOME": home} if home else None, without=unset))
        assert (job / "report.json").exists()
        assert state.stat().st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(state if unprivileged else job, ignore_errors=True)  # our own may hold records of other jobs


def test_a_job_with_an_odd_environment(trains):
    odd = {f"HOLDFAST_TEST_{uuid.uuid4().hex}": "\udcff\n\t", "with space": "x", "RANK": "7", "WORLD_SIZE": "none"}
    assert_restarted(trains(env=odd))
