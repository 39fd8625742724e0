"""What does the supervisor remember when it is killed? A table of values for each kind of thing, in SQLite, etcd or Kubernetes.

One `keep` is stored whole or not at all, and is on disk when it returns: later actions rely on it. A store also decides who may
act: of several supervisors over one store only the leader.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeVar

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.machine import NEVER
from holdfast.core.value import Value, to_plain
from holdfast.core.wire.fleet import Deed, Hour, JobKept, NodeKept, Swap
from holdfast.runtime.net.codec import build
from holdfast.runtime.private_files import make_folder, private
from holdfast.supervisor.fleet.messages import Keep
from holdfast.supervisor.fleet.state import Kept
from holdfast.telemetry.record import locks

T = TypeVar("T")


class Store(Protocol):
    def seek(self) -> str:
        """Try to lead, for some seconds at most. Empty: we lead; else why not, in words. HoldfastError: we never can."""

    def left_s(self) -> float:
        """Seconds from now in which nobody else can lead; 0 or less: somebody else may. Returns at once."""

    def load(self) -> tuple[int, Kept]:
        """The number of this life, and what earlier lives have stored. HoldfastError: it cannot be read."""

    def keep(self, changes: Sequence[Keep]) -> None:
        """Store these, all or none. HoldfastError: it failed. LeadLost: somebody else may lead by now."""

    def close(self) -> None:
        """Let go of it, and of the lead."""


def portions(items: Iterable[T], size: Callable[[T], int], most_bytes: int, most: int = sys.maxsize) -> Iterator[list[T]]:
    """These in lists of so many bytes and items at most; what is longer by itself has a list of its own."""
    portion: list[T] = []
    total = 0
    for item in items:
        if portion and (len(portion) == most or total + size(item) > most_bytes):
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += size(item)
    if portion:
        yield portion


class LeadLost(HoldfastError):
    """Another supervisor may act for the fleet: this one must not, until it leads anew."""


TABLES: dict[str, type[Value]] = {"nodes": NodeKept, "jobs": JobKept, "swaps": Swap, "deeds": Deed, "hours": Hour}

FILE = "fleet.sqlite"

RECEIVERS = "webhooks"
"""The file with the URLs of who is told."""

OWN_NAMES = {"lock", "told", "local", RECEIVERS, FILE, f"{FILE}-wal", f"{FILE}-shm", "supervisor.sock"}
"""What may be in a state directory of ours."""

STATE_HINT = "name a folder that this user may write to"

DISK_HINT = "is its disk full, or broken?"

BUSY_S = 5.0
"""How long to wait for another process that reads the file."""

KNOWN = {"etcd": "holdfast.integrations.etcd.fleet_store", "kubernetes": "holdfast.integrations.kubernetes.fleet_store"}
"""Modules with `open_store`, which need other software."""


def open_store(where: str, folder: str, name: str) -> Store:
    """The store at `where`: a URL, or empty for a file in `folder`. `name`: of this supervisor, for people. UsageError."""
    check_store(where)
    if not where:
        return SqliteStore(folder)
    scheme, _, rest = where.partition("://")
    claim(folder)  # for as long as this process lives: its socket is there
    opened: Store = import_module(KNOWN[scheme]).open_store(rest, name)
    return opened


def check_store(where: str) -> None:
    """UsageError: there is no store of that kind."""
    scheme, _, rest = where.partition("://")
    if where and (scheme not in KNOWN or not rest):
        raise UsageError(
            f"--store: {where!r} is no store",
            hint="leave it out for a file under --state; or etcd://HOST:PORT[,…]/PREFIX, kubernetes://NAME",
        )


def claim(folder: str) -> int:
    """Make the state directory, keep others out of it, and hold it while the returned descriptor is open. UsageError: another
    supervisor holds it, or others may have put things there."""
    try:
        make_folder(folder)
        seen = os.stat(folder)  # a volume of Kubernetes is root's, and writable for a group
        if seen.st_uid not in (0, os.geteuid()) or seen.st_mode & stat.S_IWOTH:
            hint = f"give a directory of this user's own, or: chmod 700 {folder}"
            raise UsageError(f"--state: {folder} belongs to another user, or others may write to it", hint=hint)
        lock = private(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT)
        if seen.st_uid == os.geteuid() and set(os.listdir(folder)) <= OWN_NAMES:
            os.chmod(folder, 0o700)  # not where somebody keeps other things too
    except OSError as error:
        raise UsageError(f"--state: {folder} cannot be used: {error.strerror}", hint=STATE_HINT) from error
    if not locks.take(lock):
        os.close(lock)
        raise UsageError(f"--state: another supervisor runs on {folder}", hint="give each one a directory of its own")
    return lock


class SqliteStore:
    """One file, in WAL mode: a kill at any moment leaves what was committed, and with synchronous=FULL a power cut does too."""

    def __init__(self, folder: str) -> None:
        """UsageError: it cannot be used, or another supervisor does."""
        self._lock = claim(folder)
        try:
            for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):  # SQLite makes new ones like the first
                if name == FILE or os.path.exists(os.path.join(folder, name)):
                    os.close(private(os.path.join(folder, name), os.O_RDWR | os.O_CREAT))
            self._base = sqlite3.connect(os.path.join(folder, FILE), timeout=BUSY_S, isolation_level=None)
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=FULL")
            for table in (*TABLES, "meta"):
                self._base.execute(f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"--state: {folder}/{FILE} cannot be used: {error}") from error

    def seek(self) -> str:
        return ""  # the holder of the folder leads

    def left_s(self) -> float:
        return NEVER

    def load(self) -> tuple[int, Kept]:
        try:
            found: dict[str, Any] = {
                table: tuple(build(kind, json.loads(text)) for (text,) in self._base.execute(f"SELECT value FROM {table}"))
                for table, kind in TABLES.items()
            }
            last = self._base.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
            generation = int(last[0]) + 1 if last else 1
            self._base.execute("INSERT OR REPLACE INTO meta VALUES ('generation', ?)", (str(generation),))
        except sqlite3.Error as error:
            raise HoldfastError(f"the fleet's state cannot be taken over: {error}", hint=DISK_HINT) from error
        return generation, Kept(**found)

    def keep(self, changes: Sequence[Keep]) -> None:
        try:
            self._base.execute("BEGIN IMMEDIATE")
            for change in changes:
                assert change.table in TABLES, f"there is no table {change.table}"
                if change.value is None:
                    self._base.execute(f"DELETE FROM {change.table} WHERE key = ?", (change.key,))
                else:
                    row = change.key, json.dumps(to_plain(change.value))
                    self._base.execute(f"INSERT OR REPLACE INTO {change.table} VALUES (?, ?)", row)
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            raise HoldfastError(f"the fleet's state cannot be written: {error}", hint=DISK_HINT) from error

    def close(self) -> None:
        self._base.close()
        os.close(self._lock)
