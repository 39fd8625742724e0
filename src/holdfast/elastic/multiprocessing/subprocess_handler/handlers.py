"""What starts a worker that is a program? A hook: replace it with your own."""

from __future__ import annotations

from typing import Any

from holdfast.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler


def get_subprocess_handler(
    entrypoint: str,
    args: tuple[Any, ...],
    env: dict[str, str],
    stdout: str,
    stderr: str,
    local_rank_id: int,
    numa_options: Any = None,
) -> SubprocessHandler:
    return SubprocessHandler(entrypoint, args, env, stdout, stderr, local_rank_id, numa_options)
