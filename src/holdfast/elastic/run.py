"""torchrun's command line over torch elastic's names: `torch.distributed.run` under our name.

For launchers that build on it (`config_from_args`, `run`, `get_args_parser`), and to be run itself with
`python -m holdfast.elastic.run`. The command of Holdfast's own is `holdfast run`: it takes the same flags, starts faster, and
can do more.
"""

from __future__ import annotations

import os
import runpy
import sys
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module, metadata
from typing import Any

from holdfast.core.errors import UsageError
from holdfast.elastic.events.handlers import _log_handlers
from holdfast.elastic.launcher.api import LaunchConfig, elastic_launch
from holdfast.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, Std
from holdfast.elastic.multiprocessing.errors import record
from holdfast.elastic.rendezvous import rendezvous_handler_registry
from holdfast.elastic.rendezvous.stores import torch_is_loaded, torch_is_there
from holdfast.elastic.rendezvous.utils import _parse_rendezvous_config, parse_rendezvous_endpoint
from holdfast.elastic.run_flags import get_args_parser as get_args_parser
from holdfast.elastic.utils import macros
from holdfast.elastic.utils.logging import get_logger
from holdfast.runtime.hardware import gpus

logger = get_logger(__name__)

DEFAULT_MASTER_PORT = 29500
NO_RUN_ID = "none"  # Default of `--rdzv-id`. torchrun's.
_TAKEN_OVER = (
    "role rdzv_backend max_restarts monitor_interval start_method local_addr event_log_handler signals_to_handle "
    "duplicate_stdout_filters duplicate_stderr_filters virtual_local_rank"
).split()
"""Flags that are fields of LaunchConfig as they are."""
_OMP_WARNING = (
    "\n*****************************************\n"
    "OMP_NUM_THREADS is not set: each of the %s workers gets %s thread, so that together they do not overload this host. "
    "Set it to what suits your program best.\n"
    "*****************************************"
)


class BadValue(UsageError, ValueError):
    """A flag's value is wrong. A ValueError too, as torch raises it."""


class BadFormat(UsageError, RuntimeError):
    """The same, where torch raises a RuntimeError."""


class OutOfRange(UsageError, AssertionError):
    """The same, where torch raises an AssertionError."""


@contextmanager
def _wrong_value(hint: str = "") -> Iterator[None]:
    """A ValueError in the block is a flag's wrong value."""
    try:
        yield
    except ValueError as error:
        raise BadValue(str(error), hint=hint) from error


def parse_args(args: Sequence[str] | None) -> Namespace:
    """The flags as attributes; argparse's own errors exit with 2."""
    return get_args_parser().parse_args(args)


def parse_min_max_nnodes(nnodes: str) -> tuple[int, int]:
    """`N` or `MIN:MAX`."""
    parts = nnodes.split(":")
    if len(parts) > 2:
        raise BadFormat(f'nnodes={nnodes} is not in "MIN:MAX" format', hint="give --nnodes N or --nnodes MIN:MAX")
    try:
        return int(parts[0]), int(parts[-1])
    except ValueError as error:
        raise BadValue(f"nnodes={nnodes} is no number of nodes", hint="give --nnodes N or --nnodes MIN:MAX") from error


def determine_local_world_size(nproc_per_node: str) -> int:
    """`8`, or as many as there are: `cpu`, `gpu`, `xpu`, what this host has (`auto`), or torch's registered device."""
    try:
        return int(nproc_per_node)
    except ValueError:
        pass
    count = _count_devices(nproc_per_node)
    if count is None:
        raise BadValue(f"Unsupported nproc_per_node value: {nproc_per_node}", hint="a number, auto, cpu, gpu or xpu")
    if count == 0:
        name = {"gpu": "Cuda", "xpu": "Xpu"}.get(nproc_per_node, nproc_per_node)
        raise BadValue(f"{name} is not available.", hint="give --nproc-per-node a number, or cpu")
    logger.info("nproc_per_node=%s stands for %s here", nproc_per_node, count)
    return count


def _count_devices(kind: str) -> int | None:
    """How many there are; None: no such kind. torch is asked where it is loaded anyway, or for kinds that only it may know."""
    cpus = len(os.sched_getaffinity(0))
    match kind:
        case "cpu":
            return cpus
        case "gpu" | "xpu" if not torch_is_loaded():
            return gpus.count(kind, os.environ)
        case "auto" if not torch_is_loaded():
            return gpus.count("gpu", os.environ) or gpus.count("xpu", os.environ) or cpus
    if not torch_is_there():
        return None
    torch = import_module("torch")
    match kind:
        case "gpu":
            return _available(torch.cuda)
        case "xpu":
            return _available(torch.xpu)
        case "auto":
            return _available(torch.accelerator) or cpus
    return _available(getattr(torch, kind, None)) if kind == torch._C._get_privateuse1_backend_name() else None


def _available(device: Any) -> int:
    """How many devices a module of torch's finds."""
    return int(device.device_count()) if device is not None and device.is_available() else 0


def get_rdzv_endpoint(args: Namespace) -> str:
    """Where the nodes meet; for the static rendezvous without an endpoint, the master's address and port."""
    if args.rdzv_backend == "static" and not args.rdzv_endpoint:
        return f"{args.master_addr}:{args.master_port}"
    return str(args.rdzv_endpoint)


def get_use_env(args: Namespace) -> bool:
    """Whether scripts read LOCAL_RANK from the environment. Only the old `launch` command has the flag."""
    return bool(getattr(args, "use_env", True))


def _get_logs_specs_class(logs_specs_name: str | None) -> type[LogsSpecs]:
    """The class that an installed package offers under this name in the entry-point group `torchrun.logs_specs`."""
    if logs_specs_name is None:
        return DefaultLogsSpecs
    group = metadata.entry_points().select(group="torchrun.logs_specs")
    if not group.select(name=logs_specs_name):
        raise BadValue(f"Could not find entrypoint under 'torchrun.logs_specs[{logs_specs_name}]' key")
    found: type[LogsSpecs] = group[logs_specs_name].load()
    return found


def config_from_args(args: Namespace) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """The launcher's config, what each worker runs, and with which arguments."""
    min_nodes, max_nodes = parse_min_max_nnodes(args.nnodes)
    if not 0 < min_nodes <= max_nodes:
        raise OutOfRange(f"min_nodes must be > 0 and <= max_nodes, got min_nodes={min_nodes}, max_nodes={max_nodes}")
    if args.max_restarts < 0:
        raise OutOfRange("max_restarts must be >= 0")
    _warn_of_unused(args)
    if args.monitor_interval <= 0:
        raise OutOfRange(f"monitor_interval must be > 0, got {args.monitor_interval}")
    nproc_per_node = determine_local_world_size(args.nproc_per_node)
    if nproc_per_node <= 0:
        raise OutOfRange(f"local_world_size must be > 0, got nproc_per_node={nproc_per_node}")
    _limit_threads(nproc_per_node)
    with _wrong_value("--rdzv-conf key=value,key=value"):
        rdzv_configs: dict[str, Any] = dict(_parse_rendezvous_config(args.rdzv_conf))
    if args.rdzv_backend == "static":
        rdzv_configs["rank"] = args.node_rank
    shutdown_timeout = args.shutdown_timeout
    if shutdown_timeout is not None and shutdown_timeout < 0:
        raise BadValue(f"shutdown_timeout must be non-negative, got {shutdown_timeout}")
    config = LaunchConfig(
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        nproc_per_node=nproc_per_node,
        run_id=args.rdzv_id,
        rdzv_endpoint=get_rdzv_endpoint(args),
        rdzv_configs=rdzv_configs,
        log_line_prefix_template=os.getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        logs_specs=_logs_specs(args),
        shutdown_timeout=shutdown_timeout,
        numa_options=_numa_options(getattr(args, "numa_binding", None)),
        **{name: getattr(args, name) for name in _TAKEN_OVER},
    )
    return config, *command_of(args, os.getenv("PYTHON_EXEC", sys.executable))


def _numa_options(mode: str | None) -> Any:
    """torch's own, as in torchrun: who reads them knows torch's."""
    if mode is None:
        return None
    try:
        binding = import_module("torch.numa.binding")
    except ImportError as error:
        raise BadValue("--numa-binding needs PyTorch here", hint="`holdfast run --numa-binding` does without it") from error
    return binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))


def _warn_of_unused(args: Namespace) -> None:
    if args.rdzv_backend == "static":
        return
    if hasattr(args, "master_addr") and not args.rdzv_endpoint:
        logger.warning("master_addr is only for the static rendezvous; %s goes by --rdzv-endpoint", args.rdzv_backend)
    if getattr(args, "node_rank", 0) != 0:
        logger.warning("node_rank is only for the static rendezvous; %s ignores it", args.rdzv_backend)


def _limit_threads(nproc_per_node: int) -> None:
    if "OMP_NUM_THREADS" not in os.environ and nproc_per_node > 1:
        logger.warning(_OMP_WARNING, nproc_per_node, 1)
        os.environ["OMP_NUM_THREADS"] = "1"


def _logs_specs(args: Namespace) -> LogsSpecs:
    ranks: set[int] | None = None
    if args.local_ranks_filter:
        try:
            ranks = set(map(int, args.local_ranks_filter.split(",")))
        except ValueError as error:
            example = "--local_ranks_filter=0,1,2"
            raise BadValue(
                f"--local_ranks_filter must be a comma-separated list of integers e.g. {example}",
                hint=f"{args.local_ranks_filter!r} is none",
            ) from error
    logs_specs_class = _get_logs_specs_class(args.logs_specs)
    std = _std_of(logs_specs_class)

    def streams(text: str) -> Any:
        told = Std.from_str(text)
        return {local_rank: std(value) for local_rank, value in told.items()} if isinstance(told, dict) else std(told)

    with _wrong_value():
        redirects, tee = streams(args.redirects), streams(args.tee)
    return logs_specs_class(log_dir=args.log_dir, redirects=redirects, tee=tee, local_ranks_filter=ranks)


def _std_of(logs_specs_class: Any) -> Any:
    """`Std` as these logs specs know it: torch's, unless they are built on ours."""
    is_built_on_ours = isinstance(logs_specs_class, type) and issubclass(logs_specs_class, LogsSpecs)
    if is_built_on_ours or not torch_is_there():
        return Std
    return import_module("torch.distributed.elastic.multiprocessing").Std


def command_of(args: Any, python: str) -> tuple[Callable[..., Any] | str, list[str]]:
    """What each worker runs: a function over the script, `python` over the script or module, or the program itself."""
    command: Callable[..., Any] | str
    words: list[str] = []
    if args.run_path:
        command, words = run_script_path, [args.training_script]
    elif not args.no_python:
        command = python
        words = ["-u", *(["-m"] if args.module else []), args.training_script]
    elif args.module:
        raise BadValue("--no-python and --module exclude each other", hint="a module is run by Python; a program is not")
    else:
        command = args.training_script
    if not get_use_env(args):
        words.append(f"--local-rank={macros.local_rank}")
    return command, [*words, *args.training_script_args]


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Run a script in this process, as `__main__` and with these arguments."""
    sys.argv = [training_script, *training_script_args]
    runpy.run_path(training_script, run_name="__main__")


def run(args: Namespace) -> None:
    """Run the job. One node that was told of no rendezvous needs none: it meets itself, on free ports."""
    _name_main_thread("pt_elastic")
    told_nothing = args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None
    if args.standalone:
        args = _standing_alone(args)
        chosen = f"--rdzv-backend={args.rdzv_backend} --rdzv-endpoint={args.rdzv_endpoint} --rdzv-id={args.rdzv_id}"
        logger.info(f"\n{'*' * 38}\nRendezvous info:\n{chosen}\n{'*' * 38}\n")
    elif told_nothing and parse_min_max_nnodes(args.nnodes)[1] == 1:
        args = _standing_alone(args)
    if args.master_port is None:
        args = _changed(args, master_port=DEFAULT_MASTER_PORT)
    config, command, command_args = config_from_args(args)
    _check_names(config)
    elastic_launch(config=config, entrypoint=command)(*command_args)


def _changed(args: Namespace, **changes: Any) -> Namespace:
    return Namespace(**{**vars(args), **changes})


def _check_names(config: LaunchConfig) -> None:
    """Names and addresses that would otherwise be found wrong in the middle of the launch."""
    known = sorted(rendezvous_handler_registry._registry)
    if config.rdzv_backend not in known:
        raise BadValue(f"The rendezvous backend '{config.rdzv_backend}' is not registered", hint=f"one of {', '.join(known)}")
    if config.event_log_handler not in _log_handlers:
        known = sorted(_log_handlers)
        raise BadValue(f"no event log handler is called '{config.event_log_handler}'", hint=f"one of {', '.join(known)}")
    if config.rdzv_backend in ("c10d", "static") and config.rdzv_configs.get("store_type", "tcp") == "tcp":
        with _wrong_value("--rdzv-endpoint HOST:PORT, an IPv6 address in brackets"):
            parse_rendezvous_endpoint(config.rdzv_endpoint, 0)


def _standing_alone(args: Namespace) -> Namespace:
    """The flags of a job on this node alone, at a free port. The user's run id stays: scripts and logs use it."""
    min_nodes, max_nodes = parse_min_max_nnodes(args.nnodes)
    if min_nodes > 1:
        raise BadValue(
            f"--standalone runs on one node, and --nnodes {args.nnodes} needs {min_nodes}",
            hint="leave --standalone out and give --rdzv-backend c10d --rdzv-endpoint HOST:PORT, the same on every node",
        )
    return _changed(
        args,
        nnodes="1" if max_nodes > 1 else args.nnodes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        rdzv_id=str(uuid.uuid4()) if args.rdzv_id in ("", NO_RUN_ID) else args.rdzv_id,
    )


def _name_main_thread(name: str) -> None:
    """As `ps` and `top` show it; a convenience that may be missing."""
    with suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(name)


@record
def main(args: Sequence[str] | None = None) -> None:
    """The command: parse and run."""
    run(parse_args(args))


def as_program(command: Callable[[], None]) -> int:
    """Run it; what was wrong with the user's flags is told without a traceback. Returns the exit code."""
    try:
        command()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(as_program(main))
