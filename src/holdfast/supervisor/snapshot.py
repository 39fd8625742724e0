"""A client's copy of the fleet, built from one full answer and later changes."""

from __future__ import annotations

from typing import Any

DEEDS = 200
"""The newest deeds are told, and remembered; so many."""

KEYS = {"nodes": "name", "jobs": "name", "deeds": "id"}
"""Table → the field that tells its rows apart."""


class Snapshot:
    """The fleet as of the last answer."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, dict[str, Any]]] = {table: {} for table in KEYS}
        """Rows by name, or by id; the deeds oldest first."""
        self.head: dict[str, Any] = {}
        """All else that was told. Empty: nothing has been heard yet."""

    def take(self, answer: dict[str, Any]) -> list[tuple[str, str]]:
        """Add an answer; (table, key) of each row that is new, changed or gone. An answer without `gone` is the whole fleet."""
        gone, touched = answer.get("gone"), list[tuple[str, str]]()
        if gone is None:
            self.tables, self.head = {table: {} for table in KEYS}, {}
        self.head |= {field: value for field, value in answer.items() if field not in (*KEYS, "gone", "ok")}
        for table, key in KEYS.items():
            rows = self.tables[table]
            rows |= {row[key]: row for row in answer.get(table, ())}
            left = (gone or {}).get(table, ())
            if table == "deeds":
                left = [*left, *list(rows)[:-DEEDS]]
            for name in left:
                rows.pop(name, None)
            touched += [(table, name) for name in (*(row[key] for row in answer.get(table, ())), *left)]
        return touched
