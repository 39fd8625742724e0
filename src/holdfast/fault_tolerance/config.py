"""How is a job's fault tolerance configured, in NVRx's form? The fields are those of `core.config.fault_tolerance`.

The core has "auto" for a limit that is learned; NVRx knows only seconds or None (no limit). The defaults here are the fixed
limits of NVRx until 0.5: one hour to the first heartbeat, 45 minutes between two.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.core.config.fault_tolerance import AUTO, FaultTolerance, level, paths, section
from holdfast.core.errors import UsageError
from holdfast.core.value import to_plain

if TYPE_CHECKING:
    import argparse

_OTHERWISE: dict[str, Any] = {
    "initial_rank_heartbeat_timeout": 3600.0,
    "rank_heartbeat_timeout": 2700.0,
    "rank_out_of_section_timeout": None,
    "max_no_progress_cycles": 3,
    "log_level": logging.INFO,
    "storage_healthcheck_path": None,
    "segment": None,
}
"""Defaults where NVRx's form has another one than the core, or the core keeps it elsewhere."""


def _field(name: str, default: Any) -> tuple[str, Any, Any]:
    if isinstance(default, dict):
        return name, "dict", field(default_factory=default.copy)
    return name, "Any", field(default=default)


if TYPE_CHECKING:

    class _Fields:
        rank_termination_signal: Any
        log_level: Any

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

else:
    _Fields = make_dataclass("_Fields", [_field(*pair) for pair in (to_plain(FaultTolerance()) | _OTHERWISE).items()])


@dataclass
class FaultToleranceConfig(_Fields):
    """One attribute per field, seconds where a time is meant. A limit of None is no limit."""

    def __post_init__(self) -> None:
        """`rank_termination_signal` becomes a signal, `log_level` a number; ValueError if either is neither."""
        self.rank_termination_signal = _signal(self.rank_termination_signal)
        self.log_level = _level(self.log_level)

    @property
    def is_progress_tracking_enabled(self) -> bool:
        """The job ends after `max_no_progress_cycles` without progress."""
        return bool(self.max_no_progress_cycles > 0)

    def with_warmup(self, iterations: int | None) -> FaultToleranceConfig:
        """The same with so many slow steps after each start; None: as it is."""
        return self if iterations is None else FaultToleranceConfig(**vars(self) | {"num_warmup_iterations": iterations})

    @staticmethod
    def from_kwargs(ignore_not_recognized: bool = True, **kwargs: Any) -> FaultToleranceConfig:
        """With these fields, older names included. Others are left out, or ValueError unless `ignore_not_recognized`."""
        rows = _rows()
        unknown = [name for name in kwargs if name not in rows]
        if unknown and not ignore_not_recognized:
            raise ValueError(f"unknown fields: {', '.join(map(repr, unknown))}; known: {', '.join(sorted(rows))}")
        return FaultToleranceConfig(**{rows[name]: value for name, value in kwargs.items() if name in rows})

    @staticmethod
    def from_yaml_file(cfg_path: str, ignore_not_recognized: bool = True) -> FaultToleranceConfig:
        """From the first mapping `fault_tolerance` in the file, however deep. ValueError if it has none."""
        import yaml  # type: ignore[import-untyped]

        with open(cfg_path, encoding="utf-8") as file:
            found = section(yaml.safe_load(file))
        if not found:
            raise ValueError(f"{cfg_path} has no section `fault_tolerance`")
        return FaultToleranceConfig.from_kwargs(ignore_not_recognized, **{str(key): value for key, value in found.items()})

    @staticmethod
    def from_args(
        args: argparse.Namespace, cfg_file_arg: str | None = "ft_cfg_path", ft_args_prefix: str = "ft_"
    ) -> FaultToleranceConfig:
        """From the file that `args` names, if it has such a section, and then from the attributes `ft_…` that are not None."""
        made = FaultToleranceConfig()
        path = getattr(args, cfg_file_arg, None) if cfg_file_arg else None
        if path is not None:
            with contextlib.suppress(ValueError):
                made = FaultToleranceConfig.from_yaml_file(path)
        for each in fields(made):
            said = getattr(args, ft_args_prefix + each.name, None)
            if said is not None:
                setattr(made, each.name, _understood(each.name, said) if isinstance(said, str) else said)
        made.__post_init__()
        return made

    def to_yaml_file(self, cfg_path: str) -> None:
        """Write the section `fault_tolerance`, readable by `from_yaml_file`."""
        import yaml

        self.__post_init__()  # an attribute may have been set to a signal's or level's name since
        plain = to_plain(asdict(self)) | {"rank_termination_signal": self.rank_termination_signal.name}
        with open(cfg_path, "w", encoding="utf-8") as file:
            yaml.safe_dump({"fault_tolerance": plain}, file)

    @staticmethod
    def from_core(told: Mapping[str, Any]) -> FaultToleranceConfig:
        """From the core's fields as plain data, or from those of them that are not as they always are.

        A limit that is learned is None here: there is none to be named."""
        given = to_plain(FaultTolerance()) | {name: value for name, value in told.items() if name in FaultTolerance.__fields__}
        given |= {name: None for name, value in given.items() if value == AUTO and name.endswith("_timeout")}
        if given["max_no_progress_cycles"] is None:
            given["max_no_progress_cycles"] = _OTHERWISE["max_no_progress_cycles"]
        given["storage_healthcheck_path"] = ",".join(given["storage_healthcheck_path"]) or None
        return FaultToleranceConfig(**given)

    def to_core(self) -> FaultTolerance:
        """The same for those who watch and decide."""
        given = {name: getattr(self, name) for name in FaultTolerance.__fields__}
        given["storage_healthcheck_path"] = paths(self.storage_healthcheck_path or "", "storage_healthcheck_path")
        given["rank_termination_signal"] = int(self.rank_termination_signal)
        given["log_level"] = level(str(self.log_level), "log_level")
        return FaultTolerance(**given)


@cache
def _rows() -> dict[str, str]:
    """Each name that a field has or had in YAML → the field."""
    own = {each.name: each.name for each in fields(FaultToleranceConfig)}
    return {key: option.field for option in FaultTolerance.__options__ for key in option.keys} | own


def _understood(name: str, text: str) -> Any:
    """What `text` on a command line means for the field `name`. ValueError: nothing."""
    option = next((option for option in FaultTolerance.__options__ if option.field == name), None)
    try:
        return text if option is None or option.reads.path else option.reads.read(text, name)
    except UsageError as error:
        raise ValueError(str(error)) from error


def _signal(given: Any) -> signal.Signals:
    if isinstance(given, str):
        given = _understood("rank_termination_signal", given)
    if isinstance(given, int):
        return signal.Signals(given)  # ValueError of its own
    raise ValueError(f"rank_termination_signal: {given!r} is not a signal; give a name such as SIGTERM, or a number")


def _level(given: Any) -> int:
    if isinstance(given, str):
        given = logging.getLevelNamesMapping()[_understood("log_level", given)]
    if isinstance(given, int) and logging.DEBUG <= given <= logging.CRITICAL:
        return int(given)
    raise ValueError(f"log_level: {given!r} is not a level; give debug, info, warning, error, critical, or 10 to 50")
