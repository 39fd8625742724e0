"""How is the job to be watched, judged and placed? Settles `RunConfig.ft`."""

from __future__ import annotations

from holdfast.core.config import grammar
from holdfast.core.config.draft import Draft, Setting
from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.config.fault_tolerance_file import read_file
from holdfast.core.config.option import ACCEPTED

OWN_BACKENDS = ("memory", "embedded", "static", "etcd")  # Those that our own agent serves.
STORE_PORT = "29500"  # Where ft_launcher's nodes meet unless told otherwise.


def prepare(draft: Draft) -> None:
    """Before anything else is settled: what the YAML file says, and where ft_launcher's nodes meet."""
    read_file(draft)
    if draft.settings["rdzv_backend"].value == "c10d" and not draft.given("rdzv_backend"):
        _meet_at_the_master(draft)


def _meet_at_the_master(draft: Draft) -> None:
    """`holdfast ft_launcher`: c10d unless something else is said, at --master-addr and --master-port."""
    given = [dest for dest in ("master_addr", "master_port") if draft.given(dest)]
    if given and not draft.given("rdzv_endpoint") and not draft.on("standalone"):
        host = draft.text("master_addr").strip("[]")
        port = grammar.port_number(draft.text("master_port") or STORE_PORT, draft.name("master_port"))
        origin = ", ".join(draft.name(dest) for dest in given)
        draft.settings["rdzv_endpoint"] = Setting(value=grammar.shown_endpoint(host, port), origin=origin)
        for dest in given:  # it is said: these would ask for a static rendezvous otherwise
            draft.settings[dest] = Setting(value=draft.settings[dest].value, origin="default")


def choose_fault_tolerance(draft: Draft) -> None:
    """Settle `ft`. Its fields' origins are kept as `ft.monitor` and so on."""
    if draft.environ.get("NVRX_DISABLE_RANK_MONITORS") and not draft.given("monitor"):
        draft.settings["monitor"] = Setting(value="off", origin="NVRX_DISABLE_RANK_MONITORS")
    _spread_base_logfile(draft)
    draft.settle(FaultTolerance.__options__, within="ft.")
    if per_node := draft.environ.get("NVRX_GPUS_PER_NUMA"):
        draft.put("ft.gpus_per_numa", grammar.whole(per_node, "NVRX_GPUS_PER_NUMA", at_least=1), "NVRX_GPUS_PER_NUMA")
    _tell_what_is_idle(draft)
    _without_our_agent(draft)
    ft = draft.fields["ft"] = FaultTolerance(**draft.within("ft."))
    if ft.enable_log_server and not ft.per_cycle_applog_prefix:
        draft.warn(f"{draft.origins['ft.enable_log_server']} gathers nothing without --ft-per-cycle-applog-prefix")


def _spread_base_logfile(draft: Draft) -> None:
    """One file's name stood for both logs in ft_launcher 0.5; who says one of them means that."""
    base = draft.settings["ft_base_logfile"]
    for dest in ("ft_per_cycle_applog_prefix", "ft_nvrx_logfile"):
        if draft.given("ft_base_logfile") and not draft.given(dest):
            draft.settings[dest] = Setting(value=base.value, origin=base.origin)


def _tell_what_is_idle(draft: Draft) -> None:
    """One line for each reason why options have no effect."""
    idle: dict[str, list[str]] = {}
    for option in FaultTolerance.__options__:
        if option.state == ACCEPTED and draft.given(option.dest):
            idle.setdefault(option.said, []).append(draft.name(option.dest))
    for said, names in idle.items():
        draft.tell("INFO", f"{', '.join(names)}: {said}")


def _without_our_agent(draft: Draft) -> None:
    """Jobs of other packages' rendezvous or logs run through torch elastic's interfaces, which know nothing of all this."""
    other = next((dest for dest in ("rdzv_backend", "logs_specs") if _is_foreign(draft, dest)), "")
    given = [draft.origins[field] for field in draft.origins if field.startswith("ft.") and draft.origins[field] != "default"]
    if other and given:
        draft.warn(f"{', '.join(given)} ignored: {draft.name(other)} has the job run through torch elastic's interfaces")


def _is_foreign(draft: Draft, dest: str) -> bool:
    return draft.fields["rdzv_backend"] not in OWN_BACKENDS if dest == "rdzv_backend" else bool(draft.text("logs_specs"))
