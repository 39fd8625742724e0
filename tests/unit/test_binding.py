"""Where workers run: decided over made-up machines, and compared with what torch decides on the same ones."""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.stages.command_lines import error, host, told
from kit.stages.machines import Machine, put

from holdfast.agent.workers.launch import command, own_command
from holdfast.core.config.binding import Binding, Topology, bind, unbound
from holdfast.core.config.grammar import ranges
from holdfast.core.errors import UsageError
from holdfast.runtime.hardware.topology import members, read

MODES = ("node", "socket", "exclusive", "core-complex")
TWO_SOCKETS = Machine()
"""Cores 0-7 on node 0, 8-15 on node 1, each four behind one cache; their second threads are 16 more."""


def seen(machine: Machine, root: Path, mode: str, allowed: frozenset[int] | None = None, **environ: str) -> Topology:
    """The machine as our reader sees it."""
    machine.write(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda pid: set(machine.all_cpus if allowed is None else allowed))
        return read(mode, environ, str(root))


def cpus(bindings: dict[int, Binding]) -> list[str]:
    return [ranges(binding.cpus) for binding in bindings.values()]


# --- the modes, on one machine --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "where"),
    [
        ("node", ["0-7,16-23", "0-7,16-23", "8-15,24-31", "8-15,24-31"]),
        ("exclusive", ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]),
        ("core-complex", ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]),
    ],
)
def test_each_worker_is_near_its_gpu(tmp_path, mode, where):
    bindings = bind(mode, 4, seen(TWO_SOCKETS, tmp_path, mode))
    assert cpus(bindings) == where
    assert all(binding.memory is None and not binding.prefix for binding in bindings.values())


def test_a_socket_is_all_its_nodes(tmp_path):
    quarters = Machine(nodes=2, gpus=(1, 3))
    assert cpus(bind("socket", 2, seen(quarters, tmp_path, "socket"))) == ["0-15,32-47", "16-31,48-63"]
    assert cpus(bind("node", 2, seen(quarters, tmp_path, "node"))) == ["8-15,40-47", "24-31,56-63"]


def test_cores_left_over_go_to_the_first_gpus(tmp_path):
    uneven = Machine(sockets=1, caches=1, cores=5, threads=1, gpus=(0, 0, 0))
    assert cpus(bind("exclusive", 3, seen(uneven, tmp_path, "exclusive"))) == ["0-1", "2-3", "4"]


def test_with_fewer_cores_than_gpus_nobody_can_have_its_own(tmp_path):
    topology = seen(Machine(gpus=(0, 0, 0)), tmp_path, "exclusive", allowed=frozenset((0, 1, 16)))
    with pytest.raises(UsageError, match="NUMA node 0 has 2 usable physical cores, for 3 GPUs"):
        bind("exclusive", 3, topology)


def test_the_largest_cache_goes_first_and_gpus_share_when_there_are_more_of_them(tmp_path):
    topology = seen(Machine(gpus=(0, 0, 0)), tmp_path, "core-complex", allowed=frozenset((0, 4, 5)))
    assert cpus(bind("core-complex", 3, topology)) == ["4-5", "0", "4-5"]


def test_only_cpus_that_we_may_use_are_given(tmp_path):
    assert cpus(bind("node", 1, seen(TWO_SOCKETS, tmp_path, "node", allowed=frozenset((2, 3, 9))))) == ["2-3"]
    with pytest.raises(UsageError, match="no CPU of NUMA node 1, where GPU 2 is, may be used"):
        bind("node", 3, seen(TWO_SOCKETS, tmp_path, "node", allowed=frozenset((2, 3))))


def test_more_workers_than_gpus_have_nothing_to_be_near_to(tmp_path):
    with pytest.raises(UsageError, match="2 workers, but no GPUs are visible"):
        bind("node", 2, seen(Machine(gpus=()), tmp_path, "node"))


# --- which GPU is which ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "homes"),
    [("", ()), ("2,0", (1, 0)), ("GPU-3333,GPU-0", (1, 0)), ("MIG-40f6", (None,)), ("3,GPU-0000-77aa", (1, 0))],
)
def test_gpus_are_counted_as_cuda_shows_them(tmp_path, visible, homes):
    assert seen(TWO_SOCKETS, tmp_path, "node", CUDA_VISIBLE_DEVICES=visible).gpus == homes


def test_a_container_sees_some_of_the_hosts_gpus(tmp_path):
    TWO_SOCKETS.write(tmp_path)
    for gpu in (0, 1, 3):
        (tmp_path / f"dev/nvidia{gpu}").unlink()
    assert read("node", {}, str(tmp_path)).gpus == (1,)


def test_amd_and_intel_gpus_have_addresses_too(tmp_path):
    amd, intel = tmp_path / "amd", tmp_path / "intel"
    for node, minor, at in ((0, 0, 0), (1, 128, 0xC100), (2, 129, 0x4308)):
        simd = 304 if minor else 0
        said = f"simd_count {simd}\ndrm_render_minor {minor}\ndomain 1\nlocation_id {at}"
        put(amd, f"sys/class/kfd/kfd/topology/nodes/{node}/properties", said)
        put(amd, f"dev/dri/renderD{minor}", "")
    put(amd, "sys/bus/pci/devices/0001:c1:00.0/numa_node", "1")
    put(amd, "sys/bus/pci/devices/0001:43:01.0/numa_node", "0")
    assert read("node", {}, str(amd)).gpus == (1, 0)
    assert read("node", {"HIP_VISIBLE_DEVICES": "1"}, str(amd)).gpus == (0,)
    device = intel / "sys/bus/pci/devices/0000:29:00.0"
    put(device, "vendor", "0x8086")
    put(device, "numa_node", "1")
    put(intel, "dev/dri/renderD128", "")
    link = intel / "sys/class/drm/renderD128/device"
    link.parent.mkdir(parents=True)
    link.symlink_to(device)
    assert read("node", {}, str(intel)).gpus == (1,)


def test_a_host_that_shows_nothing_has_nothing(tmp_path):
    topology = read("socket", {}, str(tmp_path))
    assert topology.nodes == {} and topology.gpus == ()
    assert bind("auto", 2, topology) == {}


# --- auto -----------------------------------------------------------------------------------------------------------------


def test_auto_binds_cpus_and_memory(tmp_path):
    topology = seen(TWO_SOCKETS, tmp_path, "auto")
    assert [(ranges(b.cpus), b.memory) for b in bind("auto", 3, topology).values()] == [
        ("0-7,16-23", 0),
        ("0-7,16-23", 0),
        ("8-15,24-31", 1),
    ]
    assert [b.memory for b in bind("auto", 3, topology, strict=False).values()] == [None, None, None]


def test_auto_spreads_workers_without_gpus(tmp_path):
    assert [b.memory for b in bind("auto", 4, seen(Machine(gpus=()), tmp_path, "auto")).values()] == [0, 0, 1, 1]


def test_auto_leaves_alone_what_it_knows_nothing_of(tmp_path):
    topology = seen(Machine(gpus=(-1, 1)), tmp_path, "auto")
    bindings = bind("auto", 2, topology)
    assert list(bindings) == [1] and bindings[1].memory == 1
    assert unbound(2, topology, bindings) == (
        "no NUMA node with CPUs that we may use is known to be near the GPU of local rank 0; left unbound"
    )
    assert unbound(1, topology, {1: bindings[1]}) == ""


def test_one_node_leaves_nothing_to_choose(tmp_path):
    topology = seen(Machine(sockets=1, gpus=(0, 0)), tmp_path, "auto")
    assert bind("auto", 2, topology) == {}
    assert unbound(2, topology, {}) == "there is one NUMA node, so there is nothing to choose"


# --- any machine ----------------------------------------------------------------------------------------------------------


@st.composite
def machines(draw: st.DrawFn) -> tuple[Machine, frozenset[int]]:
    """A machine, and the CPUs that we may use of it; each node has some."""
    few = lambda most: draw(st.integers(1, most))
    shape = dict(sockets=few(2), nodes=few(2), caches=few(2), cores=few(3), threads=few(2))
    nodes = shape["sockets"] * shape["nodes"]
    gpus = draw(st.lists(st.integers(-1, nodes - 1), min_size=1, max_size=5))
    machine = Machine(**shape, gpus=tuple(gpus))
    spared = draw(st.sets(st.sampled_from(machine.all_cpus), max_size=len(machine.all_cpus) // 2))
    kept = {machine.node_cpus(node)[0] for node in range(nodes)}
    return machine, frozenset(machine.all_cpus) - (spared - kept)


ANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@ANY
@given(machines(), st.sampled_from((*MODES, "auto")))
def test_whatever_the_machine_every_worker_has_cpus_that_it_may_use(tmp_path_factory, drawn, mode):
    machine, allowed = drawn
    topology = seen(machine, tmp_path_factory.mktemp("sysfs"), mode, allowed)
    nproc = len(machine.gpus)
    try:
        bindings = bind(mode, nproc, topology)
    except UsageError as error:
        assert mode == "exclusive" and "physical cores" in error.what
        return
    assert mode == "auto" or set(bindings) == set(range(nproc))
    assert all(binding.cpus and allowed.issuperset(binding.cpus) for binding in bindings.values())
    assert bool(unbound(nproc, topology, bindings)) == (len(bindings) < nproc)
    if mode == "exclusive":
        given_out = [cpu for binding in bindings.values() for cpu in binding.cpus]
        assert len(given_out) == len(set(given_out))
        for binding in bindings.values():
            assert all(set(machine.alike(cpu, 1)) & allowed <= set(binding.cpus) for cpu in binding.cpus)


@pytest.mark.torch
@ANY
@given(machines(), st.sampled_from(MODES))
def test_whatever_the_machine_torch_decides_the_same(tmp_path_factory, drawn, mode):
    machine, allowed = drawn
    root = tmp_path_factory.mktemp("sysfs")
    topology = seen(machine, root, mode, allowed)
    with pytest.MonkeyPatch.context() as patch:
        theirs = torchs(patch, machine, root, allowed, mode)
        try:
            expected = [frozenset(theirs(gpu)) for gpu in range(len(machine.gpus))]
        except RuntimeError as error:
            assert "physical cores" in str(error)
            with pytest.raises(UsageError):
                bind(mode, len(machine.gpus), topology)
            return
    assert [frozenset(binding.cpus) for binding in bind(mode, len(machine.gpus), topology).values()] == expected


def torchs(patch, machine, root, allowed, mode):
    """torch's own decision about a GPU, on a machine whose files lie below `root`."""
    binding = pytest.importorskip("torch.numa.binding", reason="PyTorch is not installed")
    properties = lambda gpu: SimpleNamespace(pci_domain_id=0, pci_bus_id=int(machine.address(gpu)[5:7], 16), pci_device_id=0)
    cuda = SimpleNamespace(device_count=lambda: len(machine.gpus), get_device_properties=properties)
    patch.setattr(binding, "torch", SimpleNamespace(cuda=cuda))
    patch.setattr(binding, "open", lambda path: StringIO(Path(f"{root}{path}").read_text()), raising=False)
    shown = SimpleNamespace(path=os.path, sched_getaffinity=lambda pid: allowed)
    shown.listdir = lambda path: os.listdir(f"{root}{path}")
    patch.setattr(binding, "os", shown)
    patch.setattr(binding, "shutil", SimpleNamespace(which=lambda name: "/usr/bin/numactl"))
    options = binding.NumaOptions(binding.AffinityMode(mode))
    return lambda gpu: binding._get_validated_logical_cpus_to_bind_to(gpu_index=gpu, numa_options=options)


@given(st.frozensets(st.integers(0, 300)))
def test_cpus_are_listed_as_the_kernel_lists_them(some):
    assert members(ranges(some)) == some


# --- what the command line says -------------------------------------------------------------------------------------------

NEAR = Topology(nodes={0: frozenset((0, 1)), 1: frozenset((2, 3))}, allowed=frozenset(range(4)), gpus=(0, 1))
TWO_RANKS = ("--nproc-per-node", "2")


def test_the_configuration_says_where_each_worker_runs_and_why():
    resolved = told(*TWO_RANKS, "--numa-binding", "node", on=host(topology=NEAR))
    assert cpus(resolved.config.bindings) == ["0-1", "2-3"]
    assert resolved.origins["bindings"] == "derived: --numa-binding node"
    assert "bindings" not in told(*TWO_RANKS).origins


def test_a_mode_that_cannot_be_had_is_an_error_unless_the_user_prefers_to_go_without():
    assert "no GPUs are visible" in error(*TWO_RANKS, "--numa-binding", "node")
    resolved = told(*TWO_RANKS, "--numa-binding", "node", "--numa-fallback")
    assert resolved.config.bindings == {}
    assert "going on without binding" in resolved.notices[-1].text and resolved.notices[-1].level == "WARNING"


def test_what_auto_cannot_have_is_one_line():
    resolved = told(*TWO_RANKS, "--numa-binding", "auto")
    assert [notice.text for notice in resolved.notices] == [
        "--numa-binding auto: there is one NUMA node, so there is nothing to choose"
    ]


def test_gpus_per_numa_wraps_workers_with_numactl():
    resolved = told("--nproc-per-node", "4", env={"NVRX_GPUS_PER_NUMA": "2"}, on=host(programs=("numactl",)))
    assert [binding.prefix for binding in resolved.config.bindings.values()] == [
        ("numactl", "--cpunodebind=0", "--membind=0"),
        ("numactl", "--cpunodebind=0", "--membind=0"),
        ("numactl", "--cpunodebind=1", "--membind=1"),
        ("numactl", "--cpunodebind=1", "--membind=1"),
    ]


def test_gpus_per_numa_that_asks_for_more_nodes_than_there_are_is_told_so():
    here = host(programs=("numactl",), topology=Topology(nodes={0: frozenset({0})}, allowed=frozenset({0})))
    [notice] = told("--nproc-per-node", "8", env={"NVRX_GPUS_PER_NUMA": "4"}, on=here).notices
    assert notice.text == "NVRX_GPUS_PER_NUMA=4: there is NUMA node 0 here, none for local rank 4-7: numactl will refuse"


def test_memory_that_is_not_bound_strictly_comes_from_where_the_thread_runs():
    given = {"env": {"NVRX_GPUS_PER_NUMA": "2"}, "on": host(programs=("numactl",))}
    [binding] = told("--ft-numa-bind-strict", "false", **given).config.bindings.values()
    assert binding.prefix == ("numactl", "--cpunodebind=0", "--localalloc")


def test_gpus_per_numa_without_numactl_fails_and_names_the_package():
    said = error(*TWO_RANKS, env={"NVRX_GPUS_PER_NUMA": "2"})
    assert "NVRX_GPUS_PER_NUMA: workers are bound by numactl, which is not on PATH" in said
    assert "apt-get install numactl" in said and "yum install numactl" in said


@pytest.mark.parametrize("wrong", ["0", "two"])
def test_gpus_per_numa_is_a_number(wrong):
    assert "NVRX_GPUS_PER_NUMA" in error(env={"NVRX_GPUS_PER_NUMA": wrong}, on=host(programs=("numactl",)))


def test_the_flag_goes_before_the_variable():
    resolved = told(*TWO_RANKS, "--numa-binding", "node", env={"NVRX_GPUS_PER_NUMA": "2"}, on=host(topology=NEAR))
    assert cpus(resolved.config.bindings) == ["0-1", "2-3"]
    assert any("NVRX_GPUS_PER_NUMA is ignored" in notice.text for notice in resolved.notices)


def test_the_failure_box_names_the_script_and_not_what_binds_it() -> None:
    made = told("--nproc-per-node", "2", env={"NVRX_GPUS_PER_NUMA": "2"}, on=host(programs=("numactl",))).config
    assert command(made, 0)[0] == "numactl" and own_command(made, 0) == command(made, 0)[3:]
