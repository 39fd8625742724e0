"""How does `holdfast run` serve what only torch elastic's interfaces can: another package's rendezvous handler or logs specs?

Such a job runs through the elastic agent, whose hooks those packages were written for; everything else through our own.
"""

from __future__ import annotations

import logging
import os
import signal

from holdfast.agent.logs.nonblocking_writer import tell
from holdfast.agent.secrets import check_required
from holdfast.core.config.config import RunConfig
from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.errors import UsageError
from holdfast.elastic.launcher.api import LaunchConfig, elastic_launch
from holdfast.elastic.multiprocessing import SignalException, Std
from holdfast.elastic.multiprocessing.errors import ChildFailedError
from holdfast.elastic.run import _get_logs_specs_class, command_of


def run(config: RunConfig) -> int:
    """Run this node's part of the job; returns the exit code."""
    check_required(config, config.token_file is not None or "HOLDFAST_TOKEN" in os.environ)
    entrypoint, args = command_of(config, config.python)
    if config.omp_num_threads:
        os.environ["OMP_NUM_THREADS"] = config.omp_num_threads
    try:
        elastic_launch(_launch_config(config), entrypoint)(*args)
    except ModuleNotFoundError as error:
        what = f"what this job's rendezvous and logs are served by needs {error.name}, which is not installed"
        raise UsageError(what, hint="install it, or leave out --logs-specs, or that --rdzv-backend") from error
    except ChildFailedError as error:
        tell(error.format_msg())
        return 1
    except SignalException as error:
        logging.getLogger(__name__).warning("%s", error)
        return 1
    return 0


def _launch_config(config: RunConfig) -> LaunchConfig:
    logs_specs = _get_logs_specs_class(config.logs_specs)(
        log_dir=config.log_dir,
        redirects={rank: Std(streams) for rank, streams in config.redirects.items()},
        tee={rank: Std(streams) for rank, streams in config.tee.items()},
        local_ranks_filter=set(config.local_ranks_filter) if config.local_ranks_filter is not None else None,
    )
    return LaunchConfig(
        min_nodes=config.min_nodes,
        max_nodes=config.most_nodes,
        nproc_per_node=config.nproc_per_node,
        logs_specs=logs_specs,
        run_id=config.rdzv_id,
        role=config.role,
        rdzv_endpoint=config.rdzv_endpoint or shown_endpoint("localhost", 0),
        rdzv_backend={"embedded": "c10d", "memory": "c10d"}.get(config.rdzv_backend, config.rdzv_backend),
        rdzv_configs={**config.rdzv_conf, "rank": config.node_rank},
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        signals_to_handle=",".join(signal.Signals(signum).name for signum in config.signals_to_handle),
        duplicate_stdout_filters=list(config.duplicate_stdout_filters),
        duplicate_stderr_filters=list(config.duplicate_stderr_filters),
        virtual_local_rank=config.virtual_local_rank,
        shutdown_timeout=int(config.shutdown_timeout_s),
        numa_options=config.bindings or None,
    )
