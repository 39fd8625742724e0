"""`import nvidia_resiliency_ext` gives our modules where NVRx is not installed, and NVRx's where it is."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import fault_tolerance
from holdfast.fault_tolerance import rank_monitor_client
from holdfast.integrations import nvrx_names

ROOT = "nvidia_resiliency_ext"


class Names:
    """As the distribution's finder is, which stands last."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        return nvrx_names.find_spec(name) if name.partition(".")[0] == ROOT else None


@pytest.fixture(autouse=True)
def finder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """NVRx itself may be installed here: only `tmp_path` is searched before us."""
    if request.node.get_closest_marker("torch"):
        pytest.importorskip("torch")  # before the folder is left out that it shares with NVRx
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == ROOT}
    for name in before:
        del sys.modules[name]
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not (Path(entry) / ROOT).exists()])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Names])
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == ROOT]:
        del sys.modules[name]
    sys.modules.update(before)


def test_its_modules_are_ours() -> None:
    theirs = importlib.import_module("nvidia_resiliency_ext.fault_tolerance.rank_monitor_client")
    package = importlib.import_module("nvidia_resiliency_ext.fault_tolerance")
    assert theirs is rank_monitor_client and package.rank_monitor_client is theirs
    assert {name: getattr(package, name) for name in fault_tolerance.__all__} == {
        name: getattr(fault_tolerance, name) for name in fault_tolerance.__all__
    }


def test_it_has_the_version_that_is_asked_for() -> None:
    assert importlib.import_module(ROOT).__version__ == nvrx_names.VERSION


@pytest.mark.torch
def test_a_module_may_have_two_places_in_it() -> None:
    from holdfast.inprocess.tools import inject_fault

    names = "inprocess.tools.inject_fault", "shared_utils.inject_fault"
    assert [importlib.import_module(f"{ROOT}.{name}") for name in names] == [inject_fault, inject_fault]


@pytest.mark.torch
def test_a_package_may_have_two_places_in_it() -> None:
    from holdfast import straggler

    for package in ("nvidia_resiliency_ext", "nvidia_resiliency_ext.attribution"):
        scope: dict[str, Any] = {}
        exec(f"from {package} import straggler\nfrom {package}.straggler.reporting import ReportGenerator", scope)
        assert scope["straggler"].Detector is straggler.Detector
        assert scope["ReportGenerator"] is straggler.reporting.ReportGenerator


@pytest.mark.torch
def test_so_are_those_of_its_restarts_in_process() -> None:
    from holdfast import inprocess

    theirs = importlib.import_module("nvidia_resiliency_ext.inprocess")
    assert theirs.Wrapper is inprocess.Wrapper and theirs.rank_assignment.Tree is inprocess.rank_assignment.Tree
    assert importlib.import_module("nvidia_resiliency_ext.inprocess.wrap") is inprocess.wrap


@pytest.mark.parametrize("name", ["services", "fault_tolerance.nothing", "shared_utils.log_manager", "checkpointing.utils"])
def test_what_we_have_not_is_not_found(name: str) -> None:
    assert importlib.util.find_spec(f"{ROOT}.{name}") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{ROOT}.{name}")


@pytest.mark.parametrize("has_init", [True, False])
def test_where_nvrx_is_found_nothing_is_mixed_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_init: bool) -> None:
    (tmp_path / ROOT / "inprocess").mkdir(parents=True)
    (tmp_path / ROOT / "inprocess/__init__.py").touch()
    if has_init:
        (tmp_path / ROOT / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(f"{ROOT}.inprocess")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{ROOT}.fault_tolerance")


def test_folders_that_its_removal_has_left_are_nobody_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ROOT / "fault_tolerance").mkdir(parents=True)
    (tmp_path / ROOT / "notes.txt").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module(f"{ROOT}.fault_tolerance.rank_monitor_client") is rank_monitor_client
