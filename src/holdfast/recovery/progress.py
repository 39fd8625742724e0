"""Does the job get anywhere? Restarts that bring it no further, one after the other, are a loop that only costs machine time.

How far it is, the nodes say before each round: by the checkpoint file if the job names one, else by the steps that its ranks
report. It is compared with the restart before, once, by the coordinator; so no two nodes can disagree.
"""

from __future__ import annotations


class Progress:
    """What is known of it."""

    def __init__(self, *, cycles: int = 0, iterations: int = 1, source: str = "") -> None:
        self.cycles = cycles  # So many restarts in a row without progress are too many. 0: no number is.
        self.iterations = iterations  # So many iterations since the restart before are progress.
        self.source = source  # The file that says how far it is. Empty: the ranks do.
        self.reached: int | None = None  # The iteration known at the last restart. None: none was.
        self.idle = 0  # Restarts in a row without progress.

    @property
    def condition(self) -> str:
        """On what the next restart depends, in words that follow it; empty: on nothing. How far the job is now, is not known
        at a failure: only when every node has said so, in `note`."""
        if not self.cycles or self.idle + 1 < self.cycles or self.reached is None:
            return ""
        return f" if the job has reached iteration {self.reached + self.iterations}"

    def resume(self, reached: int | None, idle: int) -> None:
        self.reached, self.idle = reached, idle

    def note(self, reached: int | None, *, restarting: bool) -> str:
        """A round is about to form, and `reached` is what is known now; None: nothing. Why the restart that it would be is one
        too many; empty: it is not.

        What nobody knows changes nothing: a file may be out of reach for a moment. But ranks that have reported steps before,
        and none this time, have died before their first one.
        """
        if not self.cycles or (reached is None and (self.source or self.reached is None)):
            return ""
        before, now = self.reached or 0, (self.reached or 0) if reached is None else reached
        if not restarting:
            self.reached = now if self.reached is None else self.reached
            return ""
        self.reached, self.idle = now, 0 if now - before >= self.iterations else self.idle + 1
        if self.idle < self.cycles:
            return ""
        least = f"fewer than {self.iterations} iterations" if self.iterations > 1 else "no iteration"
        where = f"iteration {now}" + (f" by {self.source}" if self.source else "")
        return f"no progress: {self.idle} restart{'s' if self.idle > 1 else ''} in a row brought {least} ({where})"
