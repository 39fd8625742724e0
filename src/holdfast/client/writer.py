"""How does a worker write into its page? Heartbeats, steps, sections, limits, and requests to the job.

`holdfast.client` and `client.hooks` use the same `Writer`. The bootstrap attaches it to the page. Without a page every call
does nothing, and so in forked children: the page is their parent's.

Any thread may call anything, and so may a signal handler in the midst of another call. Sections, limits and requests are exact.
Heartbeats take no lock: two at the same moment may count as one.

The bootstrap loads this file into interpreters that may have no Holdfast: standard library only, nothing newer than Python 3.8.
A change of what other files call here raises the version of the page, since theirs may be another copy.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock
from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ == "holdfast.client.writer":
    from holdfast.core.page import layout
else:
    layout = sys.modules["_holdfast_bootstrap"].layout
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

WAKE_PATIENCE_NS = 500_000_000
"""How long to try to wake the agent's watch, which is awake for microseconds at a time. Without one the agent reads the page
when this process ends."""

UNBROKEN = (
    sys.implementation.name == "cpython"
    and (3, 11) <= sys.version_info < (3, 15)
    and getattr(sys, "_is_gil_enabled", lambda: True)()
)
"""This interpreter switches to another thread or a signal handler at calls and loops only. So what calls nothing after it has
read the time needs no lock, which would take a third of a section's time. (A trace function of Python's is a call.)"""

# Looked up once: a call on them is to cost less than half a microsecond.
_BEAT_NS, _BEATS, _FIRST_BEAT_NS, _LONGEST_GAP_NS = layout.BEAT_NS, layout.BEATS, layout.FIRST_BEAT_NS, layout.LONGEST_GAP_NS
_STEP, _STEP_NS, _STEP_TOOK_NS = layout.STEP, layout.STEP_NS, layout.STEP_TOOK_NS
_OUT_SINCE_NS, _LONGEST_OUT_NS = layout.OUT_SINCE_NS, layout.LONGEST_OUT_NS


class Writer:
    """The worker's side of its page."""

    def __init__(self) -> None:
        self.words: memoryview | None = None
        """The page as 64-bit fields (`core.page.layout`). None: there is none, or it is our parent's."""
        self.steps_told = False  # The script itself says how far it is.
        self.before_meeting: Callable[..., object] = lambda *_, **__: None  # Called with what `init_process_group` is.
        self.after_meeting: Callable[[], object] = lambda: None
        self._wake: Callable[[], int] | None = None
        self.lock = RLock()  # not a plain one: a signal handler may come while its own thread holds it
        self._sections: dict[str, Section] = {}
        self._told: dict[str, Section] = {}  # those that the script itself uses
        self.open = self.out_since = self.longest_out = 0  # of sections; theirs to change
        self.counts_out = False
        """Time with no section open is counted: the script itself uses sections, or somebody has begun to count."""
        self._beat_at = self._beats = self._longest_gap = self._step_at = 0

    def attach(self, words: memoryview, wake: Callable[[], int] | None = None) -> None:
        """Write into this page from now on. `wake` rouses who watches it, and says how many it has roused."""
        longs = words.cast("B").cast("L")  # stored as the same 64 bits, in two thirds of the time
        self.words, self._wake = longs if longs.itemsize == words.itemsize else words, wake
        for section in self._sections.values():
            section.publish(self.words)
        os.register_at_fork(after_in_child=self._forget)

    def own(self, words: memoryview) -> None:
        """Make a page of our own of `words`, which are all 0, and write into it."""
        words[layout.MAGIC_AT], words[layout.VERSION_AT] = layout.MAGIC, layout.VERSION
        words[layout.PID], words[layout.BOOTED_NS] = os.getpid(), monotonic_ns()
        self.attach(words)

    def _forget(self) -> None:
        self.words = None

    # --- heartbeats and steps -------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        """Say that this worker is getting on."""
        words = self.words
        if words is not None:
            now = monotonic_ns()
            if now - self._beat_at > self._longest_gap:
                self._note_gap(words, now)
            self._beat_at = words[_BEAT_NS] = now
            self._beats = words[_BEATS] = self._beats + 1

    def progress(self, step: int, by_script: bool = True) -> None:
        """Say that `step` (0 or more) is done. It counts as a heartbeat. `by_script`: the script itself says so."""
        words = self.words
        if by_script and not self.steps_told:
            self._tell_steps()
        if words is None:
            return
        try:
            words[_STEP] = step
        except (TypeError, ValueError):
            raise ValueError(f"step: {step!r} is not a whole number, 0 or more") from None
        now = monotonic_ns()
        took = now - self._step_at
        if took < now:  # there was one before; it may be later than `now`, by another thread
            words[_STEP_TOOK_NS] = took if took > 0 else 0
        else:
            words[layout.FIRST_STEP] = step
            words[layout.FIRST_STEP_NS] = now
        if now - self._beat_at > self._longest_gap:
            self._note_gap(words, now)
        self._step_at = self._beat_at = words[_STEP_NS] = now  # the reader knows that it is a heartbeat, too
        self._beats = words[_BEATS] = self._beats + 1

    def _tell_steps(self) -> None:
        self.steps_told = True
        if self.words is not None:
            self.words[layout.STEP_TOLD] = 1

    def await_heartbeat(self) -> None:
        """Its rank monitor begins: the first heartbeat is waited for from now on, and silence until now is no gap."""
        if self.words is not None:
            self._beat_at = 0
            self.words[layout.AWAITED_NS] = monotonic_ns()

    def heartbeat_came(self) -> None:
        """The first heartbeat since has come."""
        if self.words is not None:
            self.words[layout.AWAITED_NS] = 0

    def joining(self, *args: object, **kwargs: object) -> None:
        """The script begins to meet the other ranks, by a call of `init_process_group` with these arguments."""
        if self.words is not None and not self.words[layout.JOINING_NS]:
            self.words[layout.JOINING_NS] = monotonic_ns()
        self.before_meeting(*args, **kwargs)

    def meet_between(self, wait: Callable[..., object], met: Callable[[], object]) -> None:
        """Call `wait` first, as the script calls `init_process_group`, and `met` when it has met the others."""
        self.before_meeting, self.after_meeting = wait, met

    def joined(self) -> None:
        """It has met them."""
        if self.words is not None and not self.words[layout.JOINED_NS]:
            self.words[layout.JOINED_NS] = monotonic_ns()
        self.after_meeting()

    def agreed(self, step: int, came_from: int) -> None:
        """All ranks go on from that step, and this one has its state from there (`layout.STATE_FROM`)."""
        if self.words is not None:
            self.words[layout.STATE_STEP], self.words[layout.STATE_FROM] = step, came_from

    def holds(self, part: int, generation: tuple[int, int] | None, *, stashes: bool, is_all: bool) -> None:
        """It keeps that part of a state, and has it of that round and step (None: of none, or it trains). `is_all`: that part
        is all of the model, in all ranks."""
        if (words := self.words) is not None:
            words[layout.HELD] = 0
            words[layout.HELD_PART] = part
            words[layout.HELD_ROUND], words[layout.HELD_STEP] = generation or (0, 0)
            bits = layout.HELD_STASHED * stashes | layout.HELD_ALL * is_all | layout.HELD_WHOLE * (generation is not None)
            words[layout.HELD] = layout.HELD_KEPT | bits

    def restored(self, since_ns: int) -> None:
        """It has loaded a state, from that moment until now (CLOCK_MONOTONIC). After its first step nobody asks for that."""
        words = self.words
        if words is not None and not words[layout.FIRST_STEP_NS]:
            now = monotonic_ns()
            words[layout.RESTORE_TOOK_NS] += now - since_ns
            words[layout.RESTORED_NS] = now

    def _note_gap(self, words: memoryview, now: int) -> None:
        last = self._beat_at  # read again: another thread may just have had the first heartbeat
        if not last:
            words[_FIRST_BEAT_NS] = words[_FIRST_BEAT_NS] or now
        elif now - last > self._longest_gap:
            self._longest_gap = words[_LONGEST_GAP_NS] = now - last

    # --- sections -------------------------------------------------------------------------------------------------------

    def section(self, name: str, limit_s: float | None = None) -> Section:
        """The part of the script called `name`: a context manager, and a decorator.

        It may be entered again while it is open, by the same thread or by others; it is closed when all have left. Sections may
        overlap. `limit_s`: how long it may stay open, infinity for as long as it likes; None: what was said before, or
        what the agent learns. ValueError: a name of more than 64 bytes of UTF-8, or a 33rd name.
        """
        try:
            found = self._told[name]
        except KeyError:
            found = self._tell(name)
        if limit_s is not None:
            found.limit(limit_s)
        return found

    def _tell(self, name: str) -> Section:
        self._told[name] = found = self.named(name)
        self.counts_out = True
        return found

    def named(self, name: str) -> Section:
        """As `section`, but not marked by the script: time outside of it does not count unless the script uses sections too."""
        return self._sections.get(name) or self._add(name)

    def _add(self, name: str) -> Section:
        encoded = name.encode("utf-8", "replace") if isinstance(name, str) else b""
        if not 0 < len(encoded) <= layout.SECTION_NAME_BYTES or b"\0" in encoded:
            raise ValueError(f"section: {name!r} is not a name of 1 to {layout.SECTION_NAME_BYTES} bytes (UTF-8)")
        with self.lock:
            found = self._sections.get(name)
            if found is None:
                if len(self._sections) == layout.SECTION_SLOTS:
                    known = ", ".join(self._sections)
                    raise ValueError(f"section {name!r} is one too many: at most {layout.SECTION_SLOTS}, and there are {known}")
                found = Section(self, encoded, layout.SECTIONS + len(self._sections) * layout.SECTION_WORDS)
                if self.words is not None:
                    found.publish(self.words)
                self._sections[name] = found
            return found

    def begin_outside(self) -> None:
        """Count the time outside of sections from now on, unless one is open."""
        if self.words is not None and not self.open:
            self.out_since = self.words[_OUT_SINCE_NS] = monotonic_ns()

    def end_outside(self) -> None:
        """Do not count it until the next section ends."""
        self.out_since = 0
        if self.words is not None:
            self.words[_OUT_SINCE_NS] = 0

    def close_all(self) -> None:
        """Close every section, however often it was entered."""
        with self.lock:
            for section in self._sections.values():
                while section.depth:
                    section.__exit__()

    # --- limits ---------------------------------------------------------------------------------------------------------

    def set_limits(self, initial_s: float | None = None, beat_s: float | None = None, out_s: float | None = None) -> None:
        """Say how long it may take until the first heartbeat (since `await_heartbeat`, or else since the start), from one to
        the next, and between two sections. Infinity: no limit; None: the agent's own holds."""
        if self.words is not None:
            with self.lock:
                self.words[layout.INITIAL_LIMIT_NS] = _limit_ns(initial_s)
                self.words[layout.BEAT_LIMIT_NS] = _limit_ns(beat_s)
                self.words[layout.OUT_LIMIT_NS] = _limit_ns(out_s)
                self.words[layout.LIMITS_COUNT] += 1

    def set_warmup(self, steps: int) -> None:
        """Say that so many of this worker's first `step`s are slow: they have the limit of the section `warmup`."""
        if steps < 0:
            raise ValueError(f"warm-up steps: {steps} is not 0 or more")
        if self.words is not None:
            with self.lock:
                self.words[layout.WARMUP_STEPS] = steps + 1
                self.words[layout.LIMITS_COUNT] += 1

    def tell_calculated(
        self, initial_s: float | None, beat_s: float | None, out_s: float | None, sections: Mapping[str, float]
    ) -> None:
        """Tell the agent all limits that have been calculated, for the next lives of the job's ranks. `set_limits` and
        `section` enforce them here. None: not that one."""
        words = self.words
        if words is None:
            return
        with self.lock:
            words[layout.CALCULATED_INITIAL_NS] = _limit_ns(initial_s)
            words[layout.CALCULATED_BEAT_NS] = _limit_ns(beat_s)
            words[layout.CALCULATED_OUT_NS] = _limit_ns(out_s)
            for name, limit_s in sections.items():
                words[self.section(name).at + layout.CALCULATED_NS] = _limit_ns(limit_s)
            words[layout.CALCULATED_COUNT] += 1
        self._rouse()

    # --- requests -------------------------------------------------------------------------------------------------------

    def ask(self, kind: str, reason: str) -> bool:
        """Ask something of the job (one of `CONTROL_KINDS`), and wake the agent. A second request replaces the first, unless
        that has been read. False: there is no agent."""
        words = self.words
        if words is None:
            return False
        text = _cut(reason.replace("\0", " "), layout.CONTROL_TEXT_BYTES)
        with self.lock:
            words[layout.CONTROL_KIND] = 0
            _put(words, layout.CONTROL_TEXT, text, layout.CONTROL_TEXT_BYTES)
            words[layout.CONTROL_KIND] = layout.CONTROL_KINDS.index(kind)
            words[layout.CONTROL_COUNT] += 1
        self._rouse()
        return True

    def tell_life(self, state: int) -> None:
        """Tell the agent whether this process can begin another round in place (`layout.LIFE_STATE`)."""
        if self.words is not None:
            with self.lock:
                self.words[layout.LIFE_STATE] = state
                self.words[layout.LIFE_COUNT] += 1
            self._rouse()

    def begin_anew(self) -> None:
        """What this process has shown so far is of a round that it has let go of: no sign of life in the next one."""
        self.close_all()
        self._beat_at = self._beats = self._longest_gap = self._step_at = self.longest_out = 0
        self.end_outside()
        if self.words is not None:
            for at in (*range(layout.JOINING_NS, layout.STATE_FROM + 1), *range(layout.BEAT_NS, layout.STEP_TOLD + 1)):
                self.words[at] = 0
            self.words[layout.BOOTED_NS] = monotonic_ns()
            self.words[layout.STEP_TOLD] = int(self.steps_told)

    def _rouse(self) -> None:
        """Wake the agent: there is something to read."""
        if self._wake is not None:
            patience_ends = monotonic_ns() + WAKE_PATIENCE_NS
            # Nobody roused: it is just about to fall asleep, and may have looked before we wrote.
            while not self._wake() and monotonic_ns() < patience_ends:
                os.sched_yield()


class Section:
    """One named part of the script. Made by `Writer.section`."""

    __slots__ = (
        "_closed", "_closed_at", "_closed_ns_at", "_lock", "_longest", "_longest_at", "_open_at", "_since", "_took_at",
        "_writer", "at", "depth", "limit_ns", "name",
    )  # fmt: skip

    def __init__(self, writer: Writer, name: bytes, at: int) -> None:
        self.name = name
        self.at = at  # Index of its first word in the page.
        self.depth = 0  # How often it has been entered and not yet left; 0: it is closed.
        self.limit_ns = 0
        self._writer, self._lock = writer, None if UNBROKEN else writer.lock
        self._since = self._longest = self._closed = 0
        self._open_at, self._took_at = at + layout.OPEN_NS, at + layout.TOOK_NS
        self._longest_at, self._closed_at = at + layout.LONGEST_NS, at + layout.CLOSED
        self._closed_ns_at = at + layout.CLOSED_NS

    def publish(self, words: memoryview) -> None:
        """Take its slot in the page."""
        words[self.at + layout.LIMIT_NS] = self.limit_ns
        # The first word last: a reader takes the slot for used then.
        _put(words, self.at + 1, self.name[8:], layout.SECTION_NAME_BYTES - 8)
        _put(words, self.at, self.name[:8], 8)

    def limit(self, limit_s: float) -> None:
        """It may stay open so long. Infinity: as long as it likes."""
        writer, limit_ns = self._writer, _limit_ns(limit_s)
        if self.limit_ns != limit_ns:
            self.limit_ns = limit_ns
            if writer.words is not None:
                with writer.lock:
                    writer.words[self.at + layout.LIMIT_NS] = limit_ns
                    writer.words[layout.LIMITS_COUNT] += 1

    def __enter__(self) -> Section:
        writer = self._writer
        words = writer.words
        if words is None:
            return self
        lock = self._lock
        if lock is not None:
            lock.acquire()
        try:
            # The last call: from here on no signal handler comes in between. So the writer's fields are set here, too.
            now = monotonic_ns()
            depth = self.depth
            self.depth = depth + 1
            if not depth:
                self._since = words[self._open_at] = now
                writer.open += 1
                out_since = writer.out_since
                if out_since:
                    if now - out_since > writer.longest_out:
                        writer.longest_out = words[_LONGEST_OUT_NS] = now - out_since
                    writer.out_since = words[_OUT_SINCE_NS] = 0
                    writer.counts_out = True
        finally:
            if lock is not None:
                lock.release()
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        writer = self._writer
        words = writer.words
        if words is None or not self.depth:  # not entered: there was no page then
            return
        lock = self._lock
        if lock is not None:
            lock.acquire()
        try:
            now = monotonic_ns()
            self.depth = depth = self.depth - 1
            if not depth:
                took = words[self._took_at] = now - self._since
                if took > self._longest:
                    self._longest = words[self._longest_at] = took
                writer.open -= 1
                if not writer.open and writer.counts_out:  # before the section is closed, so that nobody sees neither
                    writer.out_since = words[_OUT_SINCE_NS] = now
                words[self._open_at] = 0
                # Counted last: the count says which limit holds, and one more `step` that is still open would have another.
                words[self._closed_ns_at] = now
                self._closed = words[self._closed_at] = self._closed + 1
        finally:
            if lock is not None:
                lock.release()

    def __call__(self, fn: F) -> F:
        """Decorate a function, a generator or a coroutine function: the section is open while it runs."""
        from functools import wraps  # only scripts that decorate need it

        flags = getattr(getattr(fn, "__code__", None), "co_flags", 0)
        section, decorated = self, fn

        if flags & 0x200:  # an asynchronous generator
            raise TypeError(f"{fn!r} is an asynchronous generator: use `with section(…)` inside it")
        if flags & 0x80:  # inspect.CO_COROUTINE

            @wraps(fn)
            async def within(*args: Any, **kwargs: Any) -> Any:
                with section:
                    return await decorated(*args, **kwargs)
        elif flags & 0x20:  # inspect.CO_GENERATOR

            @wraps(fn)
            def within(*args: Any, **kwargs: Any) -> Any:
                with section:
                    return (yield from decorated(*args, **kwargs))
        else:

            @wraps(fn)
            def within(*args: Any, **kwargs: Any) -> Any:
                with section:
                    return decorated(*args, **kwargs)

        return within  # type: ignore


def _limit_ns(limit_s: float | None) -> int:
    if limit_s is None:
        return 0
    if not limit_s > 0:
        raise ValueError(f"limit: {limit_s!r} is not a number of seconds above 0, or infinity")
    return int(min(limit_s * 1e9, layout.NO_LIMIT - 1)) or 1 if limit_s != float("inf") else layout.NO_LIMIT


def _put(words: memoryview, at: int, text: bytes, size: int) -> None:
    words.cast("B")[at * 8 : at * 8 + size] = text.ljust(size, b"\0")


def _cut(text: str, size: int) -> bytes:
    """`text` as UTF-8 of at most `size` bytes, whole characters only."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode("utf-8")
