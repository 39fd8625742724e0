"""How does a table of rows survive its process, kill -9 included? As lines appended to one file: a key, and its row or null.

A line that was cut short is passed over. The file is written anew when it is opened, and when it has grown to many times of
what is in it. What a machine's crash may lose (nothing is synced) ends with that machine's processes anyway.
"""

from __future__ import annotations

import json
import os
from typing import Any

SLACK_LINES = 1_000
"""Lines more than four times the rows, until the file is written anew."""


class Journal:
    """One file, which nobody else writes. OSError from all of it: the disk's."""

    def __init__(self, path: str, slack_lines: int = SLACK_LINES) -> None:
        self.path, self._slack_lines = path, slack_lines
        self.rows: dict[str, dict[str, Any]] = _read(path)
        self._fd = -1
        self._lines = 0
        self._write_anew()

    def keep(self, key: str, row: dict[str, Any] | None) -> None:
        """This is the key's row from now on; None: it has none."""
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row
        self._lines += 1
        if self._lines > 4 * len(self.rows) + self._slack_lines:
            self._write_anew()
        else:
            os.write(self._fd, _line(key, row))

    def close(self) -> None:
        os.close(self._fd)

    def _write_anew(self) -> None:
        fresh = f"{self.path}.new"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", closefd=False) as file:
            file.writelines(_line(key, row) for key, row in self.rows.items())
        os.rename(fresh, self.path)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._lines = fd, len(self.rows)


def _line(key: str, row: dict[str, Any] | None) -> bytes:
    return json.dumps([key, row]).encode() + b"\n"


def _read(path: str) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return rows
    for line in lines:
        try:
            key, row = json.loads(line)
        except (ValueError, TypeError):
            continue
        rows.pop(key, None)
        if isinstance(row, dict):
            rows[key] = row
    return rows
