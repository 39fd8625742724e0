"""Workers run where they were told to: numactl as ft_launcher calls it, and CPUs and memory as --numa-binding finds them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit import SCRIPTS

from holdfast.core.config.binding import Binding
from holdfast.core.errors import StartError
from holdfast.runtime.hardware.affinity import bound

PROBE = SCRIPTS / "on_machine.py"
SHOW = """
import os, json
policy = open("/proc/self/numa_maps").readline().split()[1] if os.path.exists("/proc/self/numa_maps") else "default"
line = {"rank": os.environ["RANK"], "cpus": sorted(os.sched_getaffinity(0)), "memory": policy}
os.write(1, (json.dumps(line) + "\\n").encode())
"""
RECORDING = """#!/bin/sh
echo "$@" >> {record}
while [ "${{1#--}}" != "$1" ]; do shift; done
exec "$@"
"""


def shown(output: str) -> list[dict[str, object]]:
    return sorted((json.loads(line) for line in output.splitlines() if line.startswith("{")), key=lambda line: line["rank"])


@pytest.fixture
def numactl(tmp_path: Path) -> Path:
    """A `numactl` that notes what it was asked and becomes the program; the file it notes it in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    record = tmp_path / "numactl.log"
    tool = folder / "numactl"
    tool.write_text(RECORDING.format(record=record))
    tool.chmod(0o755)
    return record


def with_tool(record: Path, **env: str) -> dict[str, str]:
    return {"PATH": f"{record.parent / 'bin'}:{os.environ['PATH']}", **env}


def test_gpus_per_numa_starts_each_worker_through_numactl_again_and_again(holdfast, script, numactl, tmp_path):
    once = tmp_path / "failed"
    train = script(
        f"import os, sys\nif os.environ['RANK'] == '3' and not os.path.exists({str(once)!r}):\n"
        f"    open({str(once)!r}, 'w').close()\n    sys.exit(3)\n"
    )
    words = ("--nproc-per-node", 4, "--max-restarts", 1, train)
    ran = holdfast.run("run", *words, env=with_tool(numactl, NVRX_GPUS_PER_NUMA="2"))
    assert ran.returncode == 0, ran.output
    asked = [line.partition(sys.executable)[:2] for line in numactl.read_text().splitlines()]
    near = [(f"--cpunodebind={node} --membind={node} ", sys.executable) for node in (0, 0, 1, 1)]
    assert sorted(asked) == sorted(near * 2)
    assert [event["argv"][:2] for event in holdfast.events("WorkerStarted")][:1] == [["numactl", "--cpunodebind=0"]]


def test_programs_that_are_not_python_are_bound_too(holdfast, numactl):
    ran = holdfast.run("run", "--no-python", "/bin/true", env=with_tool(numactl, NVRX_GPUS_PER_NUMA="1"))
    assert ran.returncode == 0, ran.output
    assert numactl.read_text() == "--cpunodebind=0 --membind=0 /bin/true\n"


def test_without_numactl_nothing_starts_and_the_package_is_named(holdfast, script, tmp_path):
    ran = holdfast.run("run", script("print('it ran')"), env={"PATH": str(tmp_path), "NVRX_GPUS_PER_NUMA": "4"})
    assert ran.returncode == 2 and "it ran" not in ran.output
    assert "numactl, which is not on PATH" in ran.stderr and "apt-get install numactl" in ran.stderr


@pytest.mark.skipif(shutil.which("numactl") is None, reason="numactl is not installed")
def test_the_real_numactl_takes_these_words(holdfast, script):
    ran = holdfast.run("run", "--nproc-per-node", 2, script(SHOW), env={"NVRX_GPUS_PER_NUMA": "8"})
    if "Operation not permitted" in ran.output:
        pytest.skip("this container forbids set_mempolicy")
    assert ran.returncode == 0, ran.output
    assert [line["memory"] for line in shown(ran.stdout)] == ["bind:0", "bind:0"]


# --- --numa-binding, on a made-up machine of two NUMA nodes with one real CPU each -----------------------------------------


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    root = tmp_path / "machine"
    for node, cpu in enumerate(cpus):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpu}\n")
        gpu = root / f"sys/bus/pci/devices/0000:0{node}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "numa_node").write_text(f"{node}\n")
        (root / f"proc/driver/nvidia/gpus/0000:0{node}:00.0").mkdir(parents=True)
    return root


def on(root: Path, holdfast, *words: object) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, str(PROBE), str(root), *map(str, words))
    env = os.environ | {"HOLDFAST_STATE_DIR": str(holdfast.state_dir), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_a_worker_runs_on_the_cpus_near_its_gpu_without_numactl(holdfast, script, two_nodes):
    cpus = sorted(os.sched_getaffinity(0))[:2]
    ran = on(two_nodes, holdfast, "run", "--nproc-per-node", 2, "--numa-binding", "node", script(SHOW))
    assert ran.returncode == 0, ran
    assert [(line["cpus"], line["memory"]) for line in shown(ran.stdout)] == [([cpu], "default") for cpu in cpus]


def test_auto_binds_memory_too_and_says_where_it_cannot(holdfast, script, two_nodes):
    ran = on(two_nodes, holdfast, "run", "--nproc-per-node", 2, "--numa-binding", "auto", script(SHOW))
    assert ran.returncode == 0, ran
    first, second = shown(ran.stdout)
    assert [len(first["cpus"]), len(second["cpus"])] == [1, 1] and first["cpus"] != second["cpus"]
    if not os.path.exists("/sys/devices/system/node/node1"):  # then rank 1's memory cannot be bound, and that is said once
        assert ran.stderr.count("their memory is not bound") == 1 and second["memory"] == "default"
    if "Operation not permitted" not in ran.stderr and os.path.exists("/proc/self/numa_maps"):
        assert first["memory"] == "bind:0"


def test_the_plan_shows_where_workers_would_run(holdfast, script, two_nodes):
    cpus = sorted(os.sched_getaffinity(0))[:2]
    words = ("run", "--nproc-per-node", 2, "--numa-binding", "auto")
    plan = on(two_nodes, holdfast, *words, "--dry-run", script("")).stdout
    for node, cpu in enumerate(cpus):
        assert f"  bound to CPUs {cpu} and the memory of NUMA node {node}\n" in plan
    told = json.loads(on(two_nodes, holdfast, *words, "--print-config=json", script("")).stdout)
    assert told["bindings"] == {
        "value": {str(node): {"cpus": [cpu], "memory": node, "prefix": []} for node, cpu in enumerate(cpus)},
        "origin": "derived: --numa-binding auto",
    }


@pytest.mark.torch  # whose logs specs they are
def test_another_packages_logs_specs_are_no_reason_to_run_unbound(holdfast, script, two_nodes):
    cpus = sorted(os.sched_getaffinity(0))[:2]
    words = ("run", "--nproc-per-node", 2, "--numa-binding", "node", "--logs-specs", "default")
    ran = on(two_nodes, holdfast, *words, script(SHOW))
    assert ran.returncode == 0, ran
    assert [line["cpus"] for line in shown(ran.stdout)] == [[cpu] for cpu in cpus]


def test_this_machine_as_it_is(holdfast, script):
    """Whatever it has, `auto` never costs the job."""
    ran = holdfast.run("run", "--nproc-per-node", 2, "--numa-binding", "auto", script(SHOW))
    assert ran.returncode == 0 and len(shown(ran.stdout)) == 2, ran.output
    nodes = [name for name in os.listdir("/sys/devices/system/node") if name.startswith("node")]
    if len(nodes) == 1:
        assert "--numa-binding auto: there is one NUMA node, so there is nothing to choose" in ran.stderr


def test_who_starts_a_bound_worker_is_not_bound_itself():
    def own() -> tuple[set[int], str]:
        return os.sched_getaffinity(0), Path("/proc/thread-self/numa_maps").read_text().split(maxsplit=2)[1]

    if not os.path.exists("/proc/thread-self/numa_maps"):
        pytest.skip("this kernel does not show memory policies")
    before, said = own(), []
    cpu = min(before[0])
    during = bound(Binding(cpus=(cpu,), memory=0), own, said.append)
    assert during[0] == {cpu} and (said or during[1] == "bind:0")
    assert own() == before
    with pytest.raises(StartError, match="cannot run on CPUs 9999"):
        bound(Binding(cpus=(9999,)), own, said.append)
    assert own() == before
