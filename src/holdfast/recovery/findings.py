"""Does a diagnosis change what comes next? Only one that is sure does. Loaded at a failure.

- What would fail the same way again is not tried again: a user's error that all ranks have raised, or that came again right
  after a restart, word for word. Decided as the next round is about to form: until then it costs no time.
- A node with broken hardware is left out, if a spare can take its place; only asked where a failure's own words speak of it.

`--on-finding` says otherwise: `user-code=restart`, `gpu=ignore`, `fabric=exclude`, or `none` for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.core.config.grammar import did_you_mean
from holdfast.core.errors import UsageError
from holdfast.core.job.failure import Failure
from holdfast.core.job.finding import ACTIONS, CLASSES, Action, Class, Finding

SURE = 0.93  # From this confidence on a finding counts: a missing module, a syntax error, an ECC error; not any ValueError.

OF_HARDWARE = ("ECC", "nvlink", "NVLink", "GPU is lost", "fallen off the bus", "hardware error", "Driver/library")
"""One of these is in what a failure of hardware says of itself."""


def overrides(text: str, name: str = "--on-finding") -> dict[Class, Action]:
    """What `--on-finding` says: an action for each class that it names. UsageError."""
    if text == "none":
        return dict.fromkeys(CLASSES, Action.IGNORE)
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, _, action = part.partition("=")
        if kind not in CLASSES:
            raise UsageError(f"{name}: there is no class {kind!r} of findings", hint=did_you_mean(kind, CLASSES))
        if action not in ACTIONS:
            raise UsageError(f"{name}: {kind}={action or '?'} is not an action", hint=did_you_mean(action, ACTIONS))
        found[Class(kind)] = Action(action)
    return found


class Findings:
    """What was found in the rounds so far."""

    def __init__(self, diagnose: Callable[[Sequence[Failure]], Finding], said: Mapping[Class, Action]) -> None:
        self.diagnose = diagnose
        self.said = said  # Class → action, where the user wants another than is advised.
        self.before: tuple[str, str] = "", ""  # Rule and message of the last round's finding.

    def forget(self) -> None:
        """A round has ended otherwise: the next finding does not repeat the last."""
        self.before = "", ""

    def action(self, finding: Finding) -> Action:
        return self.said.get(finding.kind, finding.action)

    def unfit(self, failure: Failure) -> str:
        """Why that failure's node should be left out. Empty: nothing says that it should."""
        if Action.EXCLUDE not in self.said.values():
            words = "\n".join((failure.message, *failure.log_tail))
            if not any(word in words for word in OF_HARDWARE):
                return ""
        finding = self.diagnose([failure])
        sure = finding.confidence >= SURE and self.action(finding) == Action.EXCLUDE
        return f"{finding.sentence} (rule {finding.rule})" if sure else ""

    def in_vain(self, failures: Sequence[Failure]) -> str:
        """Why a restart after a round with these failures, the first one first, would fail the same way. Empty: it may not."""
        guilty = [failure for failure in failures if not failure.innocent]
        before, self.before = self.before, ("", "")
        if not guilty:
            return ""
        finding = self.diagnose(guilty)
        if finding.confidence < SURE or self.action(finding) != Action.STOP:
            return ""
        self.before = finding.rule, guilty[0].message or "\n".join(guilty[0].log_tail[-1:])
        if finding.everywhere and len(guilty) == len(failures):
            how = "every rank says so"
        elif self.before == before:
            how = "it came again right after a restart"
        elif self.said.get(finding.kind) == Action.STOP:
            how = f"--on-finding {finding.kind}=stop"
        else:
            return ""
        return f"{finding.sentence} ({how}; rule {finding.rule})"
