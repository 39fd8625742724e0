"""Reads how far the job has come: from the file that its checkpoints leave, or from the steps of this node's ranks.

Told before the node's first `Join` and whenever the workers of a round are gone. The coordinator decides what follows
(`recovery.policy`). Made only where a job without progress is to be stopped.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.agent.group.messages import Reached
from holdfast.core.page.signs import MOST
from holdfast.core.processes import ProcessGone
from holdfast.telemetry.record.io_thread import IoThread

MOST_BYTES = 1000  # Of a file that holds one number.


class ProgressIteration:
    """What is known of it here."""

    def __init__(self, path: str | None, io_thread: IoThread, complain: Callable[[str], None]) -> None:
        self.path = path  # The file with the iteration of the last checkpoint. None: the ranks' steps are what counts.
        self.io_thread = io_thread
        self.complain = complain
        self.began = False  # The file has been looked for once: a new job has none yet, and that is no trouble.
        self.trouble = ""  # What was told last of a file that could not be read.
        self.driven = 0
        """Steps of all rounds here, where nobody but our hooks has counted them: they begin anew in each process."""
        self.told: int | None = None  # The furthest step that the ranks of this round have told of. None: none has.
        self.counted: int | None = None  # As `told`, by our hooks.

    def ended(self, gone: ProcessGone) -> None:
        """A rank of the round is gone."""
        if gone.step is None:
            return
        if gone.step_told:
            self.told = max(gone.step, self.told or 0)
        else:
            self.counted = max(gone.step, self.counted or 0)

    def reached(self) -> Reached:
        """No worker runs here: how far it is. Forgets the round."""
        told, counted, self.told, self.counted = self.told, self.counted, None, None
        if self.path is not None:
            return Reached(reached=self._read(self.path))
        if told is not None or counted is None:
            return Reached(reached=told)
        self.driven = min(self.driven + counted, MOST)
        return Reached(reached=self.driven)

    def _read(self, path: str) -> int | None:
        """IoThread: the file is where checkpoints are, on a file server that may hang."""
        found: list[int] = []

        def look() -> None:
            with open(path, "rb") as file:
                text = file.read(MOST_BYTES)
            try:
                found.append(max(-MOST, min(int(text), MOST)))
            except ValueError:
                raise OSError(0, f"it does not hold a whole number: {text[:40]!r}") from None

        trouble = self.io_thread.attempt(look) or "no answer"
        if self.began and not found and trouble != self.trouble:
            self.complain(f"cannot read the job's progress from {path}: {trouble}; restarts ignore progress meanwhile")
        self.began, self.trouble = True, "" if found or not self.began else trouble
        return found[0] if found else None
