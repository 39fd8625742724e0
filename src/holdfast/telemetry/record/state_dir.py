"""Where does a job's record lie, and to which agent does it belong? Nothing here says what is in it (`recorder`, `reader`).

    <home>/jobs/<job>/events-<node>.jsonl   what happened, as that node saw it; locked while its agent lives
                      agent-<node>.sock     the way to ask that agent
                      endpoints · started-by · report.json · incidents/ · logs/

One directory is one *run* of a job. An agent that comes while another one runs in a run of its id, and meets the others
where that one does, shares that directory: it is another node of the same job (several agents on one host, or a home on
NFS), or a replacement. An agent that finds only the dead or another job's, or whose job has no other node, opens the next
run: `train`, then `train~2`, `train~3`. `~` is never part of a job's name, so the two cannot be mistaken.

One that has missed a run comes to it, too: all its agents were started together (`started_by`), none of this node's was in it,
and it is over. `train` in a second run by the same srun is the next run wherever the first has been.

An agent holds an open-file-description lock on its events file for as long as it lives. The kernel drops it however
the agent ends, so "is it running?" needs neither a pid file nor an answer from the agent.

This module is on the way to the first worker: it imports next to nothing.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Mapping

from holdfast.core.errors import StartError, UsageError
from holdfast.runtime.private_files import is_private, make_folder, private
from holdfast.telemetry.record import locks

LOCK_PATIENCE_S = 1.0  # How long to wait for another agent that is opening its directory (microseconds of work).
RECENT = 8  # Runs of a name of which it is looked at the start of another one whether they still run.
OPEN_TO_ALL = ("/tmp", "/dev/shm")  # Where there is always room for a home, and where anybody may make one.
NAME_LIMIT = 80  # Longest safe name. File systems allow 255 bytes, but a socket's whole address only 107.

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


# ---- names ---------------------------------------------------------------------------------------------------------


def safe_name(text: str, limit: int = NAME_LIMIT) -> str:
    """`text` as one path component: unchanged where that is safe, else cleaned and marked with a hash of the original."""
    if text and len(text) <= limit and text[0] not in ".-" and all(char in _PLAIN for char in text):
        return text
    clean = "".join(char if char in _PLAIN else "-" for char in text).strip(".-")
    return f"{clean[: limit - 13].rstrip('.-') or 'job'}-{_fnv1a(text):012x}"


def _fnv1a(text: str) -> int:
    """48 bits that tell names apart. hashlib would cost 2 ms to import."""
    state = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "surrogateescape"):
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return (state ^ (state >> 48)) & 0xFFFFFFFFFFFF


def job_name(run_id: str, endpoint: str = "") -> str:
    """The directory's name for a run id. `none`, torchrun's default, is no id: the endpoint then tells jobs apart."""
    if run_id in ("", "none"):
        return safe_name(f"none-{endpoint}" if endpoint else "none")
    return safe_name(run_id)


def split_run(name: str) -> tuple[str, int]:
    """A directory's name as (job, run): `train~3` → ("train", 3); `train` → ("train", 1)."""
    job, tilde, number = name.partition("~")
    return (job, int(number)) if tilde and number.isdigit() else (name, 1)


# ---- the home ------------------------------------------------------------------------------------------------------


def state_home(environ: Mapping[str, str]) -> str:
    """Where jobs are kept: `$HOLDFAST_STATE_DIR`, else `$XDG_STATE_HOME/holdfast`, else `~/.local/state/holdfast`,
    else (no home, or none that we can write to) the first of `spare_homes`. Creates nothing."""
    if given := environ.get("HOLDFAST_STATE_DIR"):
        return os.path.abspath(given)
    if (base := environ.get("XDG_STATE_HOME")) and os.path.isabs(base):
        wanted = os.path.join(base, "holdfast")
    elif (base := environ.get("HOME")) and os.path.isabs(base) and os.path.isdir(base):
        wanted = os.path.join(base, ".local", "state", "holdfast")
    else:  # not from the user database: asking it can mean asking a network
        return spare_homes()[0]
    there = wanted
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    is_ours = os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)
    return wanted if is_ours else spare_homes()[0]


def spare_homes() -> tuple[str, ...]:
    """Where to go when the home cannot be written to, best first: in the folders of `$HOLDFAST_SPARE_FOLDERS`, else of
    `OPEN_TO_ALL`. A name that somebody else has taken is left to them."""
    given = [folder for folder in os.environ.get("HOLDFAST_SPARE_FOLDERS", "").split(":") if os.path.isabs(folder)]
    return tuple(_own_name(folder, f"holdfast-{os.geteuid()}") for folder in given or OPEN_TO_ALL)


def _own_name(folder: str, name: str) -> str:
    plain = os.path.join(folder, name)
    if is_private(plain) or not os.path.lexists(plain):
        return plain
    try:
        others = sorted(entry for entry in os.listdir(folder) if entry.startswith(f"{name}."))
    except OSError:
        others = []
    own = [path for path in (os.path.join(folder, entry) for entry in others) if is_private(path)]
    return own[0] if own else f"{plain}.{os.urandom(6).hex()}"


def homes(environ: Mapping[str, str]) -> list[str]:
    """Every home that may hold jobs of this user: where they belong, then where they go when that fails."""
    found = [state_home(environ)]
    return found + [path for path in spare_homes() if path not in found and is_private(path)]


def make_home(home: str) -> str:
    """Make `home` and its `jobs` (mode 0700) and return the latter. UsageError: others may have put it there."""
    make_folder(home)
    if is_in_the_open := bool(os.stat(os.path.dirname(home)).st_mode & stat.S_IWOTH):
        _refuse_a_strangers(home)
    is_open = is_in_the_open or bool(os.stat(home).st_mode & 0o022)
    if is_in_the_open:
        _close_to_others(home)
    jobs = os.path.join(home, "jobs")
    make_folder(jobs)
    if is_open:
        _refuse_a_strangers(jobs)
    if os.stat(jobs).st_mode & 0o022 and os.listdir(jobs):
        raise UsageError(
            f"cannot keep this job's record in {jobs}: others may write to it, and what is in it may be theirs",
            hint="remove it, or set HOLDFAST_STATE_DIR to a directory of your own",
        )
    _close_to_others(jobs)
    return jobs


def daemon_socket(home: str) -> str:
    """Where this host's daemon can be asked, if one runs that keeps its table in `home`."""
    return os.path.join(home, "daemon.sock")


def _refuse_a_strangers(path: str) -> None:
    """Where everybody may create (like /tmp), a directory waiting under our name may be a trap."""
    seen = os.lstat(path)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid():
        what = "is not a directory" if not stat.S_ISDIR(seen.st_mode) else f"belongs to uid {seen.st_uid}"
        raise UsageError(
            f"cannot keep this job's record in {path}: it {what}, and anybody could have put it there",
            hint="set HOLDFAST_STATE_DIR to a directory of your own, or have that one removed",
        )


def _close_to_others(path: str) -> None:
    seen = os.stat(path)
    if stat.S_IMODE(seen.st_mode) & 0o077 and seen.st_uid == os.geteuid():
        os.chmod(path, 0o700)


# ---- one job's directory -------------------------------------------------------------------------------------------


class JobDir:
    """One run's directory, and the place in it that one agent has claimed (`node`) until `close`."""

    __slots__ = ("_claim", "beside", "degraded", "joins", "name", "node", "path")

    def __init__(
        self, path: str, node: str, claim: int, degraded: str = "", *, joins: bool = False, beside: str = ""
    ) -> None:
        self.path = path
        self.name = os.path.basename(path)
        self.node = node
        """Name of this node in file names: as wished for, or with `-2`, `-3` … where another living agent has that."""
        self.degraded = degraded  # One line for the user when the record could not go where it belongs; else empty.
        self.beside = beside  # One line for the user where another run of the same name runs on this host; else empty.
        self.joins = joins
        """Agents that were started with this one have begun this run, and none of this node's was in it: if it is over, so is
        this agent's part."""
        self._claim = claim

    @property
    def events_path(self) -> str:
        return os.path.join(self.path, f"events-{self.node}.jsonl")

    @property
    def socket_path(self) -> str:
        return os.path.join(self.path, f"agent-{self.node}.sock")

    @property
    def report_path(self) -> str:
        return os.path.join(self.path, "report.json")

    def incident_path(self, round: int) -> str:
        """Where this node keeps what it knows of that round's failure."""
        return os.path.join(incident_dir(self.path, round), self.node)

    def close(self) -> None:
        """Give the claim up: from now on this agent counts as gone."""
        if self._claim >= 0:
            os.close(self._claim)
            self._claim = -1


def incident_dir(path: str, round: int) -> str:
    """Where all nodes that share the run's directory `path` keep what they know of that round's failure."""
    return os.path.join(path, "incidents", f"round-{round}")


def open_job(
    home: str, run_id: str, node: str, *, endpoint: str = "", listens: str = "", alone: bool = False, started_by: str = ""
) -> JobDir:
    """Claim a place for `node` in the run of `run_id` that is going on at `endpoint`, or else open its next run.

    `listens`: where others may find the job too, should this node lead it. `alone`: always the next run, since no other agent
    can belong to this job. `started_by`: a name for what has started the job's agents, and nothing else. Where `home` cannot be
    written to, a spare one is taken and `degraded` says so. UsageError: the home is a stranger's. StartError: nothing can be
    written anywhere.
    """
    name, failed = job_name(run_id, endpoint), ""
    for candidate in (home, *spare_homes()):
        try:
            comes = _Comer(safe_name(node, 64), alone, (endpoint, listens), started_by)
            path, joins, beside, (claimed, claim) = _open_in(make_home(candidate), name, comes)
        except UsageError:
            if candidate == home:
                raise
            continue  # somebody has just taken its name
        except OSError as error:
            failed = failed or f"cannot write to {home} ({error.strerror or error})"
            continue
        degraded = f"{failed}: this job's record and logs are in {path}" if failed else ""
        return JobDir(path, claimed, claim, degraded, joins=joins, beside=beside)
    raise StartError(f"{failed}, nor to {' or '.join(spare_homes())}", hint="set HOLDFAST_STATE_DIR to a writable directory")


class _Comer:
    """Who opens a job; see `open_job`."""

    def __init__(self, node: str, alone: bool, endpoints: tuple[str, ...], started_by: str) -> None:
        self.node, self.alone, self.endpoints, self.started_by = node, alone, endpoints, started_by

    def is_new_to(self, path: str) -> bool:
        """See `JobDir.joins`."""
        if not self.started_by or self.started_by not in _noted(path, "started-by") or not _is_at(path, self.endpoints[0]):
            return False
        return not os.path.exists(os.path.join(path, f"events-{self.node}.jsonl"))


def _open_in(
    jobs: str, name: str, comes: _Comer, clock: Callable[[], float] = time.monotonic
) -> tuple[str, bool, str, tuple[str, int]]:
    guard = os.open(os.path.join(jobs, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Without it, the second of two agents that start together would find a directory and nobody in it yet.
        until = clock() + LOCK_PATIENCE_S
        while not locks.take(guard) and clock() < until:
            os.sched_yield()
        path = _run_to_use(jobs, name, comes)
        joins = comes.is_new_to(path)
        if not os.path.isdir(path):
            make_folder(path)
            _note(path, "started-by", (comes.started_by,))
        _note(path, "endpoints", comes.endpoints)  # by which another job of its id is told from it
        return path, joins, _said_of_others(jobs, name, path), _claim_node(path, comes.node)
    finally:
        os.close(guard)


def _run_to_use(jobs: str, name: str, comes: _Comer) -> str:
    runs = _runs(jobs, name)
    if not runs:
        return os.path.join(jobs, name)
    newest, path = runs[0]
    if not comes.alone:
        for _, running in runs:
            if _is_at(running, comes.endpoints[0]) and is_running(running):
                return running
        if comes.is_new_to(path) and os.path.exists(os.path.join(path, "report.json")):
            return path
    if not is_running(path):
        remove_dead_sockets(path)
    return os.path.join(jobs, f"{name}~{newest + 1}")


def _said_of_others(jobs: str, name: str, path: str) -> str:
    """What a person should know of other runs of that name than the one at `path`. Empty: none runs here."""
    recent = _runs(jobs, name)[:RECENT]
    others = [f"{name}~{number}" for number, other in recent if other != path and is_running(other)]
    if not others:
        return ""
    own = "~".join(map(str, split_run(os.path.basename(path))))
    return f"{', '.join(others)} still runs on this host, and this is {own}: see that they do not write to the same checkpoints"


def _runs(jobs: str, name: str) -> list[tuple[int, str]]:
    """(number, path) of each run of that name, the newest first."""
    found = [(*split_run(entry), os.path.join(jobs, entry)) for entry in os.listdir(jobs)]
    return sorted(((number, path) for job, number, path in found if job == name), reverse=True)


def _note(path: str, where: str, lines: tuple[str, ...]) -> None:
    """Add what is not there yet to a file of this run, for agents that come later."""
    known = _noted(path, where)
    fresh = [line for line in dict.fromkeys(lines) if line and line not in known]
    if not fresh:
        return
    try:
        with open(os.path.join(path, where), "a", encoding="utf-8", opener=private) as file:
            file.write("".join(f"{line}\n" for line in fresh))
    except OSError:
        pass  # a full disk: any agent that comes with this id is then taken for one of this run


def _noted(path: str, where: str) -> list[str]:
    return _content(os.path.join(path, where)).decode("utf-8", "replace").splitlines()


def _is_at(path: str, endpoint: str) -> bool:
    """Whether the nodes of this run meet there, as far as names can tell: nobody is asked what they resolve to."""
    known = _noted(path, "endpoints")
    return not endpoint or not known or any(_may_be_one(endpoint, one) for one in known)


def _may_be_one(one: str, other: str) -> bool:
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    if port != other_port:
        return False
    loops = ("localhost", "127.", "[::1]")
    return host.startswith(loops) or other_host.startswith(loops) or host.partition(".")[0] == other_host.partition(".")[0]


def _claim_node(path: str, node: str) -> tuple[str, int]:
    for number in range(1, 10_000):
        wish = node if number == 1 else f"{node}-{number}"
        claim = os.open(os.path.join(path, f"events-{wish}.jsonl"), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if locks.take(claim):
            return wish, claim
        os.close(claim)
    raise AssertionError(f"no free name for {node} in {path}")


def running_nodes(path: str) -> list[str]:
    """Nodes whose agents live, sorted. Other hosts' too, where the file system passes locks on (NFS 4 does)."""
    found = []
    for node, file in events_files(path):
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if locks.is_taken(fd):
                found.append(node)
        finally:
            os.close(fd)
    return found


def remove_dead_sockets(path: str) -> None:
    """Remove the sockets that killed agents have left in this run's directory: nobody will ever answer there."""
    alive = {f"agent-{node}.sock" for node in running_nodes(path)}
    for name in os.listdir(path):
        if name.startswith("agent-") and name.endswith(".sock") and name not in alive:
            try:  # noqa: SIM105 (contextlib costs a millisecond on the way to the first worker)
                os.unlink(os.path.join(path, name))
            except OSError:
                pass  # somebody else was quicker, or it is not ours


def is_running(path: str) -> bool:
    """Whether any agent of this run lives."""
    return bool(running_nodes(path))


def unfinished_round(home: str, run_id: str, *, endpoint: str = "") -> int:
    """The last round of the job's newest run that an agent on this host was in which has not seen the run's end; 0: none.

    That agent may live: the job goes on elsewhere, then. And it may be dead though its record is locked: an agent of its name
    that has come to the run since goes on with the same file.
    """
    return max((_unfinished_in(events) for _, events in events_files(_newest(home, run_id, endpoint))), default=0)


def last_to_go(home: str, run_id: str, *, endpoint: str = "") -> list[int]:
    """Where the job's newest run is over: pids of its agents that are still here. One that hosts is, until all others know."""
    newest = _newest(home, run_id, endpoint)
    alive = running_nodes(newest) if newest else []
    left = [_content(events) for node, events in events_files(newest) if node in alive]
    started = [re.search(rb'"event": ?"AgentStarted".*?"pid": ?(\d+)', said) for said in left]
    is_over = all(b'"JobEnded"' in said.rstrip().rpartition(b"\n")[2] for said in left)
    return [int(found[1]) for found in started if found] if is_over else []


def last_runs(home: str, run_id: str, *, endpoint: str = "") -> list[str]:
    """The directories of the job's runs, the newest first."""
    try:
        runs = _runs(os.path.join(home, "jobs"), job_name(run_id, endpoint))
    except OSError:
        return []
    return [path for _, path in runs if _is_at(path, endpoint)]


def _newest(home: str, run_id: str, endpoint: str) -> str:
    return next(iter(last_runs(home, run_id, endpoint=endpoint)), "")


def _unfinished_in(events: str) -> int:
    since_an_end = _content(events).rpartition(b'"JobEnded"')[2]
    formed = re.findall(rb'"round": ?(\d+).*"event": ?"RoundFormed"', since_an_end)
    return int(formed[-1]) if formed else 0


def _content(path: str) -> bytes:
    """Empty where nothing can be read."""
    if not os.path.isfile(path):
        return b""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def events_files(path: str) -> list[tuple[str, str]]:
    """(node, path) of each node's events file, by node."""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return []
    own = [name for name in names if name.startswith("events-") and name.endswith(".jsonl")]
    return [(name[len("events-") : -len(".jsonl")], os.path.join(path, name)) for name in own]


# ---- looking back ---------------------------------------------------------------------------------------------------


def job_dirs(home: str) -> list[str]:
    """Every run's directory, the one with the newest record first."""
    jobs = os.path.join(home, "jobs")
    try:
        entries = [entry.path for entry in os.scandir(jobs) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(entries, key=lambda path: (-touched_at(path), path))


def touched_at(path: str) -> float:
    """When any node last recorded something here (seconds since the epoch); the directory's own time if none did."""
    times = []
    for file in [file for _, file in events_files(path)] or [path]:
        try:
            times.append(os.stat(file).st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
