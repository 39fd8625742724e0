"""Is everything there that torch's modules offer, and can it be called the same way?

Walks torch's modules: each public name must be in ours, each function, class and method must take torch's parameters in
torch's order with torch's defaults. Ours may take more, after them.
"""

from __future__ import annotations

import enum
import inspect
import subprocess
import sys

import pytest
from kit.stages.two_names import Names

TORCH = Names("torch.distributed.elastic")
OURS = Names("holdfast.elastic")

MODULES = (
    "control_plane",
    "events",
    "events.api",
    "events.handlers",
    "metrics",
    "metrics.api",
    "multiprocessing",
    "multiprocessing.api",
    "multiprocessing.errors",
    "multiprocessing.errors.error_handler",
    "multiprocessing.errors.handlers",
    "multiprocessing.redirects",
    "multiprocessing.subprocess_handler",
    "multiprocessing.subprocess_handler.handlers",
    "multiprocessing.subprocess_handler.subprocess_handler",
    "multiprocessing.tail_log",
    "rendezvous",
    "rendezvous.api",
    "rendezvous.c10d_rendezvous_backend",
    "rendezvous.dynamic_rendezvous",
    "rendezvous.etcd_server",
    "rendezvous.etcd_store",
    "rendezvous.registry",
    "rendezvous.static_tcp_rendezvous",
    "rendezvous.utils",
    "timer",
    "timer.api",
    "timer.debug_info_logging",
    "timer.file_based_local_timer",
    "timer.local_timer",
    "utils",
    "utils.api",
    "utils.data",
    "utils.data.cycling_iterator",
    "utils.data.elastic_distributed_sampler",
    "utils.distributed",
    "utils.log_level",
    "utils.logging",
    "utils.process_state",
    "utils.store",
)
LEFT_OUT = {"get_libc", "libc", "DistStoreError"}
"""Inner workings that no underscore hides; the last is there once torch is."""


def offered(module):
    """Name → object: what `__all__` lists, or else what is defined there or below."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith(TORCH.root)
    ]
    return {name: getattr(module, name) for name in names if name not in LEFT_OUT}


def parameters(function):
    return [parameter for name, parameter in inspect.signature(function).parameters.items() if name != "self"]


def check_calls(theirs, ours, what):
    """Every call that torch's takes, ours takes with the same meaning."""
    try:
        wanted, given = parameters(theirs), parameters(ours)
    except (TypeError, ValueError):
        return  # no signature to compare, such as an exception's
    for index, parameter in enumerate(wanted):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        assert index < len(given) and given[index].name == parameter.name, f"{what}: {parameter} is not there, or elsewhere"
        required, still_required = (each.default is each.empty for each in (parameter, given[index]))
        assert required or not still_required, f"{what}: {parameter} has become required"
        if not required and isinstance(parameter.default, (int, float, str, bool, type(None))):
            assert given[index].default == parameter.default, f"{what}: another default of {parameter}"
    for extra in given[len(wanted) :]:
        assert extra.default is not extra.empty or extra.kind in (extra.VAR_POSITIONAL, extra.VAR_KEYWORD), f"{what}: {extra}"


def check_class(theirs, ours, what):
    if issubclass(theirs, enum.Enum):
        assert {member.name: member.value for member in theirs} == {member.name: member.value for member in ours}, what
        return
    check_calls(theirs, ours, what)
    assert getattr(theirs, "__abstractmethods__", frozenset()) == getattr(ours, "__abstractmethods__", frozenset()), what
    for name, method in vars(theirs).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            assert hasattr(ours, name), f"{what}.{name} is not there"
            check_calls(method, getattr(ours, name), f"{what}.{name}")


@pytest.mark.torch
@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_there_and_is_called_the_same_way(module):
    ours = OURS(module)
    for name, value in offered(TORCH(module)).items():
        assert hasattr(ours, name), f"{module}.{name} is not there"
        check = check_class if inspect.isclass(value) else check_calls if callable(value) else None
        if check:
            check(value, getattr(ours, name), f"{module}.{name}")


def test_none_of_it_loads_torch():
    names = [OURS.path(module) for module in MODULES]
    load = f"import sys, importlib\nfor name in {names!r}: importlib.import_module(name)\nsys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", load], check=True)
