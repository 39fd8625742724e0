"""Are the NICs' ports up, and did they stay up? Reads InfiniBand and RoCE ports from /sys/class/infiniband.

InfiniBand counts lost links in link_downed, and RoCE's network device in carrier_down_count (Linux 4.16 and later). A port that
was active at the first check and is down now is a fault, and so is a link lost since the last check. A port that was never up
is no fault unless all ports are down, because many hosts have ports without a cable.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.health.check import Look
from holdfast.health.verdict import Findings, Verdict, fit

FOLDER = "sys/class/infiniband"
STATE, DOWNED = f"/{FOLDER}/{{nic}}/ports/{{port}}/state", f"/{FOLDER}/{{nic}}/ports/{{port}}/counters/link_downed"
"""Where the kernel says them. ft_launcher's templates have {nic}, and 1 for the port."""

ERRORS = ("symbol_error", "port_rcv_errors", "link_error_recovery", "local_link_integrity_errors")
"""Counters that grow on a bad cable (of the InfiniBand specification's PortCounters)."""

BURST = 100  # So many more of them between two looks are not chance.

ACTIVE = "ACTIVE"
CABLE = "check cable and transceiver; `ibstat` and `mlxlink -d DEVICE -c` tell more"


def nic(look: Look) -> Verdict:
    """Every port of every NIC, compared with the look before."""
    return compared(ports(look), look.before)


def compared(now: dict[str, dict[str, Any]], earlier: dict[str, dict[str, Any]]) -> Verdict:
    """What has become worse about these ports. `earlier`: what they were then; empty: it is the first look."""
    found, before = Findings(), earlier or now
    if not now:
        return fit("does not apply: no InfiniBand or RoCE device")
    for name, port in now.items():
        _compare(found, name, port, was := before.get(name, port))
        port["best"] = ACTIVE if ACTIVE in (port["state"], was.get("best", "")) else ""
    up = [name for name, port in now.items() if port["state"] == ACTIVE]
    if not up and not earlier:
        found.unfit(f"none of {len(now)} ports is active: " + ", ".join(f"{n} {p['state']}" for n, p in now.items()), CABLE)
    gone = [name for name in before if name not in now]
    if gone:
        found.unfit(f"{', '.join(gone)} is gone", "is the device still on the PCI bus? `lspci`, and the kernel's log")
    return found.verdict(f"{len(up)} of {len(now)} ports are active", **(now | {name: before[name] for name in gone}))


def _compare(found: Findings, name: str, port: dict[str, Any], was: dict[str, Any]) -> None:
    """Find what has become worse about a port since the last look."""
    if port["state"] != ACTIVE and ACTIVE in (was["state"], was.get("best", "")):
        found.unfit(f"{name} is {port['state']} and was {ACTIVE}, {port['physical']}", CABLE)
    elif times := max(port["downed"] - was["downed"], port["carrier"] - was["carrier"], 0):
        found.unfit(f"{name} has lost its link {times} times since the last look", CABLE)
    elif port["state"] == ACTIVE and port["rate"] < was["rate"]:
        found.degraded(f"{name} runs at {port['rate']:g} Gb/s, and was at {was['rate']:g}", CABLE)
    if (more := port["errors"] - was["errors"]) > BURST:
        found.degraded(f"{name} had {more} errors since the last look", CABLE)


def ports(look: Look) -> dict[str, dict[str, Any]]:
    """`mlx5_0/1` → what the kernel says of it. ft_launcher's templates for other files are the argument."""
    state, downed = _templates(look.argument)
    found = {}
    for nic_name in look.names(FOLDER):
        for port in look.names(f"{FOLDER}/{nic_name}/ports"):
            folder = f"{FOLDER}/{nic_name}/ports/{port}"
            place = {"nic": nic_name, "dev_name": nic_name, "port": port}
            found[f"{nic_name}/{port}"] = {
                "state": _word(look.text((state or STATE).format(**place))),
                "physical": _word(look.text(f"{folder}/phys_state")) or "physical state not told",
                "rate": _number(look.text(f"{folder}/rate")),
                "downed": int(_number(look.text((downed or DOWNED).format(**place)))),
                "errors": sum(int(_number(look.text(f"{folder}/counters/{name}"))) for name in ERRORS),
                "carrier": _carrier_losses(look, nic_name, folder),
            }
    return found


def _templates(argument: str) -> tuple[str, str]:
    """`STATE:DOWNED`: the `:` is one that `/` follows, for PCI addresses have others. As `grammar.join_paths`."""
    found = re.split(r"(?<!\\):(?=/)", argument, maxsplit=1)
    state, downed = found if len(found) == 2 else (argument, "")
    return state.replace("\\:/", ":/"), downed.replace("\\:/", ":/")


def _carrier_losses(look: Look, nic_name: str, folder: str) -> int:
    """How often a RoCE port has lost its carrier: its network device counts that, and link_downed may not."""
    if look.text(f"{folder}/link_layer") != "Ethernet":
        return 0
    own = look.text(f"{folder}/gid_attrs/ndevs/0") or next(iter(look.names(f"{FOLDER}/{nic_name}/device/net")), "")
    return int(_number(look.text(f"sys/class/net/{own}/carrier_down_count"))) if own else 0


def _word(text: str) -> str:
    """`4: ACTIVE` → ACTIVE."""
    return text.partition(":")[2].strip() or text.strip()


def _number(text: str) -> float:
    match = re.match(r"[\d.]+", text)
    return float(match[0]) if match else 0.0
