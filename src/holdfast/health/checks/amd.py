"""Are the AMD GPUs healthy? Reads the kernel driver's sysfs files, without ROCm: uncorrected errors, retired pages, PCI links.
Sources: the kernel's documentation of amdgpu, "AMDGPU RAS Support", and of the PCI bus's sysfs files.
"""

from __future__ import annotations

import re

from holdfast.health.check import Look
from holdfast.health.verdict import Findings, Verdict, fit

VENDOR = "0x1002"
DRM = "sys/class/drm"
BLOCKS = ("umc", "gfx", "sdma", "mmhub", "xgmi_wafl", "pcie_bif")
"""Parts of a GPU with counters of their own: memory, compute, copies, the links between GPUs, PCI."""


def amd(look: Look) -> Verdict:
    """All GPUs of the node."""
    cards = [name for name in look.names(DRM) if re.fullmatch(r"card\d+", name)]
    cards = [name for name in cards if look.text(f"{DRM}/{name}/device/vendor") == VENDOR]
    if not cards:
        return fit("does not apply: no AMD GPU")
    found = Findings()
    uncorrected: dict[str, int] = {}
    for card in cards:
        uncorrected[card] = _look_at(look, card, look.before.get(card, 0), found)
    return found.verdict(f"{len(cards)} AMD GPU{'s' * (len(cards) != 1)}", **uncorrected)


def _look_at(look: Look, card: str, before: int, found: Findings) -> int:
    device = f"{DRM}/{card}/device"
    total = 0
    for block in BLOCKS:
        told = dict(re.findall(r"(ue|ce): (\d+)", look.text(f"{device}/ras/{block}_err_count")))
        total += int(told.get("ue", 0))
        if int(told.get("ue", 0)) > 0:
            advice = "drain the node, reset the GPU (`amd-smi reset -G`) or restart the host"
            found.unfit(f"{card}: {told['ue']} errors of {block} that were not corrected", advice)
    pages = [line for line in look.text(f"{device}/ras/gpu_vram_bad_pages").splitlines() if re.search(r": [RPF]$", line)]
    if waiting := [line for line in pages if line.endswith(("P", "F"))]:
        found.degraded(f"{card}: {len(waiting)} bad pages of memory are not retired yet", "reset it when the node is free")
    _look_at_link(look, card, device, found)
    return max(total, before)


def _look_at_link(look: Look, card: str, device: str, found: Findings) -> None:
    # Not its speed: an idle GPU lowers that to save power.
    now, most = look.text(f"{device}/current_link_width"), look.text(f"{device}/max_link_width")
    if now and most and now != most:
        found.degraded(f"{card}: its PCI link has {now} lanes, of {most}", "reseat it; look at the riser")
