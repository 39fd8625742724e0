"""The log of what changed since a client's version: a version that only rises, and the newest of each thing.

A reader that knows version 7 is told what is newer, in time proportional to that. A later life of the supervisor begins above
all versions of the lives before it: a version of those is no knowledge.
"""

from __future__ import annotations

LIFE = 1 << 32
"""Versions of one life of the supervisor: seven weeks of a thousand changes a second. A browser counts exactly up to 2**53: two
million lives."""

MOST = 1 << 17
"""Things whose versions are known. Who has an older version than the first that is not known any more is told everything."""


class ChangeLog:
    """Of the things in some tables, each by its key."""

    def __init__(self, generation: int = 0) -> None:
        self._base = generation * LIFE
        self.version = self._base + 1
        """As of now. The first is that of all that was there before."""
        self._newest: dict[tuple[str, str], int] = {}
        """What changed last stands last."""

    def reach(self, version: int) -> None:
        """What is marked from now on has that version, which is at least as new as the last."""
        self.version = version

    def mark(self, table: str, key: str, version: int | None = None) -> None:
        """This has changed, is new or is gone; `version` None: as of the next one."""
        self.reach(self.version + 1 if version is None else version)
        self._newest.pop((table, key), None)
        self._newest[table, key] = self.version
        if len(self._newest) > MOST:
            self._base = max(self._base, self._newest.pop(next(iter(self._newest))))

    def forget(self, table: str, key: str) -> None:
        """It will never be asked for again."""
        self._newest.pop((table, key), None)

    def knows(self, version: int) -> bool:
        """Whether `since(version)` is complete."""
        return self._base < version <= self.version

    def since(self, version: int) -> dict[str, list[str]]:
        """Table → keys that have changed after that version, what changed last first."""
        found: dict[str, list[str]] = {}
        for (table, key), newest in reversed(self._newest.items()):
            if newest <= version:
                break
            found.setdefault(table, []).append(key)
        return found
