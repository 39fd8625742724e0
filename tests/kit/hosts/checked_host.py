"""A made-up host for checks to look at: the files of /proc, /sys and /dev that they read, in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holdfast.health.check import wanted, with_deadline
from holdfast.health.runner import Examination
from holdfast.health.verdict import Verdict

See = Callable[..., Verdict]  # `see("memory")`: `CheckedHost.verdict` of a host.
UPTIME_S = 10_000.0


class CheckedHost:
    """Healthy until something is done to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("proc/meminfo", "MemTotal:  1048576 kB\nMemFree:  100000 kB\nMemAvailable:  524288 kB\n")
        self.put("proc/sys/fs/file-nr", "1000\t0\t100000\n")
        self.put("proc/loadavg", "0.1 0.1 0.1 1/200 4711\n")
        self.put("proc/sys/kernel/pid_max", "32768\n")
        self.put("proc/uptime", f"{UPTIME_S} 1.0\n")
        self.put("proc/self/mounts", "/dev/sda1 / ext4 rw 0 0\n")
        self.put("dev/kmsg", "6,1,1000000,-;Linux version 6.1\n")
        self._said = 1

    def verdict(self, word: str, deadline_s: float | None = None, **env: str) -> Verdict:
        """That of one check, in a process of its own."""
        if "PYTHONPATH" in env:  # before what is there: another checkout may be tested by it
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (env["PYTHONPATH"], os.environ.get("PYTHONPATH"))))
        asked = [with_deadline(one, deadline_s) for one in wanted([word], str(self.root))]
        (verdict,) = Examination(asked, root=str(self.root), environ=os.environ | env).take()
        return verdict

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def say(self, text: str, *, age_s: float = 5.0) -> None:
        """The kernel says something."""
        self._said += 1
        with (self.root / "dev/kmsg").open("a") as log:
            log.write(f"3,{self._said},{int((UPTIME_S - age_s) * 1e6)},-;{text}\n")

    def nic(
        self, name: str = "mlx5_0", *, state: str = "4: ACTIVE", downed: int = 0, rate: str = "400 Gb/sec", errors: int = 0
    ) -> None:
        folder = f"sys/class/infiniband/{name}/ports/1"
        self.put(f"{folder}/state", f"{state}\n")
        self.put(f"{folder}/phys_state", "5: LinkUp\n" if "ACTIVE" in state else "3: Disabled\n")
        self.put(f"{folder}/rate", f"{rate}\n")
        self.put(f"{folder}/link_layer", "InfiniBand\n")
        self.put(f"{folder}/counters/link_downed", f"{downed}\n")
        self.put(f"{folder}/counters/symbol_error", f"{errors}\n")

    def roce(self, name: str = "mlx5_0", *, device: str = "eth2", lost: int = 0) -> None:
        """A port whose link is Ethernet, after `nic`."""
        self.put(f"sys/class/infiniband/{name}/ports/1/link_layer", "Ethernet\n")
        self.put(f"sys/class/infiniband/{name}/ports/1/gid_attrs/ndevs/0", f"{device}\n")
        self.put(f"sys/class/net/{device}/carrier_down_count", f"{lost}\n")

    def amd(self, card: str = "card0", *, uncorrected: int = 0, waiting: int = 0, lanes: int = 16) -> None:
        device = f"sys/class/drm/{card}/device"
        self.put(f"{device}/vendor", "0x1002\n")
        self.put(f"{device}/ras/umc_err_count", f"ue: {uncorrected}\nce: 3\n")
        self.put(f"{device}/ras/gpu_vram_bad_pages", "".join(f"0x{page:08x} : 0x1000 : P\n" for page in range(waiting)))
        self.put(f"{device}/current_link_width", f"{lanes}\n")
        self.put(f"{device}/max_link_width", "16\n")

    def mount(self, target: str, kind: str) -> None:
        """A distributed file system that answers."""
        (self.root / target.lstrip("/")).mkdir(parents=True)
        with (self.root / "proc/self/mounts").open("a") as mounts:
            mounts.write(f"server:/export {target.replace(' ', chr(92) + '040')} {kind} rw 0 0\n")


def judged(verdict: Verdict, state: str, *words: str) -> None:
    assert verdict.state == state and all(word in verdict.reason for word in words), verdict
