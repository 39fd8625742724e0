"""How is the job to be watched, judged and placed? Settles `RunConfig.ft`, also from the YAML file of --ft-cfg-path.

That file is one more source of texts, below the command line and the variables. Its mapping `fault_tolerance` is looked for
depth first, in lists too. Its keys become settings that name the file as their origin, so a wrong value is the same error
wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.core.config import grammar
from holdfast.core.config.draft import Draft, Setting
from holdfast.core.config.fault_tolerance import SECTION, FaultTolerance, section
from holdfast.core.config.flags import FLAGS, NVRX_FLAGS
from holdfast.core.config.option import ACCEPTED
from holdfast.core.errors import UsageError

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
    # One file's name stood for both logs in ft_launcher 0.5; who says one of them means that.
    base = draft.settings["ft_base_logfile"]
    for dest in ("ft_per_cycle_applog_prefix", "ft_nvrx_logfile"):
        if draft.given("ft_base_logfile") and not draft.given(dest):
            draft.settings[dest] = Setting(value=base.value, origin=base.origin)
    draft.settle(FaultTolerance.__options__, within="ft.")
    if per_node := draft.environ.get("NVRX_GPUS_PER_NUMA"):
        draft.put("ft.gpus_per_numa", grammar.whole(per_node, "NVRX_GPUS_PER_NUMA", at_least=1), "NVRX_GPUS_PER_NUMA")
    # One line for each reason why options have no effect.
    idle: dict[str, list[str]] = {}
    for option in FaultTolerance.__options__:
        if option.state == ACCEPTED and draft.given(option.dest):
            idle.setdefault(option.said, []).append(draft.name(option.dest))
    for said, names in idle.items():
        draft.tell("INFO", f"{', '.join(names)}: {said}")
    _without_our_agent(draft)
    ft = draft.fields["ft"] = FaultTolerance(**draft.within("ft."))
    if ft.enable_log_server and not ft.per_cycle_applog_prefix:
        draft.warn(f"{draft.origins['ft.enable_log_server']} gathers nothing without --ft-per-cycle-applog-prefix")


def _without_our_agent(draft: Draft) -> None:
    """Jobs of other packages' rendezvous or logs run through torch elastic's interfaces, which know nothing of all this."""
    other = next((dest for dest in ("rdzv_backend", "logs_specs") if _is_foreign(draft, dest)), "")
    given = [draft.origins[field] for field in draft.origins if field.startswith("ft.") and draft.origins[field] != "default"]
    if draft.fields["rdzv_backend"] != "holdfast":  # which proves them to other nodes
        given += [draft.name(dest) for dest in ("token_file", "tls_cert", "tls_ca") if draft.given(dest)]
    if other and given:
        draft.warn(f"{', '.join(given)} ignored: {draft.name(other)} has the job run through torch elastic's interfaces")


def _is_foreign(draft: Draft, dest: str) -> bool:
    return draft.fields["rdzv_backend"] not in OWN_BACKENDS if dest == "rdzv_backend" else bool(draft.text("logs_specs"))


BY_KEY = {key: option for option in (*NVRX_FLAGS, *FLAGS) for key in option.keys}
NESTED = {
    "health_logging.prefix": "health_log_prefix",
    "health_logging.dmesg.enabled": "enable_health_log_dmesg",
    "health_logging.fact_result.enabled": "enable_fact_result_artifact",
}
"""Keys in mappings of their own → the same as one word."""
NESTING = {key.partition(".")[0] for key in NESTED}
DESTS = {key: option.dest for key, option in BY_KEY.items()}  # YAML key → attribute name of its setting.
NULL_IS_NO_LIMIT = {option.dest for option in BY_KEY.values() if option.metavar.startswith("S|none")}
"""Settings for which YAML's null says something; for others it says nothing."""


def read_file(draft: Draft) -> None:
    """Take over what the file of --ft-cfg-path says and neither a flag nor a variable does. UsageError: it is of no use."""
    path = draft.text("ft_cfg_path")
    if not path:
        return
    ignore = "ft_ignore_missing_cfg"
    missing_is_fine = draft.given(ignore) and grammar.truth(draft.text(ignore), "--ft-ignore-missing-cfg")
    try:
        document = draft.host.read_yaml(grammar.absolute(path, draft.host.cwd))
    except OSError as error:
        if missing_is_fine and isinstance(error, FileNotFoundError):
            return
        is_missing = isinstance(error, FileNotFoundError)
        hint = "--ft-ignore-missing-cfg goes on without it" if is_missing else "name a YAML file that this user may read"
        raise UsageError(f"{draft.name('ft_cfg_path')}: {path} cannot be read: {error.strerror}", hint=hint) from error
    found = section(document)
    if found is None:
        if not missing_is_fine:
            draft.warn(f"{draft.name('ft_cfg_path')}: {path} has no mapping {SECTION}: the file has no effect")
        return
    for key, raw in _flat(found):
        _take(draft, path, key, raw)


def _flat(found: Mapping[object, object], within: str = "") -> Iterator[tuple[str, object]]:
    """Its keys and values; where NVRx's newest versions nest them, `a.b.c`."""
    for name, raw in found.items():
        key = f"{within}{name}"
        if isinstance(raw, dict) and key.partition(".")[0] in NESTING:
            yield from _flat(raw, f"{key}.")
        else:
            yield key, raw


def _take(draft: Draft, path: str, key: str, raw: object) -> None:
    origin = f"{path} {SECTION}.{key}"
    dest = DESTS.get(NESTED.get(key, key))
    if dest is None:
        # ft_launcher reads past what it does not know. A slip of the pen would switch off what it was to switch on; but
        # a key that is like none of ours may be of a version to come.
        if meant := grammar.nearest(key, DESTS):
            raise UsageError(f"{path}: there is no {SECTION}.{key}", hint=f"did you mean {meant}?")
        return draft.warn(f"{path}: nothing reads {SECTION}.{key}")
    text = as_text(dest, raw)
    if text is not None and not draft.given(dest):
        draft.settings[dest] = Setting(value=text, origin=origin)
    return None


def as_text(dest: str, raw: object) -> str | None:
    """A value of the file as it would be typed. None: it says nothing, and the default holds."""
    if raw is None:
        return "none" if dest in NULL_IS_NO_LIMIT else None
    if isinstance(raw, bool):
        if dest == "monitor":  # YAML reads `off` as false
            return "auto" if raw else "off"
        return "true" if raw else "false"
    if isinstance(raw, dict):
        return ",".join(f"{name}:{'none' if limit is None else limit}" for name, limit in raw.items())
    if isinstance(raw, list):
        return ",".join(map(str, raw))
    return str(raw)
