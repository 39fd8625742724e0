"""How is the job to be watched, judged and placed? Settles `RunConfig.ft`.

Every start settles our own flags. What else there is, the table of ft_launcher's fields and the YAML file, is
`core.config.fault_tolerance_values`'s, and loaded only where something of it was said.
"""

from __future__ import annotations

from holdfast.core.config import grammar
from holdfast.core.config.config import Setting
from holdfast.core.config.fault_tolerance import MONITORS, ON_STRAGGLER, FaultTolerance
from holdfast.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.core.config.config import Draft

OWN_BACKENDS = ("memory", "embedded", "static", "etcd")
"""Those that our own agent serves."""

STORE_PORT = "29500"
"""Where ft_launcher's nodes meet unless told otherwise."""


def prepare(draft: Draft) -> None:
    """Before anything else is settled: what the YAML file says, and where ft_launcher's nodes meet."""
    if "ft_cfg_path" in draft.settings:
        from holdfast.core.config.fault_tolerance_values import read_file

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
    fields: dict[str, Any] = {}
    if draft.environ.get("NVRX_DISABLE_RANK_MONITORS") and not draft.given("monitor"):
        draft.settings["monitor"] = Setting(value="off", origin="NVRX_DISABLE_RANK_MONITORS")
    for dest, choices in (("monitor", MONITORS), ("on_straggler", ON_STRAGGLER)):
        word = draft.text(dest)
        if word not in choices:
            seconds = dest == "monitor" and word.replace(".", "").isdigit()
            hint = "seconds are for --monitor-interval" if seconds else grammar.did_you_mean(word, choices)
            raise UsageError(f"{draft.name(dest)}: there is no {word!r}", hint=hint)
        fields[dest] = word
    fields["progress_regex"] = _regex(draft)
    fields["least_limit"] = grammar.seconds(draft.text("least_limit"), draft.name("least_limit"), zero=False)
    for dest in ("most_limit", "still_limit"):
        text = draft.text(dest)
        none = text.lower() in ("none", "null", "")
        fields[dest] = None if none else grammar.seconds(text, draft.name(dest), zero=False)
    for field in fields:
        draft.origins[f"ft.{field}"] = draft.settings[field].origin
    if per_node := draft.environ.get("NVRX_GPUS_PER_NUMA"):
        fields["gpus_per_numa"] = grammar.whole(per_node, "NVRX_GPUS_PER_NUMA", at_least=1)
        draft.origins["ft.gpus_per_numa"] = "NVRX_GPUS_PER_NUMA"
    if "ft_cfg_path" in draft.settings:
        from holdfast.core.config.fault_tolerance_values import given_fields

        fields |= given_fields(draft)
    _without_our_agent(draft)
    draft.fields["ft"] = FaultTolerance(**fields)


def _without_our_agent(draft: Draft) -> None:
    """Jobs of other packages' rendezvous or logs run through torch elastic's interfaces, which know nothing of all this."""
    other = next((dest for dest in ("rdzv_backend", "logs_specs") if _is_foreign(draft, dest)), "")
    given = [draft.origins[field] for field in draft.origins if field.startswith("ft.") and draft.origins[field] != "default"]
    if other and given:
        draft.tell(
            "WARNING", f"{', '.join(given)} ignored: {draft.name(other)} has the job run through torch elastic's interfaces"
        )


def _is_foreign(draft: Draft, dest: str) -> bool:
    return draft.fields["rdzv_backend"] not in OWN_BACKENDS if dest == "rdzv_backend" else bool(draft.text("logs_specs"))


def _regex(draft: Draft) -> str | None:
    text = draft.text("progress_regex")
    if not text:
        return None
    import re

    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"{draft.name('progress_regex')}: {text!r} is no regular expression: {error}") from None
    return text
