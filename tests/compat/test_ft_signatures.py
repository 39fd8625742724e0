"""Every public name of NVRx's modules is there, and takes what it takes there, by position and by name."""

from __future__ import annotations

import inspect
from importlib import import_module
from operator import attrgetter

import pytest

MODULES = (
    "config",
    "data",
    "dict_utils",
    "ipc_connector",
    "rank_monitor_client",
    "rank_monitor_server",
    "rank_monitor_state_machine",
    "timeouts_calc",
    "utils",
)
LEFT_OUT = (
    # What Megatron's checkpoints had in dict_utils, and nothing there uses; and their launcher's own tools.
    "extract_matching_values diff inspect_types nested_values nested_items_iter dict_map dict_map_with_key "
    "merge map_reduce terminate_mp_processes reduce_cuda_ctx_size patched_method "
    # Steps of their server's own loop; its constructor, whose order changes from release to release.
    "RankMonitorServer.close_current_connection RankMonitorServer.start_periodic_restart_check "
    "RankMonitorServer.stop_periodic_restart_check RankMonitorServer "
    # By name only: thirty-seven positions are nobody's.
    "FaultToleranceConfig"
).split()


def _callables(module):
    """Functions, constructors and methods that this module itself defines, by name."""
    for name, found in vars(module).items():
        if name.startswith("_") or getattr(found, "__module__", "") != module.__name__:
            continue
        if not inspect.isclass(found):
            yield name, found
            continue
        yield name, found.__init__
        for method in vars(found):
            if not method.startswith("_") and callable(getattr(found, method)):
                yield f"{name}.{method}", getattr(found, method)


def _parameters(function):
    """Names in their order; as many more as one likes, if any may be given."""
    given = inspect.signature(function).parameters.values()
    names = [one.name for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return names, any(one.kind is one.VAR_KEYWORD for one in given)


@pytest.mark.parametrize("module", MODULES)
def test_names_and_parameters_are_there(nvrx, ours_ft, module):
    wrong = {}
    for name, function in _callables(nvrx(module)):
        if name in LEFT_OUT or isinstance(function, type(Exception.__init__)):
            continue
        wanted, _ = _parameters(function)
        mine = attrgetter(name)(ours_ft(module))
        given, more = _parameters(mine.__init__ if inspect.isclass(mine) else mine)
        if given[: len(wanted)] != wanted and not more:
            wrong[name] = wanted, given
    assert not wrong


def test_the_package_itself_has_every_name(nvrx, ours_ft):
    assert {name for name, found in vars(nvrx()).items() if inspect.isclass(found)} <= vars(ours_ft()).keys()


@pytest.mark.parametrize("callback", ["FaultToleranceCallback", "FaultToleranceSectionsCallback", "SimulatedFaultParams"])
def test_lightning_s_callbacks_take_the_same_with_the_same_defaults(nvrx, callback):
    pytest.importorskip("lightning")
    theirs, mine = (
        [(one.name, one.kind, one.default) for one in inspect.signature(getattr(package, callback)).parameters.values()]
        for package in (import_module("nvidia_resiliency_ext.ptl_resiliency"), import_module("holdfast.ptl_resiliency"))
    )
    assert mine == theirs


def test_constants_are_the_same(nvrx, ours_ft):
    for name in ("FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR", "FT_LAUNCHER_IPC_SOCKET_ENV_VAR"):
        assert getattr(ours_ft("data"), name) == getattr(nvrx("data"), name)
    for package in (nvrx, ours_ft):
        assert package().RankMonitorClient.CURRENT_TIMEOUTS_STATE_KEY == "current_timeouts"
        assert package().RankMonitorServer.RANK_MONITOR_INIT_TIMEOUT == 180.0
    assert [(one.name, one.value) for one in ours_ft().WorkloadAction] == [
        (one.name, one.value) for one in nvrx().WorkloadAction
    ]
