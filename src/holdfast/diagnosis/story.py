"""What failed in a job, round by round: what it means, what was decided, and what was kept of it? Each report renders these."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.job.failure import Failure
from holdfast.core.job.finding import Finding
from holdfast.core.value import Value
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.collect import of_round
from holdfast.diagnosis.gather import gather
from holdfast.diagnosis.hangs.stack_groups import Group, grouped
from holdfast.diagnosis.incident import health
from holdfast.diagnosis.rule import Rules, load, own_files
from holdfast.telemetry.record.state_dir import incident_dir
from holdfast.telemetry.report.timeline import Life, Timeline


class Incident(Value):
    """A round in which something failed by itself."""

    life: Life  # The round: its failures, and what was decided.
    finding: Finding
    folder: str  # Where the nodes have kept what they know of it. Empty: nothing was kept here.
    health: Mapping[str, list[dict[str, Any]]]  # By node: what its checks said of it.


def incidents(path: str, job: Timeline) -> list[Incident]:
    """Those of the job whose run's directory is `path`, the earliest first."""
    rules = load(own_files())
    return [_incident(path, life, rules) for life in job.lives if life.guilty]


def _incident(path: str, life: Life, rules: Rules) -> Incident:
    folder = incident_dir(path, life.round)
    return Incident(
        life=life,
        finding=attribute(of_round(path, life.round, life.failures, rules)),
        folder=folder if os.path.isdir(folder) else "",
        health=health(folder),
    )


def finding_of(path: str, round: int, failures: Sequence[Failure]) -> Finding:
    """What the `failures` of one round mean, by all that its files tell."""
    return attribute(of_round(path, round, failures, load(own_files())))


def stack_groups(path: str, round: int) -> list[Group]:
    """Where the ranks of a round were, by the stacks that were kept of it."""
    folder = incident_dir(path, round)
    return grouped(gather([folder], load()).stacks) if os.path.isdir(folder) and os.listdir(folder) else []
