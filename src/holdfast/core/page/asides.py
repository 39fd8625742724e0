"""What is a file called that is written aside, to take another's place later? By that name a later life of the job finds it.

    .holdfast-<job>-<round>-<process>-<name of what it is to replace>

The name at the end keeps its suffix, which some writers look at. A rank that was stopped between its last look at the lease
and its rename would rename later than its successors. So whoever replaces a file first takes away what other rounds of its job
have written aside for it: that rename then finds nothing (`holdfast.client.commit`).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MARK = ".holdfast"

MOST_BYTES = 160  # Of the target's name: a file's name has 255 at most.


def aside_name(target: str, job: str, round: str, unique: str) -> str:
    """The name, in the folder of `target`. `unique`: no other process's, without a hyphen. Empty `job`: there is none."""
    return f"{MARK}-{_sum(job)}-{round or 0}-{unique}-{_end(target)}"


def outdated(names: Iterable[str], target: str, job: str, round: str) -> list[str]:
    """Which of a folder's `names` other rounds of the job have written aside for `target`. Without a job: none."""
    if not job:
        return []
    return sorted(name for name in names if _is_of(name.split("-", 4), _end(target), _sum(job), round or "0"))


def _is_of(parts: list[str], end: str, job: str, round: str) -> bool:
    return len(parts) == 5 and (parts[0], parts[1], parts[4]) == (MARK, job, end) and parts[2] != round


def _sum(job: str) -> str:
    from binascii import crc32  # only where something is committed

    return f"{crc32(job.encode('utf-8', 'replace')):08x}" if job else "0"


def _end(target: str) -> str:
    return target.encode("utf-8", "surrogateescape")[-MOST_BYTES:].decode("utf-8", "surrogateescape")
