"""What has one worker shown of itself so far? Its page (`core.page.layout`) as a value, for the monitor.

Times `…_at` and `…_since` are monotonic seconds of the worker's host, durations `…_s` are seconds.
"""

from __future__ import annotations

from holdfast.core.value import Value

MOST = 2**63 - 1
"""The greatest step, or number of anything, that is told to others, whatever a rank shows: a greater one would cross no wire
(`runtime.net.codec`), and its node would lose its link with each message that has it."""


class SectionSigns(Value):
    """One named part of the script (`holdfast.client.section`)."""

    name: str
    open_since: float | None = None  # None: it is closed.
    took_s: float = 0.0  # How long it was open the last time.
    longest_s: float = 0.0  # The longest that it was open, of the times that are over.
    count: int = 0  # How often it has been closed.
    closed_at: float | None = None  # When it was closed last.
    limit_s: float | None = None  # How long it may be open; infinity: for ever. None: not said.


def is_save(section: str) -> bool:
    """What is done in a section of that name is safe afterwards: ours is `checkpoint`, scripts have names of their own."""
    return "checkpoint" in section.lower() or "save" in section.lower()


class Limits(Value):
    """What the script itself allows. None: it does not say; infinity: no limit."""

    initial_s: float | None = None  # To the first heartbeat: from when it is awaited; where it is not, from the start.
    beat_s: float | None = None  # Between two heartbeats.
    out_s: float | None = None  # With no section open.
    warmup_steps: int | None = None  # So many of its first `step`s are slow, and have the limit of `warmup`.
    count: int = 0  # How often limits have been set, those of sections included.


class Signs(Value):
    """All that a worker has shown."""

    booted_at: float | None = None  # When its interpreter started. None: not yet, or it is no Python.
    exit_at: float | None = None  # When its interpreter began to end in good order. None: it has not.
    first_beat_at: float | None = None
    awaited_since: float | None = None
    """Since when its first heartbeat is waited for: its rank monitor has begun. None: it has come, or none has begun."""
    beat_at: float | None = None  # Its last heartbeat. None: none yet.
    beats: int = 0
    longest_gap_s: float = 0.0  # Longest time between two heartbeats.
    step: int | None = None  # The last step that it has reported. None: none.
    step_at: float | None = None
    step_took_s: float = 0.0  # From the report before to that one; 0: there was none before.
    out_since: float | None = None  # Since when no section is open. None: one is, or none has ever been used.
    longest_out_s: float = 0.0  # Longest time between two sections, of those that are over.
    limits: Limits = Limits()
    sections: tuple[SectionSigns, ...] = ()  # In the order in which the script came to them first.


class Moments(Value):
    """How far a worker has come in its life. None: not so far, or nobody has told."""

    booted_at: float | None = None  # When its interpreter started.
    joining_at: float | None = None  # When its script began to meet the other ranks.
    joined_at: float | None = None  # When it had.
    restored_at: float | None = None  # When it had loaded its state.
    restore_s: float = 0.0  # How long that took, all in all.
    stepped_at: float | None = None  # When it had made its first step.
    first_step: int | None = None  # Its number, where the script itself numbers its steps.
    last_stepped_at: float | None = None  # When it had made its last step so far.
    saved_at: float | None = None  # When it had last written a checkpoint, as its sections tell.
    state_step: int | None = None  # The step that it has agreed with all others to go on from.
    held: tuple[int, int, int, int] | None = None
    """Of the state that it keeps from one life to the next: round and step of what it has (step -1: none that is whole), its
    part of the model, and bits (`in_memory.STASHES`, `HAS_ALL`). None: it keeps none."""
    state_from: str = ""  # Where it has that state from: `memory`, `rank N`, `stash`, or its `script` restored it.
