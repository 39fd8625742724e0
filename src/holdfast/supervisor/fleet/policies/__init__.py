"""What is to be done about a trouble? A policy is a function of the case and of what was done before; this is the list of them.

It remembers nothing itself: budgets and counters are folds over the record of deeds, which is kept, so that a node that flaps
does not start from nothing when the supervisor does.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    from holdfast.core.wire.fleet import Deed
    from holdfast.supervisor.fleet.policies.case import Case, Choice

    class Policy(Protocol):
        """See the module's text."""

        name: str

        def decide(self, case: Case, before: Sequence[Deed], now_unix: float) -> Choice:
            """What is to be done about `case`; `before`: deeds about its job or its node, the oldest first."""

        def patience_s(self, case: Case) -> float:
            """How long a restart may take until a round runs again, before the next thing is tried."""


NAMES = ("default", "google")


def policy(name: str, options: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Policy:
    """The policy of that name, with `options` (NAME=VALUE each) of its own; `environ` may have others. UsageError."""
    from holdfast.core.config.grammar import did_you_mean
    from holdfast.core.errors import UsageError

    if name == "google":
        from holdfast.supervisor.fleet.policies.google import Google
        from holdfast.supervisor.fleet.policies.google_limits import given_limits

        return Google(**given_limits(options, environ or {}))
    if name != "default":
        hint = did_you_mean(name, NAMES) or f"known: {', '.join(NAMES)}"
        raise UsageError(f"--policy: there is no policy {name!r}", hint=hint)
    if options:
        raise UsageError(f"--policy-option: the policy default has none: {options[0]!r}", hint="give --policy google")
    from holdfast.supervisor.fleet.policies.default import Default

    return Default()
