"""What `inprocess.Wrapper` asks of a rank's own GPU and NICs after a life, as NVRx 0.6's: on made-up hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from kit import KIT
from kit.hosts.checked_host import CheckedHost

from holdfast import inprocess
from holdfast.inprocess.exception import HealthCheckError
from holdfast.inprocess.health_check import ChainedGPUHealthCheck, ChainedNicHealthCheck, ChainedNVLHealthCheck, HealthCheck
from holdfast.inprocess.state import State

pytestmark = pytest.mark.torch

STATE = State(rank=0, world_size=2).freeze()
NEAR, FAR = "0000:07:00.0", "0000:87:00.0"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckedHost:
    """Two GPUs, each with a NIC behind its bridge."""
    host = CheckedHost(tmp_path)
    for number, (address, bridge) in enumerate(((NEAR, "pci0000:00/0000:00:01.0"), (FAR, "pci0000:80/0000:80:01.0"))):
        device = tmp_path / "sys/devices" / bridge
        for name in (address, f"nic{number}"):
            (device / name).mkdir(parents=True)
        host.put(f"dev/nvidia{number}", "")
        host.put(f"proc/driver/nvidia/gpus/{address}/information", f"Device Minor: {number}\n")
        host.nic(f"mlx5_{number}")
        (tmp_path / f"sys/class/infiniband/mlx5_{number}/device").symlink_to(device / f"nic{number}")
        (tmp_path / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/bus/pci/devices" / address).symlink_to(device / address)
    monkeypatch.setenv("HOLDFAST_CHECK_ROOT", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(KIT / "hosts/nvml"), os.environ.get("PYTHONPATH")))))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return host


def asked(check: Any) -> str:
    """What it says is wrong. Empty: nothing."""
    try:
        assert check(STATE) is STATE
    except HealthCheckError as error:
        return str(error)
    return ""


def test_a_rank_is_told_of_its_own_gpu_alone(host: CheckedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "{'uuid': 'GPU-a'}|{'uuid': 'GPU-b', 'recovery': 1}")
    said = "GPU 1 needs a reset"
    assert [asked(ChainedGPUHealthCheck(device_index=index)) for index in (0, 1)] == ["", said]
    assert asked(ChainedGPUHealthCheck()) == said
    for shown in ("1", "GPU-b"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert asked(ChainedGPUHealthCheck(device_index=0)) == said


def test_a_nvlink_that_is_down_is_in_the_log_and_ends_nothing(
    host: CheckedHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FAKE_GPUS", "{}|{}")
    check = ChainedNVLHealthCheck(device_index=1)
    assert asked(check) == "" and not caplog.text
    monkeypatch.setenv("FAKE_GPUS", "{}|{'links': 17}")
    assert asked(check) == "" and "GPU 1 has 17 NVLinks up, of 18" in caplog.text


def test_a_rank_is_told_of_the_nics_that_are_near_its_gpu(host: CheckedHost) -> None:
    checks = [ChainedNicHealthCheck(device_index=index) for index in (0, 1)]
    everything = ChainedNicHealthCheck()
    host.nic("mlx5_1", downed=2)
    said = "mlx5_1/1 has lost its link 2 times since the last look"
    assert [*map(asked, checks), asked(everything)] == ["", said, said]


def test_without_gpus_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CheckedHost(tmp_path)
    monkeypatch.setenv("HOLDFAST_CHECK_ROOT", str(tmp_path))
    checks = ChainedGPUHealthCheck, ChainedNVLHealthCheck, ChainedNicHealthCheck
    assert [asked(kind(device_index=0)) for kind in checks] == ["", "", ""]


class Own(HealthCheck):
    def __call__(self, state: Any) -> Any:
        return state


def test_a_rank_with_a_gpu_is_asked_the_script_s_checks_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a `Compose` the last is called first."""
    first, second = Own(), Own()
    monkeypatch.setenv("LOCAL_RANK", "0")
    given = None, first, inprocess.Compose(first, second)
    made = [inprocess.Wrapper(health_check=check).restart_health_check.instances for check in given]
    ours = ["ChainedGPUHealthCheck", "ChainedNVLHealthCheck", "ChainedNicHealthCheck"]
    names = [[type(one).__name__ for one in checks] for checks in made]
    assert names == [ours, ["Own", *ours], ["Own", "Own", *ours]]
    monkeypatch.delenv("LOCAL_RANK")
    assert inprocess.Wrapper().restart_health_check is None
    assert inprocess.Wrapper(health_check=first).restart_health_check.instances == (first,)


def test_a_rank_whose_gpu_is_of_no_more_use_is_out_after_the_life(
    host: CheckedHost, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("FAKE_GPUS", "{}|{'recovery': 1}")
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": free_port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("LOCAL_RANK", "1")
    lives: list[int] = []

    @inprocess.Wrapper(store_kwargs={"port": free_port})
    def train(call: inprocess.CallWrapper | None = None) -> None:
        assert call is not None
        lives.append(call.iteration)
        raise ValueError("anything")

    with pytest.raises(HealthCheckError, match="GPU 1 needs a reset"):
        train()
    assert lives == [0]
