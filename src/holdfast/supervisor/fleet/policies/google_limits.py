"""Which limits has the policy `google`, and where do they come from? Google's own names, from options and GCP_* variables.

--policy-option max_in_job_restarts=3        GCP_MAX_IN_JOB_RESTARTS=3        or, told by a job's clients, of that job alone
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.agent.reporting.google_rank_reports import NUMBERS, SCALING
from holdfast.core.config import grammar
from holdfast.core.errors import UsageError
from holdfast.core.wire.google_wire import WorkloadInfo

DEFAULTS = {
    "max_in_job_restarts": 0,
    "max_workload_restarts": 1,
    "workload_downtime_threshold_s": 180,
    "container_termination_threshold_s": 60,
    "workload_scaling_enabled": 0,
    "num_nodes_per_data_replica": 1,
    "min_num_data_replicas": 0,
    "max_num_data_replicas": 0,
}
"""Those of the client's arguments. 0 replicas: no limit."""

VARIABLES = {field: variable for variable, field in NUMBERS.items() if field in DEFAULTS}
VARIABLES["workload_scaling_enabled"] = SCALING

MOST = (1 << 31) - 1
"""Of Google's wire, whose numbers are int32."""


def given_limits(options: Sequence[str], environ: Mapping[str, str]) -> dict[str, int]:
    """The limits that an operator has given: `NAME=VALUE` before variables. UsageError."""
    limits = {name: _number(name, environ[variable], variable) for name, variable in VARIABLES.items() if environ.get(variable)}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals:
            raise UsageError(f"--policy-option: {option!r} is not NAME=VALUE", hint=f"known: {', '.join(DEFAULTS)}")
        if name not in DEFAULTS:
            hint = grammar.did_you_mean(name, DEFAULTS) or f"known: {', '.join(DEFAULTS)}"
            raise UsageError(f"--policy-option: the policy google has no option {name!r}", hint=hint)
        limits[name] = _number(name, text, f"--policy-option {name}")
    least, most = limits.get("min_num_data_replicas", 0), limits.get("max_num_data_replicas", 0)
    if most and least > most:
        raise UsageError(f"min_num_data_replicas ({least}) is more than max_num_data_replicas ({most})")
    return limits


def limits_of(workload: WorkloadInfo) -> dict[str, int]:
    """What a job's clients have told of it. A number of 0 that would mean nothing is left out."""
    told = {name: int(getattr(workload, name)) for name in DEFAULTS}
    return {name: value for name, value in told.items() if value or name.startswith(("max_in", "max_work", "workload_scaling"))}


def _number(name: str, text: str, whose: str) -> int:
    if name == "workload_scaling_enabled":
        return int(grammar.truth(text, whose))
    return grammar.whole(text, whose, at_least=int(name == "num_nodes_per_data_replica"), at_most=MOST)
