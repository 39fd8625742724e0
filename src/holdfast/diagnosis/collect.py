"""What do our own agents know of a failure? Turns it into what `attribute` reads."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from signal import SIGKILL

from holdfast.core.errors import UsageError
from holdfast.core.job.ends import QUOTED
from holdfast.core.job.failure import NO_OOM_KILL, Cause, Failure, guilty
from holdfast.core.job.finding import Class, Finding
from holdfast.core.value import replace
from holdfast.diagnosis import incident
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.evidence import End, Evidence, Sighting, merged
from holdfast.diagnosis.gather import gather, of_text
from holdfast.diagnosis.logs.prefix import Speaker
from holdfast.diagnosis.rule import Rules, load, own_files
from holdfast.diagnosis.tables import CAUSE, MACHINE
from holdfast.diagnosis.terms import read_all
from holdfast.telemetry.record.io_thread import IoThread
from holdfast.telemetry.record.state_dir import incident_dir

OWN = (Cause.EXIT, Cause.SIGNAL, Cause.EARLY, Cause.EXCEPTION)
"""Ends of a rank's own: what others complain of is this."""

PATIENCE_S = 0.5
"""How long a job waits for the user's rules, once, at its first failure. On a busy host that takes 0.1 s."""


def end_of(failure: Failure, *, first: bool = False) -> End:
    """How that worker ended."""
    return End(
        rank=failure.rank if failure.rank >= 0 else None, local=failure.local_rank if failure.rank >= 0 else None,
        node=failure.node, pid=failure.pid, exitcode=failure.exitcode, at=failure.at_unix, first=first,
        innocent=failure.innocent, what=failure.message, oom=failure.oom, injected=failure.injected,
        lost=failure.cause == Cause.NODE_LOST, cause=failure.cause,
        own=first and not failure.follows and failure.cause in OWN,
    )  # fmt: skip


def of_failures(failures: Sequence[Failure], rules: Rules) -> Evidence:
    """What failures themselves carry: their tracebacks and last lines."""
    failed = guilty(failures)
    ranks = tuple(sorted({failure.rank for failure in failures if failure.rank >= 0}))
    return Evidence(
        sightings=tuple(one for failure in failed for one in _words_of(failure, rules)),
        ends=tuple(end_of(failure, first=number == 0) for number, failure in enumerate(failed)),
        ranks=ranks,
        writers=len(ranks),
    )


def _words_of(failure: Failure, rules: Rules) -> list[Sighting]:
    """What its log's last lines say, and then its traceback and message."""
    speaker = Speaker(rank=max(failure.rank, 0), local=failure.local_rank, node=failure.node, pid=failure.pid)
    last = "\n".join(filter(None, (failure.traceback, failure.message.removeprefix(QUOTED))))
    ended = of_text(last, rules, source=failure.error_file or failure.log_path or "", speaker=speaker).sightings
    logged = of_text("\n".join(failure.log_tail), rules, source=failure.log_path or "", speaker=speaker).sightings
    if any(one.rule.depth >= CAUSE for one in ended):
        # It did not die of another error that it had only logged; of what broke below it, it may have.
        known = {one.rule.name for one in ended}
        others = (one for one in logged if one.rule.name not in known)
        logged = tuple(replace(one, recovered=one.recovered or one.rule.depth <= CAUSE) for one in others)
    return [replace(one, node=one.node or failure.node) for one in (*logged, *ended)]


def of_round(path: str, round: int, failures: Sequence[Failure], rules: Rules) -> Evidence:
    """What the files of the job in `path` tell of one round."""
    logs = {os.path.dirname(os.path.dirname(failure.log_path)) for failure in failures if failure.log_path}
    there = [folder for folder in (*sorted(logs), incident_dir(path, round)) if os.path.isdir(folder)]
    return _with(failures, there if any(map(os.listdir, there)) else [], rules)


def of_files(paths: Sequence[str], rules: Rules) -> Evidence:
    """What these logs and directories tell, incidents that our agents have kept among them. UsageError: there are none."""
    return _with([failure for path in paths for failure in incident.failures(path)], paths, rules)


def _with(failures: Sequence[Failure], paths: Sequence[str], rules: Rules) -> Evidence:
    there = gather(paths, rules)
    if (failed := guilty(failures)) and failed[0].cause not in (Cause.HUNG, Cause.STUCK):
        # It was gone when the others showed where they were: a rank that is elsewhere is not what they wait for.
        there = replace(there, stacks={})
    if failures:
        there = replace(there, sightings=tuple(one for one in there.sightings if _is_of(one, failures)))
    return merged(of_failures(failures, rules), there)


def _is_of(one: Sighting, failures: Sequence[Failure]) -> bool:
    """Whether it may be about these failures: that memory ran out for a process of somebody else's is no cause of theirs."""
    if one.rule.kind != Class.OOM_HOST or one.rule.depth != MACHINE:
        return True
    killed = [failure.oom for failure in failures if failure.exitcode == -SIGKILL]
    if any(oom not in ("", NO_OOM_KILL) for oom in killed) or any(
        (one.pid, one.node or failure.node) == (failure.pid, failure.node) for failure in failures
    ):
        return True
    if one.pid is None:
        return "" in killed
    said = (text for failure in failures for text in (failure.message, failure.traceback or "", *failure.log_tail))
    return any(re.search(rf"\b{one.pid}\b", text) for text in said)  # a process of a rank's own, which it complains of


def diagnose(failures: Sequence[Failure]) -> Finding:
    """What these failures mean, by what they say of themselves."""
    found = attribute(of_failures(failures, _rules()[0]))
    # Lines were counted in the end of a log, not in the log.
    return replace(found, evidence=tuple(replace(one, line=0) for one in found.evidence))


def prepare() -> None:
    """Load all that a diagnosis reads: later the disk may hang, or have another version of us, or none."""
    trouble()
    read_all()


def trouble() -> str:
    """Why failures are judged without the user's own rules. Empty: with them, or there are none."""
    return _rules()[1]


def _rules() -> tuple[Rules, str]:
    """(ours with the user's, why without those)."""
    ours, found, trouble = _being_read()
    return (found[0], "") if found else (ours, trouble[-1])


@cache
def _being_read() -> tuple[Rules, list[Rules], list[str]]:
    """(ours, ours with the user's once they are read, why they are not). They are on a disk that may hang, and a job waits."""
    ours, found, trouble = load(), list[Rules](), ["the disk does not answer"]

    def read() -> None:
        try:
            found.append(load(own_files()))
        except UsageError as error:
            trouble.append(error.what)

    IoThread(PATIENCE_S).do(read)
    return ours, found, trouble
