"""What do our own agents know of a failure? Turns it into what `attribute` reads."""

from __future__ import annotations

from functools import cache

from holdfast.core.value import replace
from holdfast.diagnosis.evidence import End, Evidence
from holdfast.diagnosis.gather import of_text
from holdfast.diagnosis.prefix import Speaker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.failure import Failure
    from holdfast.core.finding import Finding
    from holdfast.diagnosis.rule import Rules


def end_of(failure: Failure, *, first: bool = False) -> End:
    """How that worker ended."""
    return End(
        rank=failure.rank if failure.rank >= 0 else None, local=failure.local_rank if failure.rank >= 0 else None,
        node=failure.node, pid=failure.pid, exitcode=failure.exitcode, at=failure.at_unix, first=first,
        innocent=failure.innocent, what=failure.message,
    )  # fmt: skip


def of_failures(failures: Sequence[Failure], rules: Rules) -> Evidence:
    """What failures themselves carry: their tracebacks and last lines."""
    guilty = [failure for failure in failures if not failure.innocent]
    ends = tuple(end_of(failure, first=number == 0) for number, failure in enumerate(guilty))
    sightings = []
    for failure in guilty:
        text = "\n".join(filter(None, (*failure.log_tail, failure.traceback, failure.message)))
        speaker = Speaker(rank=max(failure.rank, 0), local=failure.local_rank, node=failure.node, pid=failure.pid)
        read = of_text(text, rules, source=failure.log_path or failure.error_file or "", speaker=speaker)
        sightings += [replace(one, node=one.node or failure.node) for one in read.sightings]
    ranks = tuple(sorted({failure.rank for failure in failures if failure.rank >= 0}))
    return Evidence(sightings=tuple(sightings), ends=ends, ranks=ranks, writers=len(ranks))


def diagnose(failures: Sequence[Failure]) -> Finding:
    """What these failures mean, by what they say of themselves."""
    from holdfast.diagnosis.attribute import attribute

    return attribute(of_failures(failures, _rules()))


@cache
def _rules() -> Rules:
    from holdfast.diagnosis.rule import load, own_files

    return load(own_files())
