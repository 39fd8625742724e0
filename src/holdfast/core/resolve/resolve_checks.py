"""Which checks of the node's health are asked for, and when? Our own flags, and what ft_launcher's mean in their words.

    --ft-enable-nic-healthcheck          nic          before each round
    --ft-enable-dist-storage-healthcheck mounts       before
    --ft-storage-health-check-path       paths=A:B    before
    --ft-segment-health-check-dir        segment=DIR  before
    --ft-node-health-check-endpoint      node-service before
    --ft-enable-nic-monitor              nic          while ranks run, every --ft-node-health-check-interval seconds
    --ft-node-health-check-interval      gpu          likewise

Whether there is a check of a name is known above (`health.check`), and said before the first round.
"""

from __future__ import annotations

from holdfast.core.config.draft import Draft
from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.resolve.resolve_fault_tolerance import OWN_BACKENDS

LISTS = ("check_before", "check_after", "check_during")
NVRX_INTERVAL = "ft.node_health_check_interval"


def choose_checks(draft: Draft) -> None:
    """Settle them."""
    ft: FaultTolerance = draft.fields["ft"]
    asked = {"check_before": _before(ft, draft), "check_after": [], "check_during": _during(ft, draft)}
    for dest in LISTS:
        own = draft.values[dest]
        checks = tuple(dict.fromkeys((*filter(None, own), *asked[dest])))
        if checks:
            others = ", ".join(origin for field in FROM[dest] if (origin := draft.origins.get(f"ft.{field}", "")))
            origin = ", ".join(filter(None, (draft.origin(dest) if own else "", others)))
            draft.put(dest, checks, origin or "default")
    given = [draft.name(dest) for dest in LISTS if draft.given(dest)]
    if given and (draft.fields["rdzv_backend"] not in OWN_BACKENDS or draft.text("logs_specs")):
        draft.warn(f"{', '.join(given)} ignored: the job runs through torch elastic's interfaces")
    if not draft.given("check_every") and NVRX_INTERVAL in draft.origins:
        draft.put("check_every_s", ft.node_health_check_interval, draft.origins[NVRX_INTERVAL])


FROM = {
    "check_before": (
        "enable_nic_healthcheck",
        "enable_dist_storage_healthcheck",
        "storage_healthcheck_path",
        "segment_health_check_dir",
        "node_health_check_endpoint",
    ),
    "check_after": (),
    "check_during": ("enable_nic_monitor", "node_health_check_interval"),
}
"""Fields of `FaultTolerance` that add to each list."""


def _before(ft: FaultTolerance, draft: Draft) -> list[str]:
    found = []
    if ft.enable_nic_healthcheck and "ft.enable_nic_healthcheck" in draft.origins:  # true unless somebody says it, as there
        found.append(_nic(ft))
    if ft.enable_dist_storage_healthcheck:
        found.append("mounts")
    if ft.storage_healthcheck_path:
        found.append(f"paths={':'.join(ft.storage_healthcheck_path)}")
    if ft.segment_health_check_dir:
        found.append(f"segment={ft.segment_health_check_dir}")
    if ft.node_health_check_endpoint:
        found.append(f"node-service={ft.node_health_check_endpoint}")
    return found


def _during(ft: FaultTolerance, draft: Draft) -> list[str]:
    nic = [_nic(ft)] if ft.enable_nic_monitor else []
    return [*nic, "gpu"] if NVRX_INTERVAL in draft.origins else nic


def _nic(ft: FaultTolerance) -> str:
    given = (ft.link_state_path_template or "", ft.link_down_path_template or "")
    return f"nic={':'.join(given)}".rstrip(":") if any(given) else "nic"
