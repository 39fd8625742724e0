"""The list of policies. A policy decides what is done about a trouble: a function of the case and of the deeds before it.

A policy has no state: budgets and counters are folds over the stored deeds, so a restart of the supervisor forgives a flapping
node nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.core.config.grammar import did_you_mean
from holdfast.core.errors import UsageError
from holdfast.supervisor.fleet.policies.case import Policy
from holdfast.supervisor.fleet.policies.default import Default
from holdfast.supervisor.fleet.policies.google import Google
from holdfast.supervisor.fleet.policies.google_limits import given_limits


def _default(options: Sequence[str], environ: Mapping[str, str]) -> Policy:
    if options:
        raise UsageError(f"--policy-option: the policy default has none: {options[0]!r}", hint="give --policy google")
    return Default()


def _google(options: Sequence[str], environ: Mapping[str, str]) -> Policy:
    return Google(**given_limits(options, environ))


POLICIES: dict[str, Callable[[Sequence[str], Mapping[str, str]], Policy]] = {"default": _default, "google": _google}
"""By name: what makes the policy of the options given to it (NAME=VALUE each) and of the environment."""


def policy(name: str, options: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Policy:
    """The policy of that name, with `options` (NAME=VALUE each) of its own; `environ` may have others. UsageError."""
    if name not in POLICIES:
        hint = did_you_mean(name, POLICIES) or f"known: {', '.join(POLICIES)}"
        raise UsageError(f"--policy: there is no policy {name!r}", hint=hint)
    return POLICIES[name](options, environ or {})
