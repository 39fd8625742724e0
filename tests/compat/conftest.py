"""The same contract for two implementations: `names` is torch's elastic package once, and ours once.

def test_something(names):
    api = names("rendezvous.api")                   # torch.distributed.elastic.rendezvous.api, or ours
    with patch(names.path("rendezvous.utils", "time")): ...
"""

from __future__ import annotations

import importlib
import tempfile
from typing import Any

import pytest
from kit.stages.two_names import Names


@pytest.fixture(
    params=[pytest.param("torch.distributed.elastic", marks=pytest.mark.torch), "holdfast.elastic"], ids=["torch", "ours"]
)
def names(request: pytest.FixtureRequest) -> Names:
    """torch's names, then ours."""
    return Names(request.param)


@pytest.fixture
def ours() -> Names:
    """Ours alone: where we differ on purpose, or offer more."""
    return Names("holdfast.elastic")


@pytest.fixture
def dynamic(names: Names) -> Any:
    """The module `dynamic_rendezvous`."""
    return names("rendezvous.dynamic_rendezvous")


@pytest.fixture(autouse=True)
def temporary_files_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch leaves a folder behind for every config: not in everybody's /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


@pytest.fixture(autouse=True)
def torch_is_loaded_where_it_is_needed(request: pytest.FixtureRequest) -> None:
    """A program that has not loaded torch gets stores of ours: a test marked `torch` has it loaded, whatever ran before it."""
    if request.node.get_closest_marker("torch"):
        importlib.import_module("torch.distributed")


# NVRx's fault_tolerance, and ours.


def _nvrx() -> Names:
    pytest.importorskip(
        "nvidia_resiliency_ext",
        reason="no NVRx to compare with: make nvrx",
    )
    return Names("nvidia_resiliency_ext.fault_tolerance")


@pytest.fixture(params=[pytest.param("nvrx", marks=pytest.mark.torch), "ours"])
def ft(request: pytest.FixtureRequest) -> Names:
    """NVRx's modules, where that is installed, then ours."""
    return _nvrx() if request.param == "nvrx" else Names("holdfast.fault_tolerance")


@pytest.fixture
def nvrx() -> Names:
    """NVRx's alone, to compare with."""
    return _nvrx()


@pytest.fixture
def ours_ft() -> Names:
    """Ours alone: where we differ on purpose, or offer more."""
    return Names("holdfast.fault_tolerance")
