"""Which options does each command have? All that stand in the sections of `RunConfig` and `FaultTolerance`."""

from __future__ import annotations

from holdfast.core.config.config import RunConfig
from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.config.option import OURS, SWITCH, WORKERS, Option
from holdfast.core.value import replace

FLAGS = (
    *(option for option in RunConfig.__options__ if option.torchrun),
    *(option for option in FaultTolerance.__options__ if option.group == OURS),
    *(option for option in RunConfig.__options__ if not option.torchrun),
)
"""Those of `holdfast run`, torchrun's first and in its order."""

NVRX_FLAGS = tuple(option for option in FaultTolerance.__options__ if option.group != OURS)
"""ft_launcher's, which `holdfast run` takes too."""

ALL_FLAGS = (*FLAGS, *NVRX_FLAGS)

USE_ENV = Option(
    names=("--use-env", "--use_env"),
    reads=SWITCH,
    group=WORKERS,
    torchrun=True,
    help="do not add --local-rank=N to the script's arguments; the script reads LOCAL_RANK (`holdfast launch` only)",
)
"""The one flag that `python -m torch.distributed.launch` has beyond torchrun's."""

FT_LAUNCHER = {
    "rdzv_backend": "c10d",
    "monitor_interval": "0.3",
    "membership": "fixed",
    "workers_stop_timeout": "15",
    "term_timeout": "1800",
}
"""Defaults that ft_launcher has and `holdfast run` has not."""


def flags_of(command: str) -> tuple[Option, ...]:
    """The options that `holdfast COMMAND` takes: run, launch or ft_launcher, which has defaults of its own."""
    if command == "ft_launcher":
        return tuple(replace(flag, default=FT_LAUNCHER.get(flag.dest, flag.default)) for flag in ALL_FLAGS)
    return (*ALL_FLAGS, USE_ENV) if command == "launch" else ALL_FLAGS
