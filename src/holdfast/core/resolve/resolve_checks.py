"""Which checks of the node's health are asked for, and when? By our own flags, and by ft_launcher's in their words (`ASKED`).

Whether there is a check of a name is known above (`health.check`), and said before the first round.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.config.draft import Draft
from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.config.grammar import join_paths
from holdfast.core.resolve.resolve_fault_tolerance import OWN_BACKENDS


def _nic(ft: FaultTolerance) -> str:
    state, downed = (join_paths((one,)) if one else "" for one in (ft.link_state_path_template, ft.link_down_path_template))
    return f"nic={state}:{downed}" if downed else f"nic={state}" if state else "nic"


ASKED: dict[str, dict[str, Callable[[FaultTolerance], str]]] = {
    "check_before": {
        "enable_nic_healthcheck": _nic,
        "enable_dist_storage_healthcheck": lambda ft: "mounts",
        "storage_healthcheck_path": lambda ft: f"paths={join_paths(ft.storage_healthcheck_path)}",
        "segment_health_check_dir": lambda ft: f"segment={ft.segment_health_check_dir}",
        "node_health_check_endpoint": lambda ft: f"node-service={ft.node_health_check_endpoint}",
    },
    "check_after": {},
    "check_during": {"enable_nic_monitor": _nic, "node_health_check_interval": lambda ft: "gpu"},
}
"""By list: which fields of ft_launcher's add which check to it, where somebody says them and they are not false or empty."""


def choose_checks(draft: Draft) -> None:
    """Settle them."""
    ft: FaultTolerance = draft.fields["ft"]
    for dest, asked in ASKED.items():
        own = tuple(filter(None, draft.values[dest]))
        said = [field for field in asked if f"ft.{field}" in draft.origins]
        if checks := tuple(dict.fromkeys((*own, *(asked[field](ft) for field in said if getattr(ft, field))))):
            origins = [draft.origin(dest)] if own else []
            draft.put(dest, checks, ", ".join(origins + [draft.origins[f"ft.{field}"] for field in said]))
    given = [draft.name(dest) for dest in ASKED if draft.given(dest)]
    if given and (draft.fields["rdzv_backend"] not in OWN_BACKENDS or draft.text("logs_specs")):
        draft.warn(f"{', '.join(given)} ignored: the job runs through torch elastic's interfaces")
    every_s, origin = ft.node_health_check_interval, draft.origins.get("ft.node_health_check_interval")
    if origin and every_s and not draft.given("check_every"):
        draft.put("check_every_s", every_s, origin)
