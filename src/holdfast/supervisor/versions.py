"""What has changed since somebody looked last? A version that only rises, and what each thing's newest is.

Who knows version 7 is told what has a newer one, in time that goes by how much that is. Numbers of a later life of the
supervisor begin above all those of the lives before it: whoever knows an older one knows nothing.
"""

from __future__ import annotations

LIFE = 1 << 32
"""Versions of one life of the supervisor: a thousand changes a second for seven weeks would be 2**32, and then comes the next
generation's. A browser counts exactly up to 2**53: two million lives."""


class Changes:
    """Of the things in some tables, each by its key."""

    def __init__(self, generation: int = 0) -> None:
        self._base = generation * LIFE
        self.version = self._base + 1
        """As of now. The first is that of all that was there before."""
        self._newest: dict[tuple[str, str], int] = {}
        """What changed last stands last."""

    def mark(self, table: str, key: str, version: int | None = None) -> None:
        """This has changed, is new or is gone; as of the next version, or as of one that is at least as new as the last."""
        self.version = self.version + 1 if version is None else version
        self._newest.pop((table, key), None)
        self._newest[table, key] = self.version

    def forget(self, table: str, key: str) -> None:
        """It will never be asked for again."""
        self._newest.pop((table, key), None)

    def knows(self, version: int) -> bool:
        """Whether `since(version)` is all that whoever knows that version lacks."""
        return self._base < version <= self.version

    def since(self, version: int) -> dict[str, list[str]]:
        """Table → keys that have changed after that version, what changed last first."""
        found: dict[str, list[str]] = {}
        for (table, key), newest in reversed(self._newest.items()):
            if newest <= version:
                break
            found.setdefault(table, []).append(key)
        return found
