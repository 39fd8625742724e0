"""GPUs are counted from what the drivers show in the file system; here that of made-up hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.hardware.gpus import count


def make(root: Path, *files: str, text: str = "") -> None:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def nvidia(tmp_path):
    """Eight GPUs."""
    make(tmp_path, *(f"dev/nvidia{n}" for n in range(8)), "dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-caps/nvidia-cap1")
    make(tmp_path, *(f"proc/driver/nvidia/gpus/0000:{n:02x}:00.0/information" for n in range(8)))
    return tmp_path


@pytest.fixture
def amd(tmp_path):
    """One CPU node and three GPUs, of which a container has been given two."""
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    make(nodes / "0", "properties", text="cpu_cores_count 64\nsimd_count 0\ndrm_render_minor 0\n")
    for node in (1, 2, 3):
        make(nodes / str(node), "properties", text=f"cpu_cores_count 0\nsimd_count 304\ndrm_render_minor {127 + node}\n")
    make(tmp_path, "dev/dri/renderD128", "dev/dri/renderD129", "dev/dri/card0")
    return tmp_path


@pytest.fixture
def intel(tmp_path):
    """Graphics inside the CPU, and two cards."""
    for name, address in (("renderD128", "0000:00:02.0"), ("renderD129", "0000:29:00.0"), ("renderD130", "0000:3a:00.0")):
        device = tmp_path / "sys/devices/pci" / address
        make(device, "vendor", text="0x8086\n")
        make(tmp_path, f"dev/dri/{name}")
        link = tmp_path / "sys/class/drm" / name / "device"
        link.parent.mkdir(parents=True)
        link.symlink_to(device)
    return tmp_path


def test_a_host_without_drivers_has_none(tmp_path):
    assert count("gpu", {}, str(tmp_path)) == count("xpu", {}, str(tmp_path)) == 0
    assert count("gpu", {"CUDA_VISIBLE_DEVICES": "0,GPU-1"}, str(tmp_path)) == 0


def test_nvidia_gpus_are_its_device_files(nvidia):
    assert count("gpu", {}, str(nvidia)) == 8
    assert count("xpu", {}, str(nvidia)) == 0


def test_a_container_has_only_the_files_it_was_given(nvidia):
    for n in range(1, 8):
        (nvidia / f"dev/nvidia{n}").unlink()
    assert count("gpu", {}, str(nvidia)) == 1


def test_device_files_may_not_have_been_made_yet(nvidia):
    for n in range(8):
        (nvidia / f"dev/nvidia{n}").unlink()
    assert count("gpu", {}, str(nvidia)) == 8


@pytest.mark.parametrize(
    ("visible", "left"),
    [
        ("0", 1), ("0,1, 5", 3), ("7,8", 1), ("", 0), ("-1", 0), ("NoDevFiles", 0), ("0,-1,2", 1), ("1,1", 0),
        ("GPU-5ebe9f43,GPU-aa", 2), ("MIG-40f62ae7-1,MIG-40f62ae7-2", 2),
    ],
)  # fmt: skip
def test_cuda_visible_devices_is_read_as_cuda_reads_it(nvidia, visible, left):
    assert count("gpu", {"CUDA_VISIBLE_DEVICES": visible}, str(nvidia)) == left


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        ({}, 2),
        ({"HIP_VISIBLE_DEVICES": "1"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "1"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0,1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0,1"}, 2),
    ],
)
def test_amd_gpus_are_topology_nodes_with_a_render_file(amd, environ, left):
    assert count("gpu", environ, str(amd)) == left


@pytest.mark.parametrize(
    ("environ", "left"), [({}, 2), ({"ZE_AFFINITY_MASK": "1"}, 1), ({"ZE_AFFINITY_MASK": "0.0,0.1,1.0"}, 3)]
)
def test_intel_cards_count_but_not_graphics_inside_the_cpu(intel, environ, left):
    assert count("xpu", environ, str(intel)) == left
    assert count("gpu", environ, str(intel)) == 0
