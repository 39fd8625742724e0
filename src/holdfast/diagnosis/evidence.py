"""What is known of a failure: messages that a rule knows, and how processes ended. Made by `scan` and `gather`."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.job.failure import Cause
from holdfast.core.job.finding import Quote
from holdfast.core.value import Value, replace
from holdfast.diagnosis.hangs.recorder_file import Record
from holdfast.diagnosis.logs.prefix import Process, Speaker
from holdfast.diagnosis.logs.tail import Tail
from holdfast.diagnosis.rule import Rule


class Sighting(Process):
    """A line that a rule knows; of the process that it names, else of its writer."""

    rule: Rule
    text: str
    mark: str = ""  # As `Speaker.mark`.
    source: str = ""  # The file that it stands in.
    line: int = 0  # Its number, from 1.
    offset: int = 0  # Where it begins in the file, in bytes.
    what: str = ""
    peer: str = ""  # Who is complained of: an address, a host or a rank.
    missing: tuple[int, ...] = ()  # Ranks that are waited for, where the line names them.
    seq: int | None = None  # Of a collective: its number in its group.
    op: str = ""
    size: int | None = None  # And how many values this rank gave to it.
    count: int = 1  # How often the same one said so.
    left: int = 0  # Lines that come after it: its writer's own, where they can be told from others', else the file's.
    own: bool = False  # `left` counts its writer's own lines.
    logged: bool = False  # The program wrote the traceback itself, in a line of its log: it had caught the error.
    recovered: bool = False  # It went on with its work after that.


class End(Process):
    """How one process ended, as a launcher tells it."""

    exitcode: int | None = None  # As `Popen.returncode`: negative for a signal. None: not known.
    first: bool = False  # The launcher takes it for the first failure.
    innocent: bool = False  # It was ended because another had failed.
    own: bool = False  # Our agents know that it ended by itself, before the others.
    what: str = ""  # What is said of it. Empty: nothing more.
    oom: str = ""  # As `Failure.oom`.
    injected: str = ""  # As `Failure.injected`.
    lost: bool = False  # It is a node, which was lost.
    cause: Cause | None = None  # What our agents take it for. None: they do not say.
    source: str = ""
    line: int = 0


class Evidence(Value):
    """All of it."""

    sightings: tuple[Sighting, ...] = ()
    ends: tuple[End, ...] = ()
    ranks: tuple[int, ...] = ()  # Every rank that has left a line.
    world_size: int | None = None  # How many ranks there were. None: not known.
    writers: int = 0  # How many have left a line: ranks, or where none are named local ranks and files.
    stacks: Mapping[int, str] = {}  # Of ranks that have shown them, as they were written.
    records: tuple[Record, ...] = ()  # Of torch's flight recorder.
    pids: Mapping[tuple[str, int], int] = {}  # Ranks by node and pid, where a launcher has told that.
    sources: int = 0  # How many files were read.
    tails: tuple[Tail, ...] = ()  # Of logs, what their beginning and end tell without a word of failure.
    said: tuple[str, ...] = ()  # Lines near the logs' ends that tell of a failure, each shape once.


def merged(one: Evidence, other: Evidence) -> Evidence:
    """What both tell. Of one message that both have seen of one rank, only the first's."""
    known = {(seen.rule.name, seen.rank, seen.local, seen.node) for seen in one.sightings}
    more = [seen for seen in other.sightings if (seen.rule.name, seen.rank, seen.local, seen.node) not in known]
    ranks = tuple(sorted({*one.ranks, *other.ranks}))
    return replace(
        one,
        sightings=(*one.sightings, *more),
        ends=(*one.ends, *other.ends),
        ranks=ranks,
        world_size=one.world_size if one.world_size is not None else other.world_size,
        writers=max(one.writers, other.writers, len(ranks)),
        stacks={**other.stacks, **one.stacks},
        records=(*one.records, *other.records),
        pids={**other.pids, **one.pids},
        sources=one.sources + other.sources,
        tails=(*one.tails, *other.tails),
        said=(*one.said, *other.said),
    )


def quote(one: Sighting) -> Quote:
    """The line, as evidence."""
    return Quote(text=one.text, source=one.source, line=one.line, rank=one.rank, node=one.node)


def writer(one: Speaker | Sighting, source: str = "") -> object:
    """Who that is, as far as it can be told from others; None: not at all."""
    if one.rank is not None:
        return one.rank
    where = one.node or (one.source if isinstance(one, Sighting) else source)
    return None if one.local is None else (where, one.local)
