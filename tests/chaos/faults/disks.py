# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""Disks that are full, that hang, that are gone; files that somebody removes."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from chaos.fault import Outcome, fault
from chaos.job import Job
from chaos.node import Node

WHO = ("rank {rank} .*on {node}", "SIGKILL")


def _begin(job: Job, *options: object) -> None:
    job.start(options=options)
    job.trains(job.rng.randint(4, 25))


def _small_state(job: Job, *names: str, options: str = "size=2m,nr_inodes=4k") -> None:
    for name in names:
        job.tmpfs(job.nodes[name].state, options)


def _then_kill(job: Job, *nodes: str) -> None:
    job.kill_rank(job.any_rank(*nodes))
    job.again()


# --- full ---------------------------------------------------------------------------------------------------------------------


@fault(
    "state disk full",
    "the state directories of both nodes are full; then a rank is killed",
    needs="root",
    restarts=1,
    starts=False,
    smoke=True,
)
def state_full(job: Job) -> None:
    _small_state(job, "n0", "n1")
    _begin(job)
    for node in job.nodes.values():
        job.fill(node.state)
    _then_kill(job)


@fault(
    "state disk full at the start",
    "the state directory of n1 is full from the start; later a rank is killed",
    needs="root",
    restarts=1,
    starts=False,
)
def state_full_at_start(job: Job) -> None:
    _small_state(job, "n1")
    job.fill(job.nodes["n1"].state)
    _begin(job)
    _then_kill(job)


@fault(
    "state disk out of inodes",
    "the state directory of n1 may have no further file; then a rank is killed",
    needs="root",
    restarts=1,
    starts=False,
)
def no_inodes(job: Job) -> None:
    _small_state(job, "n1", options="size=4m,nr_inodes=200")
    _begin(job)
    folder = job.nodes["n1"].state / "full"
    folder.mkdir()
    try:
        for number in range(1000):
            (folder / str(number)).touch()
    except OSError:
        pass
    _then_kill(job)


def _log_dir(job: Job, name: str) -> list[object]:
    return ["--log-dir", job.base / f"logs-{name}", "--tee", 3]


def _start_with_logs(job: Job) -> None:
    for name in job.nodes:
        job.start(name, options=tuple(_log_dir(job, name)))
    job.trains(job.rng.randint(4, 25))


@fault(
    "log disk full",
    "--log-dir, with --tee 3, is full; then a rank is killed",
    needs="root",
    restarts=1,
    starts=False,
    smoke=True,
)
def log_full(job: Job) -> None:
    job.tmpfs(job.base / "logs-n1", "size=1m")
    _start_with_logs(job)
    job.fill(job.base / "logs-n1")
    _then_kill(job)


@fault(
    "log disk full, a rank writes",
    "--log-dir, with --tee 3, is full, and a rank fails of a line that it writes there; from then on its lines go elsewhere",
    needs="root",
    restarts=1,
    starts=False,
    cause=("No space left on device",),
)
def log_full_and_written(job: Job) -> None:
    job.tmpfs(job.base / "logs-n1", "size=1m")
    _start_with_logs(job)
    job.fill(job.base / "logs-n1")
    job.order("writes_on", 1, "thirty-one bytes make one line\n", rank=1)
    job.again()


@fault(
    "log disk out of inodes",
    "--log-dir, with --tee 3, may have no further file; then a rank is killed",
    needs="root",
    restarts=1,
    starts=False,
)
def log_no_inodes(job: Job) -> None:
    folder = job.tmpfs(job.base / "logs-n1", "size=4m,nr_inodes=64")
    _start_with_logs(job)
    try:
        for number in range(100):
            (folder / f"full{number}").touch()
    except OSError:
        pass
    _then_kill(job)


@fault("checkpoint disk full", "the disk that checkpoints go to is full: no restart can help", needs="root", outcome=Outcome.ENDS, starts=False,
       restarts=2, options=("--max-restarts", 2), cause=("No space left on device",))  # fmt: skip
def checkpoint_full(job: Job) -> None:
    folder = job.tmpfs(job.base / "checkpoints", "size=1m")
    for node in job.nodes.values():
        node.env["CHAOS_CHECKPOINTS"] = str(folder)
    _begin(job)
    job.strike()
    job.fill(folder)


@fault(
    "checkpoint disk full, then not",
    "the disk that checkpoints go to is full for 2 s",
    needs="root",
    starts=False,
    restarts=(1, 9),
)
def checkpoint_full_for_a_while(job: Job) -> None:
    folder = job.tmpfs(job.base / "checkpoints", "size=1m")
    for node in job.nodes.values():
        node.env["CHAOS_CHECKPOINTS"] = str(folder)
    job.start(options=("--backoff", 1))
    job.trains()
    job.strike()
    job.fill(folder)
    job.lasts(2)
    (folder / "fills").unlink()
    job.again()
    shutil.copy(folder / "checkpoint", job.folder / "checkpoint")
    job.afterwards(lambda: None)


def _shm(job: Job) -> None:
    for node in job.nodes.values():
        node.mounts.append("mount -t tmpfs -o size=1m chaos /dev/shm")


FILL_SHM = "import os\ntry:\n    with open('/dev/shm/fills', 'ab', buffering=0) as file:\n        while file.write(b'1' * 4096): pass\nexcept OSError: pass\n"


@fault(
    "shm full at start",
    "/dev/shm is 1 MB, and full from the start; later a rank is killed",
    needs="root",
    restarts=1,
    starts=False,
    script=FILL_SHM,
)
def shm_full(job: Job) -> None:
    _shm(job)
    _begin(job)
    _then_kill(job)


@fault("shm full", "/dev/shm is 1 MB, and full from now on; then a rank is killed", needs="root", restarts=1, starts=False)
def shm_full_later(job: Job) -> None:
    _shm(job)
    _begin(job)
    for node in job.nodes.values():
        job.fill(Path(f"/proc/{node.agent_pid()}/root/dev/shm"))
    job.kill_rank(job.any_rank())
    job.again()


@fault("shm full, DDP", "/dev/shm is 1 MB, and full from the start; a rank of PyTorch's is killed", needs="root", restarts=1, starts=False,
       script=FILL_SHM, ddp=True)  # fmt: skip
def shm_full_ddp(job: Job) -> None:
    _shm(job)
    _begin(job)
    _then_kill(job)


@fault("tmp full", "the folder for temporary files is full; then a rank is killed", needs="root", restarts=1, starts=False)
def tmp_full(job: Job) -> None:
    job.tmpfs(job.nodes["n1"].temporary, "size=1m")
    _begin(job)
    job.fill(job.nodes["n1"].temporary)
    job.kill_rank(job.any_rank())
    job.again()
    (job.nodes["n1"].temporary / "fills").unlink()


# --- it hangs -----------------------------------------------------------------------------------------------------------------


def _hangs(job: Job, path: object, seconds: float, node: str = "n1", *, kill: bool = True) -> None:
    job.strike()
    thaw = job.freeze(path, seconds)  # type: ignore[arg-type]
    job.lasts(1)
    if kill:
        job.kill_rank(job.any_rank())
    thaw.join()
    job.lasts(0.3)
    job.again() if kill else job.goes_on()


@fault("state disk hangs 5 s", "n1's disk hangs (fsfreeze) for writers; a second later a rank is killed", needs="freeze", restarts=1, starts=False,
       smoke=True)  # fmt: skip
def state_hangs(job: Job) -> None:
    job.disk(job.nodes["n1"].state)
    _begin(job)
    _hangs(job, job.nodes["n1"].state, 5)


@fault("state disk hangs 60 s, no failure", "n1's disk hangs (fsfreeze) for a minute, and nothing else happens", needs="freeze", starts=False,
       patience_s=90)  # fmt: skip
def state_hangs_long(job: Job) -> None:
    job.disk(job.nodes["n1"].state)
    _begin(job)
    _hangs(job, job.nodes["n1"].state, 60, kill=False)


@fault("state disk hangs 60 s", "n1's disk hangs (fsfreeze) for a minute; a second later a rank is killed", needs="freeze", restarts=1, starts=False,
       patience_s=90)  # fmt: skip
def state_hangs_long_kill(job: Job) -> None:
    job.disk(job.nodes["n1"].state)
    _begin(job)
    _hangs(job, job.nodes["n1"].state, 60)


@fault("coordinator's state disk hangs 8 s", "n0's disk hangs (fsfreeze) for writers; a second later a rank is killed", needs="freeze", restarts=1,
       starts=False)  # fmt: skip
def coordinator_state_hangs(job: Job) -> None:
    job.disk(job.nodes["n0"].state)
    _begin(job)
    _hangs(job, job.nodes["n0"].state, 8)


@fault(
    "log disk hangs 5 s",
    "n1's --log-dir, with --tee 3, hangs (fsfreeze); a second later a rank is killed",
    needs="freeze",
    restarts=1,
    starts=False,
)
def log_hangs(job: Job) -> None:
    job.disk(job.base / "logs-n1")
    _start_with_logs(job)
    _hangs(job, job.base / "logs-n1", 5)


@fault("state, logs elsewhere, disk hangs 8 s", "n1's disk with the state hangs (fsfreeze), and logs are elsewhere; a second later a rank is killed",
       needs="freeze", restarts=1, starts=False)  # fmt: skip
def state_hangs_logs_elsewhere(job: Job) -> None:
    job.disk(job.nodes["n1"].state)
    _start_with_logs(job)
    _hangs(job, job.nodes["n1"].state, 8)


@fault("state and log disk hang 5 s", "n1's state and --log-dir are on one disk, which hangs (fsfreeze); a second later a rank is killed", needs="freeze",
       restarts=1, starts=False)  # fmt: skip
def both_hang(job: Job) -> None:
    disk = job.disk(job.nodes["n1"].state)
    job.start("n0")
    job.start("n1", options=("--log-dir", disk / "logs", "--tee", 3))
    job.trains(job.rng.randint(4, 25))
    _hangs(job, disk, 5)


def _server_hangs(job: Job, seconds: float, *names: str) -> None:
    """State and logs of these nodes are on one mount, as on a file server that all use. A second later a rank is killed."""
    mount = job.mount("server")
    for name, node in job.nodes.items():
        logs = ("--log-dir", mount.path / f"logs-{name}", "--tee", 3)
        if name in names:
            node.env["HOLDFAST_STATE_DIR"] = str(mount.path / name)
        job.start(name, options=logs if name in names else ())
    job.trains(job.rng.randint(4, 25))
    if not job.fault.restarts[0]:
        job.strike()
    mount.hang()
    job.lasts(1)
    if job.fault.restarts[0]:
        job.kill_rank(job.rank(1))  # rank 0 writes its lines, and SIGKILL does not reach it
        job.again()
    elif "CHAOS_QUIET" in job.setup.env:
        job.goes_on()
    job.lasts(seconds - 1)
    mount.go()
    job.lasts(0.3)
    job.goes_on()


SERVER = {"needs": "fuse", "starts": False, "patience_s": 90}
LATE = {"restarts": 1, "within_s": 1.3, **SERVER}
"""A restart takes no more than a second longer than without."""


@fault("file server hangs 60 s, no failure", "all nodes' state and --log-dir are on one mount, which answers nobody for a minute (FUSE: readers hang "
       "too); a rank that writes a line waits for it", within_s=62, **SERVER)  # fmt: skip
def server_hangs(job: Job) -> None:
    _server_hangs(job, 60, *job.nodes)


@fault("file server hangs 60 s, quiet ranks", "the same, and no rank writes a line", env={"CHAOS_QUIET": "1"}, within_s=1.3, **SERVER)
def server_hangs_quiet(job: Job) -> None:
    _server_hangs(job, 60, *job.nodes)


@fault("file server hangs 60 s, kill", "the same; a second later a rank is killed, while others wait to write a line", **LATE)
def server_hangs_kill(job: Job) -> None:
    _server_hangs(job, 60, *job.nodes)


@fault("file server of one node hangs 60 s", "only n1's state and --log-dir are on it; a second later a rank is killed", **LATE)
def server_of_one_hangs(job: Job) -> None:
    _server_hangs(job, 60, "n1")


@fault("file server of the coordinator hangs 60 s", "only n0's are on it; a second later a rank is killed", **LATE)
def server_of_the_coordinator_hangs(job: Job) -> None:
    _server_hangs(job, 60, "n0")


@fault("checkpoint disk hangs 5 s", "the disk that checkpoints go to hangs (fsfreeze) for 5 s", needs="freeze", starts=False)
def checkpoints_hang(job: Job) -> None:
    folder = job.disk(job.base / "checkpoints")
    for node in job.nodes.values():
        node.env["CHAOS_CHECKPOINTS"] = str(folder)
    _begin(job)
    _hangs(job, folder, 5, kill=False)
    shutil.copy(folder / "checkpoint", job.folder / "checkpoint")


@fault("checkpoint disk hangs 5 s, kill", "the disk that checkpoints go to hangs (fsfreeze) for 5 s; a second later its rank, which waits for it, is killed",
       needs="freeze", starts=False, restarts=1)  # fmt: skip
def checkpoints_hang_kill(job: Job) -> None:
    folder = job.disk(job.base / "checkpoints")
    for node in job.nodes.values():
        node.env["CHAOS_CHECKPOINTS"] = str(folder)
    _begin(job)
    job.strike()
    thaw = job.freeze(folder, 5)
    job.lasts(1)
    job.kill_rank(job.rank(0))
    thaw.join()
    job.again()
    shutil.copy(folder / "checkpoint", job.folder / "checkpoint")


# --- gone, or not to be written -----------------------------------------------------------------------------------------------------


@fault(
    "state directory read-only",
    "n1's state directory is mounted read-only from now on; then a rank is killed",
    needs="root",
    restarts=1,
    starts=False,
)
def read_only(job: Job) -> None:
    _small_state(job, "n1", options="size=8m")
    _begin(job)
    os.system(f"mount -o remount,ro '{job.nodes['n1'].state}' 2>/dev/null || mount -f -o remount,ro '{job.nodes['n1'].state}'")
    _then_kill(job)


@fault("state directory read-only at start", "n1's state directory is read-only from the start; later a rank is killed", needs="root", restarts=1,
       starts=False)  # fmt: skip
def read_only_at_start(job: Job) -> None:
    _small_state(job, "n1", options="size=8m,ro")
    _begin(job)
    _then_kill(job)


def _deleted(job: Job, node: Node) -> None:
    shutil.rmtree(node.state, ignore_errors=True)


@fault("state deleted", "n1's state directory is removed; then a rank is killed", restarts=1, smoke=True)
def state_deleted(job: Job) -> None:
    _deleted(job, job.nodes["n1"])
    _then_kill(job)


@fault("state of all deleted", "all state directories are removed; then a rank is killed", restarts=1)
def all_state_deleted(job: Job) -> None:
    for node in job.nodes.values():
        _deleted(job, node)
    _then_kill(job)


@fault("state is a file", "n1's state directory is removed, and a file is in its place; then a rank is killed", restarts=1)
def state_is_a_file(job: Job) -> None:
    _deleted(job, job.nodes["n1"])
    job.nodes["n1"].state.write_text("in its place")
    _then_kill(job)


@fault("logs deleted", "--log-dir, with --tee 3, is removed; then a rank is killed", restarts=1, starts=False)
def logs_deleted(job: Job) -> None:
    _start_with_logs(job)
    shutil.rmtree(job.base / "logs-n1")
    _then_kill(job)


def _logs(job: Job) -> list[str]:
    return [str(path) for path in (job.base / "logs-n1").rglob("std*.log")]


@fault(
    "log file truncated",
    "logrotate's copytruncate: the logs are cut to nothing while ranks write; then a rank is killed",
    restarts=1,
    starts=False,
)
def logs_truncated(job: Job) -> None:
    _start_with_logs(job)
    for path in _logs(job):
        os.truncate(path, 0)
    job.goes_on(steps=12)
    _then_kill(job)


@fault(
    "log file moved", "logrotate: the logs get another name while ranks write; then a rank is killed", restarts=1, starts=False
)
def logs_moved(job: Job) -> None:
    _start_with_logs(job)
    for path in _logs(job):
        os.rename(path, f"{path}.1")
    job.goes_on(steps=12)
    _then_kill(job)


@fault(
    "working directory deleted",
    "the folder that n1's launcher was started in is removed; then a rank is killed",
    restarts=1,
    starts=False,
)
def no_cwd(job: Job) -> None:
    folder = job.base / "cwd"
    folder.mkdir()
    job.start("n0")
    job.start("n1", cwd=folder)
    job.trains(job.rng.randint(4, 25))
    shutil.rmtree(folder)
    _then_kill(job)


@fault("temporary files deleted", "a cleaner empties the folder for temporary files; then a rank is killed", restarts=1)
def tmp_cleaned(job: Job) -> None:
    for node in job.nodes.values():
        for path in node.temporary.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    _then_kill(job)


@fault(
    "no home",
    "HOME names a folder that is not there, and no state directory is given; a rank is killed",
    restarts=1,
    starts=False,
)
def no_home(job: Job) -> None:
    for name, node in job.nodes.items():
        node.env |= {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent/cache"}
        node.start(job.words(name), {})
    job.trains()
    _then_kill(job)


@fault("record cut off", "an agent's record of events is cut to nothing; then a rank is killed", restarts=1)
def record_cut(job: Job) -> None:
    for path in job.nodes["n1"].state.rglob("events-*.jsonl"):
        os.truncate(path, 0)
    _then_kill(job)


@fault(
    "state not ours to write",
    "n1's state directory loses its permissions and its folders are immutable to its user; then a rank is killed",
    restarts=1,
)
def no_permissions(job: Job) -> None:
    for path in (job.nodes["n1"].state, *job.nodes["n1"].state.rglob("*/")):
        path.chmod(0)
    _then_kill(job)
    for path in (job.nodes["n1"].state, *job.nodes["n1"].state.rglob("*/")):
        path.chmod(stat.S_IRWXU)


@fault(
    "script deleted",
    "the script is removed while it trains, and comes back 2 s after a rank is killed",
    restarts=(1, 9),
    script="#\n",
    options=("--backoff", 2),
)
def script_deleted(job: Job) -> None:
    text = job.script.read_text()
    job.script.unlink()
    job.kill_rank(job.any_rank())
    job.lasts(2)
    job.script.write_text(text)
    job.again()


@fault("checkpoint torn", "the newest checkpoint is cut in half by a crash of the storage, the ranks fail on it, and an older one is put there",
       restarts=(2, 9))  # fmt: skip
def checkpoint_torn(job: Job) -> None:
    path = job.folder / "checkpoint"
    kept = path.read_text()
    job.kill_rank(job.any_rank())
    path.write_text(kept[: len(kept) // 2])
    job.lasts(1)
    path.write_text(kept)
    job.again()
