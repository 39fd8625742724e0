"""What do a job's agents on this host answer to a command?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from holdfast.agent.control.control_client import ask
from holdfast.cli.choose import choose
from holdfast.core.errors import HoldfastError, ProtocolError
from holdfast.telemetry.record.state_dir import running_nodes
from holdfast.telemetry.report.safe_text import plain

ANSWER_S = 10.0
"""How long to wait for the coordinator's answer: it may be on another node, and its link may be coming back."""


def ask_agent(path: str, node: str, request: Mapping[str, Any], within_s: float) -> tuple[dict[str, Any], str]:
    """(the agent's answer, why the request is not taken up); no answer is empty, and so is the reason where there is none."""
    try:
        answer = ask(path, node, request, within_s)
    except (OSError, ProtocolError) as error:
        return {}, f"the agent of node {node} does not answer ({error})"
    return answer, "" if answer.get("ok") else plain(str(answer.get("error")))


def ask_job(job: str | None, request: Mapping[str, Any], *, first: str = "", within_s: float = ANSWER_S) -> dict[str, Any]:
    """The answer of an agent of the job on this host, of node `first` if that is here. HoldfastError: none answers, or the job
    refuses."""
    path = choose(job, to_act=True)
    here = sorted(running_nodes(path), key=lambda node: node != first)
    if not here:
        name = os.path.basename(path)
        raise HoldfastError(f"job {name} does not run on this host", hint="`holdfast jobs --running` lists those that do")
    silent = []
    for node in here:
        answer, trouble = ask_agent(path, node, request, within_s)
        if not trouble:
            return answer
        if answer:
            raise HoldfastError(trouble)
        silent.append(trouble)
    raise HoldfastError("; ".join(silent), hint="does its coordinator answer? see `holdfast status`")
