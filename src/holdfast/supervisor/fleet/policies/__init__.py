"""The list of policies. A policy decides what is done about a trouble: a function of the case and of the deeds before it.

A policy has no state: budgets and counters are folds over the stored deeds, so a restart of the supervisor forgives a flapping
node nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.config.grammar import did_you_mean
from holdfast.core.errors import UsageError
from holdfast.supervisor.fleet.policies.case import Policy
from holdfast.supervisor.fleet.policies.default import Default
from holdfast.supervisor.fleet.policies.google import Google
from holdfast.supervisor.fleet.policies.google_limits import given_limits

NAMES = ("default", "google")


def policy(name: str, options: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Policy:
    """The policy of that name, with `options` (NAME=VALUE each) of its own; `environ` may have others. UsageError."""
    if name == "google":
        return Google(**given_limits(options, environ or {}))
    if name != "default":
        hint = did_you_mean(name, NAMES) or f"known: {', '.join(NAMES)}"
        raise UsageError(f"--policy: there is no policy {name!r}", hint=hint)
    if options:
        raise UsageError(f"--policy-option: the policy default has none: {options[0]!r}", hint="give --policy google")
    return Default()
