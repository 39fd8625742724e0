"""What does the job's script import? A node that has run its workers tells those that wait, by a file in the folder that they
share: several agents on one host, or a home on NFS. Elsewhere, who waits does not know, and its workers start cold.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.telemetry.aside import Aside

NAME = "imports"
"""In the job's folder. The first line is the interpreter, the others are modules."""


class ImportsFile:
    """The file, which may be on a file system that hangs."""

    def __init__(self, folder: str, python: str, aside: Aside) -> None:
        self.path, self.python, self.aside = os.path.join(folder, NAME), python, aside
        self.told = 0

    def tell(self, modules: Iterable[str]) -> None:
        """Have others know, if it is more than they know from us already. They do without where it cannot be written."""
        lines = [self.python, *modules]
        if len(lines) <= self.told:
            return
        self.told, new = len(lines), f"{self.path}.{os.getpid()}"

        def write() -> None:
            with open(new, "w", encoding="utf-8") as file:
                file.write("\n".join(lines))
            os.replace(new, self.path)

        self.aside.attempt(write)

    def look(self) -> list[str]:
        """What another node has told, for the interpreter that we run; empty: nothing yet."""
        found: list[str] = []

        def read() -> None:
            with open(self.path, encoding="utf-8") as file:
                found.extend(file.read().split("\n"))

        self.aside.attempt(read)
        return found[1:] if found[:1] == [self.python] else []
