"""What does each check find? On a made-up host, in a process of its own, as a job would run it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from kit import KIT
from kit.hosts import fuse
from kit.hosts.checked_host import CheckedHost, See, judged

from holdfast.core.errors import UsageError
from holdfast.core.value import replace
from holdfast.health.check import CHECKS, Check, Look, Wanted, wanted
from holdfast.health.checks.host import clock
from holdfast.health.runner import Examination
from holdfast.health.verdict import DEGRADED, FIT, UNFIT, Verdict
from holdfast.runtime.process import process


@pytest.fixture
def host(tmp_path: Path) -> CheckedHost:
    return CheckedHost(tmp_path / "host")


@pytest.fixture
def see(host: CheckedHost) -> See:
    return host.verdict


def test_a_healthy_host_is_fit_by_every_check_that_needs_no_argument(host, see):
    for check in CHECKS:
        if not check.needs_argument and check.name not in ("kubernetes", "gpud", "dcgm"):
            judged(see(check.name), FIT)


# --- host -------------------------------------------------------------------------------------------------------------------


def test_memory_that_is_nearly_full(host, see):
    host.put("proc/meminfo", "MemTotal:  1048576 kB\nMemAvailable:  10000 kB\n")
    judged(see("memory"), UNFIT, "1 % of 1 GiB free")
    judged(see("memory=0.5"), FIT)


def test_memory_of_our_cgroup(host, see):
    host.put("proc/self/cgroup", "0::/job.slice\n")
    host.put("sys/fs/cgroup/job.slice/memory.max", str(100 << 20))
    host.put("sys/fs/cgroup/job.slice/memory.current", str(99 << 20))
    judged(see("memory"), UNFIT, "1 % of our cgroup")
    host.put("sys/fs/cgroup/job.slice/memory.stat", f"inactive_file {50 << 20}\n")
    judged(see("memory"), FIT, "51 % of our cgroup")
    host.put("proc/self/cgroup", "0::/job.slice/step/task\n")
    host.put("sys/fs/cgroup/job.slice/step/memory.max", "max")
    judged(see("memory"), FIT, "51 % of our cgroup")


def test_processes_of_the_cgroups_that_we_are_in(host, see):
    host.put("proc/self/cgroup", "0::/job.slice/step\n")
    host.put("sys/fs/cgroup/job.slice/step/pids.max", "max")
    host.put("sys/fs/cgroup/job.slice/pids.max", "1000")
    host.put("sys/fs/cgroup/job.slice/pids.current", "900")
    assert see("files").state == FIT
    host.put("sys/fs/cgroup/job.slice/pids.current", "990")
    judged(see("files"), UNFIT, "990 processes and threads of at most 1000 in our cgroup /sys/fs/cgroup/job.slice")


def test_file_handles_and_processes_that_run_out(host, see):
    host.put("proc/sys/fs/file-nr", "99000\t0\t100000\n")
    judged(see("files"), UNFIT, "1.0 % of the host's 100000 file handles")
    host.put("proc/sys/fs/file-nr", "1000\t0\t100000\n")
    host.put("proc/loadavg", "0.1 0.1 0.1 1/32000 4711\n")
    judged(see("files"), UNFIT, "32000 processes")


def test_a_clock_that_is_off(host, see):
    host.put("run/chrony-tracking.csv", "A9FEA97B,time,3,1700000000.0,0.003,0.0,0.0,0,0,0,0,0,0,Normal\n")
    judged(see("clock"), FIT, "3.0 ms")
    host.put("run/chrony-tracking.csv", "A9FEA97B,time,3,1700000000.0,-7.5,0.0,0.0,0,0,0,0,0,0,Normal\n")
    judged(see("clock"), DEGRADED, "7500.0 ms ahead")
    judged(see("clock=10"), FIT)


# --- the kernel's log -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "state", "word"),
    [
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400", UNFIT, "machine check"),
        ("mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 7: ac00000000010090", DEGRADED, "machine check"),
        ("{1}[Hardware Error]: event severity: fatal", UNFIT, "fatal hardware error"),
        ("{1}[Hardware Error]: event severity: recoverable", DEGRADED, "recovered"),
        ("nvme nvme3: Removing after probe failure status: -19", UNFIT, "NVMe disk is gone"),
        ("nvme nvme3: Disabling device after reset failure: -19", UNFIT, "NVMe disk is gone"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", UNFIT, "memory error"),
        ("Memory failure: 0x3f2d40: recovery action for dirty page: Failed", UNFIT, "memory error"),
        ("pcieport 0000:80:01.0: AER: Uncorrectable (Fatal) error message received", UNFIT, "PCI bus"),
        ("EXT4-fs (nvme0n1p1): Remounting filesystem read-only", UNFIT, "read-only"),
        ("XFS (nvme1n1): Metadata corruption detected at xfs_agf_read_verify", UNFIT, "corrupt"),
        ("BUG: unable to handle page fault for address: 0000000000001234", UNFIT, "crashed"),
        ("mlx5_core 0000:3b:00.0: device's health compromised - reached miss count", UNFIT, "NIC"),
        ("mce: [Hardware Error]: Machine check events logged", DEGRADED, "machine check"),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", DEGRADED, "corrected"),
        ("blk_update_request: I/O error, dev nvme0n1, sector 123 op 0x0:(READ)", DEGRADED, "disk"),
        ("critical medium error, dev sda, sector 123 op 0x0:(READ) flags 0x80700", DEGRADED, "disk"),
        ("INFO: task python:4711 blocked for more than 120 seconds.", DEGRADED, "hangs"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]", DEGRADED, "stuck"),
        ("Out of memory: Killed process 4711 (python) total-vm:100kB", DEGRADED, "lack of memory"),
        ("nfs: server filer1 not responding, still trying", DEGRADED, "storage server"),
        ("pcieport 0000:80:01.0: AER: Uncorrectable (Non-Fatal) error message received", DEGRADED, "PCI bus"),
        ("mce: CPU12: Package temperature above threshold, cpu clock throttled (total events = 1)", DEGRADED, "temperature"),
    ],
)
def test_what_the_kernel_says_against_the_host(host, see, line, state, word):
    host.say(line)
    judged(see("kernel-log"), state, word)


def test_what_the_kernel_said_long_ago_is_forgotten(host, see):
    host.say("Out of memory: Killed process 4711 (python)", age_s=700)
    host.say("EXT4-fs (nvme0n1p1): Remounting filesystem read-only", age_s=4000)
    judged(see("kernel-log"), FIT)


def test_many_lines_of_one_kind_are_one_finding(host, see):
    for _ in range(50):
        host.say("blk_update_request: I/O error, dev nvme0n1, sector 123")
    judged(see("kernel-log"), DEGRADED, "(50 times)")


RECOVERY = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed"


@pytest.mark.parametrize(
    ("line", "age_s", "state", "word"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', GPU has fallen off the bus.", 9000, UNFIT, "0000:9b:00: Xid 79"),
        ("NVRM: Xid (PCI:0000:9b:00): 95, pid=1, Uncontained ECC error", 60, UNFIT, "Xid 95"),
        ("NVRM: Xid (PCI:0000:9b:00): 95, pid=1, Uncontained ECC error", 4000, FIT, "1 Xid"),
        ("NVRM: Xid (0000:03:00): 74, NVLink: fatal error detected on link 3", 60, UNFIT, "Xid 74"),
        ("NVRM: Xid (PCI:0000:9b:00): 31, pid=4711, name=python, MMU Fault", 1, FIT, "none that matters"),
        ("NVRM: Xid (PCI:0000:9b:00): 63, Row remapping event", 60, DEGRADED, "Xid 63"),
        (f"{RECOVERY} from 0x0 (None) to 0x2 (Node Reboot Required)", 9000, UNFIT, "154"),
        (f"{RECOVERY} from 0x1 (GPU Reset Required) to 0x3 (Drain P2P)", 60, DEGRADED, "154"),
        (f"{RECOVERY} from 0x2 (Node Reboot Required) to 0x0 (None)", 60, FIT, "none that matters"),
        ("NVRM: Xid (PCI:0000:9b:00): 999, something new", 60, DEGRADED, "not in the catalogue"),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", 60, UNFIT, "SXid 20034"),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress", 60, DEGRADED, "SXid 12028"),
    ],
)
def test_an_xid_error_counts_by_what_helps_against_it(host, see, line, age_s, state, word):
    host.say(line, age_s=age_s)
    judged(see("xid"), state, word)


def test_only_the_last_word_about_what_a_gpu_needs_counts(host, see):
    host.say(f"{RECOVERY} from 0x0 (None) to 0x2 (Node Reboot Required)", age_s=9000)
    host.say(f"{RECOVERY.replace('9b', '3b')} from 0x0 (None) to 0x1 (GPU Reset Required)", age_s=60)
    host.say(f"{RECOVERY} from 0x2 (Node Reboot Required) to 0x0 (None)", age_s=50)
    verdict = see("xid")
    judged(verdict, UNFIT, "0000:3b:00")
    assert "9b" not in verdict.reason


def test_each_device_that_fails_is_named_with_its_number(host, see):
    host.say("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", age_s=60)
    host.say("NVRM: Xid (PCI:0000:9b:00): 95, pid=1, Uncontained ECC error", age_s=60)
    host.say("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", age_s=60)
    found = [(one.device, one.xid) for one in see("xid").devices]
    assert found == [("0000:3b:00", 79), ("0000:9b:00", 95), ("NVSwitch 0000:05:00.0", 0)]


def test_a_log_that_cannot_be_read_is_not_held_for_a_good_one(host, see):
    (host.root / "dev/kmsg").unlink()
    judged(see("xid"), DEGRADED, "not known")


# --- NICs and AMD GPUs ------------------------------------------------------------------------------------------------------


def looks(host: CheckedHost, word: str, *changes: Callable[[], None]) -> list[Verdict]:
    """One look, then one after each change, each told what the last one kept."""
    (one,) = wanted([word], str(host.root))
    found: list[Verdict] = []
    for change in (lambda: None, *changes):
        change()
        module, _, name = one.check.target.partition(":")
        from importlib import import_module

        from holdfast.health.check import Look

        before = found[-1].keep if found else {}
        found.append(getattr(import_module(module), name)(Look(argument=one.argument, root=str(host.root), before=before)))
    return found


def test_a_port_that_was_active_and_is_no_more(host):
    host.nic("mlx5_0")
    host.nic("mlx5_1", state="1: DOWN")
    first, down, up = looks(
        host, "nic", lambda: host.nic("mlx5_0", state="1: DOWN"), lambda: host.nic("mlx5_0", state="4: ACTIVE")
    )
    judged(first, FIT, "1 of 2 ports")
    judged(down, UNFIT, "mlx5_0/1 is DOWN and was ACTIVE")
    judged(up, FIT)


def test_a_port_that_stays_down_stays_unfit(host):
    host.nic("mlx5_0")
    down = lambda: host.nic("mlx5_0", state="1: DOWN")
    assert [verdict.state for verdict in looks(host, "nic", down, down, down)] == [FIT, UNFIT, UNFIT, UNFIT]


def test_a_link_that_was_lost_between_two_looks(host):
    host.nic(downed=3)
    first, lost, later = looks(host, "nic", lambda: host.nic(downed=5), lambda: None)
    judged(first, FIT)
    judged(lost, UNFIT, "lost its link 2 times")
    judged(later, FIT)


def test_a_roce_port_that_was_down_for_a_moment_between_two_looks(host):
    host.nic()
    host.roce(lost=1)
    first, lost, later = looks(host, "nic", lambda: host.roce(lost=4), lambda: None)
    judged(first, FIT)
    judged(lost, UNFIT, "lost its link 3 times")
    judged(later, FIT)


def test_many_errors_of_a_port_between_two_looks_and_a_few(host):
    host.nic(errors=50)
    first, few, burst = looks(host, "nic", lambda: host.nic(errors=150), lambda: host.nic(errors=251))
    judged(first, FIT)
    judged(few, FIT)
    judged(burst, DEGRADED, "had 101 errors since the last look")


def test_lost_links_are_counted_where_ft_launcher_s_template_says(host):
    host.nic()
    host.put("other/mlx5_0/downed", "1\n")
    first, lost = looks(host, "nic=:/other/{nic}/downed", lambda: host.put("other/mlx5_0/downed", "2\n"))
    judged(first, FIT)
    judged(lost, UNFIT, "lost its link 1 times")


def test_a_link_that_has_become_slower_and_a_nic_that_is_gone(host):
    host.nic("mlx5_0")
    host.nic("mlx5_1")

    def unplug() -> None:
        os.rename(host.root / "sys/class/infiniband/mlx5_1", host.root / "gone")

    _, slow, gone = looks(host, "nic", lambda: host.nic("mlx5_0", rate="100 Gb/sec (4X EDR)"), unplug)
    judged(slow, DEGRADED, "100 Gb/s, and was at 400")
    judged(gone, UNFIT, "mlx5_1/1 is gone")


def test_a_host_none_of_whose_ports_is_active(host, see):
    host.nic(state="1: DOWN")
    judged(see("nic"), UNFIT, "none of 1 ports")


def test_ports_are_looked_for_where_ft_launcher_s_templates_say(host, see):
    host.nic(state="1: DOWN")
    host.put("other/mlx5_0/state", "4: ACTIVE\n")
    judged(see("nic=/other/{nic}/state"), FIT, "1 of 1")


def test_such_a_path_may_have_the_address_of_a_pci_device(host):
    host.nic(state="1: DOWN")
    host.put("pci/0000:3b:00.0/mlx5_0/state", "4: ACTIVE\n")
    host.put("pci/0000:3b:00.0/mlx5_0/downed", "1\n")
    both = "nic=/pci/0000:3b:00.0/{nic}/state:/pci/0000:3b:00.0/{dev_name}/downed"
    first, lost = looks(host, both, lambda: host.put("pci/0000:3b:00.0/mlx5_0/downed", "2\n"))
    judged(first, FIT, "1 of 1")
    judged(lost, UNFIT, "lost its link 1 times")


def test_an_amd_gpu_with_errors(host, see):
    host.amd("card0")
    judged(see("amd"), FIT, "1 AMD GPU")
    host.amd("card1", uncorrected=2)
    judged(see("amd"), UNFIT, "card1: 2 errors of umc")
    host.amd("card1", waiting=4)
    judged(see("amd"), DEGRADED, "4 bad pages")
    host.amd("card1", lanes=8)
    judged(see("amd"), DEGRADED, "8 lanes, of 16")


# --- NVIDIA GPUs ------------------------------------------------------------------------------------------------------------

NVML = str(KIT / "hosts" / "nvml")


@pytest.mark.parametrize(
    ("gpus", "state", "word"),
    [
        ("{}|{}", FIT, "2 GPUs with 18 NVLinks"),
        ("{}|{'recovery': 1}", UNFIT, "GPU 1 needs a reset"),
        ("{'recovery': 2}", UNFIT, "GPU 0 needs the host restarted"),
        ("{'uncorrected': 5}", UNFIT, "5 uncorrected memory errors"),
        ("{'remapped': [0, 1, True, False]}", DEGRADED, "will remap"),
        ("{'remapped': [0, 1, True, True]}", UNFIT, "could not remap"),
        ("{'reasons': 0x40}", DEGRADED, "HwThermalSlowdown"),
        ("{'reasons': 0x80}", DEGRADED, "HwPowerBrakeSlowdown"),
        ("{'clock': 345, 'use': 99}", DEGRADED, "345 MHz, of 1980"),
        ("{'clock': 345, 'use': 0}", FIT, "1 GPU"),
        ("{}|{'links': 16}", UNFIT, "GPU 1 has 16 NVLinks up, of 18"),
        ("{'old_driver': True}", FIT, "1 GPU"),
        ("{'lost': True}", UNFIT, "GPU is lost"),
        ("none", UNFIT, "NVML does not start"),
    ],
)
def test_what_nvml_says_of_a_gpu(host, see, gpus, state, word):
    host.put("dev/nvidiactl", "")
    judged(see("gpu", PYTHONPATH=NVML, FAKE_GPUS=gpus), state, word)


def test_gpus_and_links_that_were_there_at_the_last_look(host, monkeypatch):
    host.put("dev/nvidiactl", "")
    made_up = spec_from_file_location("pynvml", f"{NVML}/pynvml.py")
    monkeypatch.setitem(sys.modules, "pynvml", nvml := module_from_spec(made_up))  # in whose place the real one may be by now
    made_up.loader.exec_module(nvml)
    gpus = lambda text: lambda: monkeypatch.setenv("FAKE_GPUS", text)
    gpus("{}|{}")()
    both, fewer_links, gone, still = looks(host, "gpu", gpus("{'links': 17}|{'links': 17}"), gpus("{}"), lambda: None)
    judged(both, FIT, "2 GPUs with 18 NVLinks")
    judged(fewer_links, UNFIT, "GPU 0 has 17 NVLinks up, of 18; GPU 1 has 17")
    judged(gone, UNFIT, "1 GPUs are here, and there were 2")
    judged(still, UNFIT, "1 GPUs are here, and there were 2")


def test_a_driver_that_hangs_costs_the_deadline_and_the_node_is_unfit(host, see):
    host.put("dev/nvidiactl", "")
    verdict = see("gpu", 1.0, PYTHONPATH=NVML, FAKE_GPUS="hangs")
    judged(verdict, UNFIT, "no answer within 1 s")


def test_nvml_made_up_has_only_names_that_the_real_one_has():
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install 'holdfast[nvidia]'")
    names = set(re.findall(r"\b(?:nvml|NVML)\w+", Path(NVML, "pynvml.py").read_text()))
    assert [name for name in names if not hasattr(real, name)] == ["nvmlReturn"], "which is a field of its answers"


def test_without_a_driver_there_is_nothing_to_check(host, see):
    judged(see("gpu", PYTHONPATH=NVML, FAKE_GPUS="none"), FIT, "does not apply")


# --- storage ----------------------------------------------------------------------------------------------------------------


def test_lustre_says_of_itself_that_it_is_not_healthy(host, see):
    host.put("sys/fs/lustre/health_check", "healthy\n")
    judged(see("mounts"), FIT, "Lustre is healthy")
    host.put("sys/fs/lustre/health_check", "device testfs-MDT0000 reported unhealthy\nNOT HEALTHY\n")
    judged(see("mounts"), UNFIT, "NOT HEALTHY")


def test_every_distributed_mount_is_touched(host, see):
    host.mount("/mnt/scratch disk", "lustre")
    host.mount("/mnt/home", "nfs4")
    host.mount("/mnt/local", "xfs")
    judged(see("mounts"), FIT, "2 distributed mounts answer")
    (host.root / "mnt/scratch disk").rmdir()
    judged(see("mounts"), UNFIT, "scratch disk: No such file")


def test_paths_are_read_listed_or_looked_at(tmp_path, see):
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    os.mkfifo(tmp_path / "fifo")
    judged(see(f"paths={tmp_path}/file:{tmp_path}:{tmp_path}/fifo"), FIT, "3 of 3")
    judged(see(f"paths={tmp_path}:{tmp_path}/gone"), UNFIT, "gone: No such file")
    with pytest.raises(UsageError, match="relative is not absolute"):
        see("paths=relative")


@pytest.fixture(params=[False, True], ids=["silent", "deaf"])
def silent(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A FUSE file system that stops answering; `deaf`: whoever asks it cannot even be killed."""
    if reason := fuse.why_not():
        pytest.skip(reason)
    (tmp_path / "silent").mkdir()
    mount = fuse.SilentMount(tmp_path / "silent", deaf=request.param)
    yield mount
    mount.close()


def test_a_mount_that_hangs_is_named_and_costs_its_deadline(silent, see, tmp_path):
    (tmp_path / "well").mkdir()
    verdict = see(f"paths={tmp_path}/well:{silent.path}", 2.0)
    judged(verdict, UNFIT, f"{silent.path}: no answer within 1.5 s")
    assert "well" not in verdict.reason


def test_a_mount_that_hangs_is_named_though_the_check_itself_begins_late(silent, see, script, tmp_path):
    script("import time\ntime.sleep(0.8)", "sitecustomize.py")  # a busy host
    verdict = see(f"paths={silent.path}", 2.0, PYTHONPATH=str(tmp_path))
    judged(verdict, UNFIT, f"{silent.path}: no answer within 1.5 s")


def test_a_distributed_mount_that_hangs_is_named_and_costs_its_deadline(host, see):
    """The check looks for its mounts by itself, and finds one that answers beside the one that does not."""
    if reason := fuse.why_not():
        pytest.skip(reason)
    host.mount("/mnt/home", "nfs4")
    host.mount("/mnt/silent", "nfs")
    mount = fuse.SilentMount(host.root / "mnt/silent", deaf=True)
    try:
        verdict = see("mounts", 2.0)
        judged(verdict, UNFIT, f"mount {mount.path}: no answer within 1.5 s")
        assert "home" not in verdict.reason
    finally:
        mount.close()


def test_a_mount_that_nobody_can_be_freed_of_costs_one_process_however_often_it_is_looked_at(tmp_path, wait_until):
    if reason := fuse.why_not():
        pytest.skip(reason)
    (tmp_path / "deaf").mkdir()
    mount = fuse.SilentMount(tmp_path / "deaf", deaf=True)
    try:
        examination = Examination(wanted([f"paths={mount.path}"]))
        (first,) = examination.take()
        judged(first, UNFIT, "no answer within 5 s")
        ((waiting, _),) = first.keep["stuck"].values()
        wait_until(lambda: process.state(waiting) == "D", what="that it, killed, sleeps in the kernel")
        looks = [examination.take()[0] for _ in range(2)]
        judged(looks[0], UNFIT, f"no answer yet to process {waiting}, which cannot be killed (state D")
        assert looks[0] == replace(looks[1], took_s=looks[0].took_s), "it is the same process"
    finally:
        mount.close()
    wait_until(lambda: not process.begun(waiting), what="its end, once the mount is gone")
    judged(examination.take()[0], FIT, "1 of 1")


# --- commands and the user's own checks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "state", "word"),
    [
        ("echo all is well", FIT, "all is well"),
        ("echo no; echo the fan stands still >&2; exit 1", UNFIT, "exit code 1: the fan stands still"),
        ("exit 1", UNFIT, "exit code 1"),
        ("exit 7", DEGRADED, "exit code 7"),
        ("kill -9 $$", DEGRADED, "killed by signal 9"),
        ("no-such-program-here", DEGRADED, "exit code 127"),
    ],
)
def test_a_command_s_exit_code_is_the_verdict(see, command, state, word):
    judged(see(f"command={command}"), state, word)


def test_a_command_that_does_not_end_is_killed_with_what_it_has_started(see, alive, wait_until):
    verdict = see("command=echo begun; sleep 1000 & wait", 0.5)
    judged(verdict, UNFIT, "no answer within 0.5 s")
    assert "command[deadline=" in verdict.advice
    wait_until(lambda: not alive(), what="the end of its processes")


MINE = """
import os, sys
from holdfast.health.verdict import fit, unfit
def prints(look):
    print("{\\"state\\": \\"unfit\\"}")
    return fit("not what it printed")
def breaks(look):
    raise RuntimeError("out of luck")
def leaves(look):
    os._exit(0)
def wrong(look):
    return True
def chatters(look):
    return unfit("GPU 5 is lost" + "x" * 2_000_000, "replace it" + "x" * 2_000_000)
def touches(look):
    os.listdir(look.argument)
"""


@pytest.fixture
def mine(script: Callable[..., Path], tmp_path: Path) -> Callable[..., Verdict]:
    """`mine("prints")`: the verdict of a function of the user's."""
    script(MINE, "mine.py")

    def look(name: str, argument: str = "", deadline_s: float = 15.0) -> Verdict:
        check = Check(name=name, target=f"mine:{name}", help="", deadline_s=deadline_s)
        asked, environ = [Wanted(check=check, argument=argument)], os.environ | {"PYTHONPATH": str(tmp_path)}
        (verdict,) = Examination(asked, environ=environ).take()
        return verdict

    return look


def test_what_a_check_prints_is_no_verdict(mine):
    judged(mine("prints"), FIT, "not what it printed")


def test_a_bad_node_stays_bad_however_much_a_check_says_of_it(mine):
    judged(mine("chatters"), UNFIT, "GPU 5 is lost")


def test_a_check_that_breaks_says_nothing_about_the_node(mine):
    judged(mine("breaks"), DEGRADED, "not known: RuntimeError: out of luck")
    judged(mine("leaves"), DEGRADED, "without an answer")
    judged(mine("wrong"), DEGRADED, "a check returns a Verdict")


def test_a_check_that_cannot_be_killed_is_left_alone_and_named(mine, tmp_path):
    if reason := fuse.why_not():
        pytest.skip(reason)
    (tmp_path / "deaf").mkdir()
    mount = fuse.SilentMount(tmp_path / "deaf", deaf=True)
    try:
        verdict = mine("touches", mount.path, 3.0)  # in which its process has surely come as far as the mount
        judged(verdict, UNFIT, "cannot be killed (state D")
        pid = int(verdict.reason.split("its process ")[1].split()[0])
        assert process.state(pid) == "D" and verdict.took_s >= 3.0, "it had its time, and the next one has no more of it"
    finally:
        mount.close()
        os.waitpid(pid, 0)


def test_a_check_of_another_package_is_found_by_its_entry_point(tmp_path, script, holdfast):
    script(MINE, "mine.py")
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[holdfast.checks]\nmine = mine:prints\n")
    done = holdfast("check", "mine", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0 and "not what it printed" in done.stdout, done.output
    assert "of mine:prints" in holdfast("check", "--list", env={"PYTHONPATH": str(tmp_path)}).stdout


# --- the scheduler's word ---------------------------------------------------------------------------------------------------

ARRAY = {"SLURM_ARRAY_JOB_ID": "123", "SLURM_ARRAY_TASK_ID": "7", "SLURM_JOB_ID": "130"}


def test_a_file_that_is_not_empty_marks_the_allocation_as_unhealthy(host, see):
    file = "shared/segment_health_check.123.7"
    host.put("shared/other", "")
    judged(see("segment=/shared", **ARRAY), FIT, "there is no")
    host.put(file, "")
    judged(see("segment=/shared", **ARRAY), FIT, "empty")
    host.put(file, "node07,DRAIN,gpu lost\nmore\n")
    judged(see("segment=/shared", **ARRAY), UNFIT, "node07,DRAIN,gpu lost")
    judged(see("segment=/shared", **ARRAY | {"SLURM_ARRAY_TASK_ID": "8"}), FIT)
    host.put("shared/segment_health_check.130.130", "gone")
    judged(see("segment=/shared", SLURM_JOB_ID="130"), UNFIT, "gone")
    judged(see("segment=/shared"), FIT, "does not apply")


def test_what_is_no_such_file_is_not_held_against_the_node(host, see):
    (host.root / "shared/segment_health_check.123.7").mkdir(parents=True)
    judged(see("segment=/shared", **ARRAY), DEGRADED, "no regular file")
    host.put("file", "")
    judged(see("segment=/file", **ARRAY), DEGRADED, "Not a directory")


def test_a_clock_that_differs_from_the_other_nodes(host):
    def off(ahead_s: float, error_s: float = 0.001) -> Verdict:
        return clock(Look(root=str(host.root), clock={"ahead_s": ahead_s, "error_s": error_s, "of": "most other nodes"}))

    judged(off(0.25), FIT, "250.0 ms ahead of most other nodes (± 1.0 ms)")
    judged(off(-2.0), DEGRADED, "the clock is 2000.0 ms behind most")
    judged(off(2.0, error_s=1.5), FIT)


@pytest.mark.parametrize("wrong", ["memory=lots", "clock=-1", "files=nan"])
def test_what_is_no_number_is_refused_before_anything_is_checked(wrong):
    with pytest.raises(UsageError, match="is not a number, 0 or more"):
        wanted([wrong])


def test_more_than_all_of_it_cannot_be_asked_for():
    with pytest.raises(UsageError, match="200 is more than 100 per cent"):
        wanted(["memory=200"])
    assert wanted(["clock=200"])[0].argument == "200"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--nnodes", "3"), "--nnodes: only with --pairs"),
        (("--pairs", "--nnodes", "1", "--rdzv-endpoint", "localhost:1"), "a pair has two nodes"),
    ],
)
def test_flags_of_the_pair_test_that_make_no_sense_are_refused(holdfast, flags, said):
    ended = holdfast("check", *flags)
    assert ended.returncode == 2 and said in ended.stderr
