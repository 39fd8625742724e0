"""Where is each fact in a worker's shared page? The layout only: who maps it is `runtime.shm.pages` and `client.bootstrap`.

A page is memory shared by one worker and its agent. Every field has exactly one writer and one reader, is eight bytes wide
and eight-aligned (so that one store is one machine store), and is named here by its index into the page seen as 64-bit words.
Fields that different sides write lie on different cache lines. The fields take 8192 bytes; behind them is room for a long text
and a record, which costs no memory before it is used.

    words    writer   what
    0-15     agent    magic, version, agent's pid, wishes and requests to the worker
    16-31    worker   where the lock word is; answers to wishes and requests
    32-39    kernel   the robust mutex: taken by the worker, marked OWNER_DIED by the kernel when the worker is gone
    40-63    worker   pid, state, exit mark, error mark, and how far it has come in its beginnings
    64-79    worker   heartbeat and progress (hot)
    80-95    worker   limits that the script itself has set, or calculated
    96-127   worker   what the script asks of the job, with a reason in words
    208-239  worker   text: why the bootstrap could not do its whole work
    240      worker   how long the text of modules is
    256-383  worker   text: the exception that ends the script
    384-511  worker   text: what was written to stderr last, where the interpreter ended in good order
    512-1023 worker   sections: 32 slots
    1024-    worker   text: the modules that the script has had loaded
    32768-   worker   its record of collectives
    163840-  agent    text: what the next life of this very process is given
    others   -        reserved

Times are nanoseconds of CLOCK_MONOTONIC; 0 means never. The layout has a version, since the worker's interpreter may hold
another copy of this file than the agent's. What it all means, as a value, is `core.page.signs`.
"""

from __future__ import annotations

FIELDS_BYTES = 8192
MODULES_BYTES = 256 * 1024 - FIELDS_BYTES  # Some 8,000 names: four times those of torch and transformers.
RECORD_ROOM = 1 << 20  # Of bytes: torch's record of 2000 collectives takes a quarter of that.
LIFE_ROOM = 64 * 1024  # Of JSON: the variables that change from one life to the next.
SIZE = FIELDS_BYTES + MODULES_BYTES + RECORD_ROOM + LIFE_ROOM
MAGIC = 0x3145474150464C48  # "HLFPAGE1", little-endian
VERSION = 11

# Agent → worker.
MAGIC_AT = 0
VERSION_AT = 1
AGENT_PID = 2
REQUEST = 8  # Bits of REQUEST_*: what the agent asks of the worker.
REQUEST_COUNT = 9  # Raised by one with each new request.
HOOK = 10  # Bits of HOOK_*: what of an unmodified script's doings is to be noted.
LEASE_NS = 11
"""Until when this rank's node holds its lease: what the rank changes after that may be another rank's already. 0: nobody else
counts on the node."""
LIFE_ASKED = 12  # Raised to an odd number: let go of the round. To an even one: the next life is at LIFE. A futex.
LIFE_BYTES = 13  # How long that is.
HOOK_SIGNS = 1  # Its optimizers' steps and its checkpoints, as signs of life.
HOOK_MODULES = 2  # The modules that it has loaded, for its next life.
HOOK_ONCE = 4  # Its stderr is all ranks': an error that another rank of the attempt has shown is not shown again.
REQUEST_RECORD = 8  # How far it has come in its collectives.

# Worker → agent: the lock.
LOCK_AT = 16  # Byte offset of the mutex's lock word, a futex; 0: not taken yet.
REQUEST_SEEN = 24  # Last REQUEST_COUNT that the worker has acted on.
DUMP_SIGNAL = 25  # At this signal the worker writes its stacks behind the page; 0: it does not.
DUMP_FD = 26  # Its descriptor for that. Check that it still is that file before signalling.

HEARS = 27  # 1: somebody waits for REQUEST_COUNT to change, in futex(2), and knows of REQUEST_RECORD.
REACHED_BYTES = 28  # Of JSON at RECORD: the last collective of each group.
RECORD_BYTES = 29  # Of torch's whole record, behind that; 0: there is none, or no room for it.
MAIN_DUMP_SIGNAL = 30  # As DUMP_SIGNAL, for the main thread's stack alone.

MUTEX = 32
MUTEX_BYTES = 64  # Room for a pthread_mutex_t: 40 bytes on x86-64, 48 on aarch64.

# Worker → agent: life and death.
PID = 40
BOOTED_NS = 41  # CLOCK_MONOTONIC when the bootstrap ran.
STATE = 42
EXIT_NS = 44  # CLOCK_MONOTONIC when the interpreter began to end in good order; 0: it has not.
LIFE_STATE = 45  # One of LIVES: whether it can begin another round in place.
LIFE_COUNT = 46  # Raised by one with each change of that. It wakes the agent.
ERROR = 48  # 1 once an uncaught exception is ending the main thread and its record is on disk.
ERROR_UNIX_NS = 49  # When that was seen, in ns since the epoch; the error record has whole seconds.

JOINING_NS = 52  # When the script first called `init_process_group`: its imports are done by then, as a rule.
JOINED_NS = 53  # When that returned: the ranks have met.
RESTORED_NS = 54  # When it had last loaded a state, of those before its first step.
RESTORE_TOOK_NS = 55  # How long it has been loading such, all in all.
FIRST_STEP_NS = 56
FIRST_STEP = 57  # The number of that step.
STATE_STEP = 58  # The step that all ranks have agreed to go on from (`client.in_place.state`).
STATE_FROM = 59  # Where this rank has that state from: one of those below.
HELD = 60  # Bits of HELD_*: what it keeps from one life to the next. It outlives the process.
HELD_PART = 61  # Which part of the model; ranks of the same part hold the same.
HELD_ROUND = 62  # Of what it has, if that is whole.
HELD_STEP = 63
HELD_KEPT, HELD_STASHED, HELD_WHOLE, HELD_ALL = 1, 2, 4, 8  # ALL: its part is all of the model.

NO_STATE, FROM_SCRIPT, FROM_STASH, FROM_MEMORY, FROM_RANK = range(5)
"""Of STATE_FROM. FROM_RANK and the number of the rank that gave it."""

BOOTING, RUNNING, FINISHING = 0, 1, 2  # Of STATE. FINISHING: the interpreter ends in good order.

NOT_IN_PLACE, IN_PLACE, LET_GO = 0, 1, 2
"""Of LIFE_STATE. IN_PLACE: it lets go of its round when it is asked. LET_GO: it has, and waits for the next."""

# Worker → agent: progress.
BEAT_NS = 64  # The last heartbeat that was no step: a step is one too, and stands in STEP_NS only.
BEATS = 65
STEP = 66
STEP_NS = 67  # When that step was reported.
STEP_TOOK_NS = 68  # From the report before to that one.
FIRST_BEAT_NS = 69
LONGEST_GAP_NS = 70  # Longest time between two heartbeats.
OUT_SINCE_NS = 71  # Since when no section is open; 0: one is, or none has ever been used.
LONGEST_OUT_NS = 72  # Longest time between two sections, of those that are over.
STEP_TOLD = 73  # 1: the script itself says its steps; they go on from one process to the next.
AWAITED_NS = 74  # Since when its rank monitor waits for the first heartbeat; 0: it does not, or that has come.

# Worker → agent: limits that the script has set or calculated, in nanoseconds. 0: not set.
INITIAL_LIMIT_NS = 80  # From AWAITED_NS to the first heartbeat; where that is 0, from the start of the process.
BEAT_LIMIT_NS = 81  # Between two heartbeats.
OUT_LIMIT_NS = 82  # With no section open.
LIMITS_COUNT = 83  # Raised by one after each change, of sections too; 0: none is set.
WARMUP_STEPS = 84  # So many of its first `step`s are slow, and one more; 0: not said.
CALCULATED_INITIAL_NS = 85  # The same, as calculated: later lives of the ranks calculate from them.
CALCULATED_BEAT_NS = 86
CALCULATED_OUT_NS = 87
CALCULATED_COUNT = 88  # Raised by one after each change, of sections too. It wakes the agent.
NO_LIMIT = 0xFFFF_FFFF_FFFF_FFFF  # In the place of a limit: there is to be none.

# Worker → agent: what the script asks of the job. The agent is woken for it, as for an error.
CONTROL_COUNT = 96  # Raised by one with each complete request. A later one takes the place of the one before.
CONTROL_KIND = 97  # Index into CONTROL_KINDS; 0 while one is being written.
CONTROL_TEXT = 98
CONTROL_TEXT_BYTES = 240
CONTROL_KINDS = ("", "exclude", "stop", "restart", "continue")

TROUBLE = 208
TROUBLE_BYTES = 256

MODULES_END = 240
"""Bytes of text at MODULES. Lines, each a mark and a name, in the order in which their loading began; among them, what the
script had changed by then that decides what is loaded, and what it finds."""
MODULES = 1024
RECORD = MODULES + MODULES_BYTES // 8
LIFE = RECORD + RECORD_ROOM // 8
LAST_WORDS = 256  # Text: type and text of the exception that ends the script, in one line, whether or not it has a record.
LAST_WORDS_BYTES = 1024
LAST_LINE = 384  # Text: what Python wrote to stderr last, at its end. SystemExit's text goes there, and nowhere else.
LAST_LINE_BYTES = 1024
LOADING, LOADED = b" ", b"+"  # The marks. What fails to load, or is still at it, has the first.
CHANGED, ELSEWHERE = b"=", b"?"
"""`=NAME SUM`: this variable is not what the process began with, but has a value of that checksum (`-`: none). `?NAME ORIGIN`:
this module comes from no directory that was searched when the process began."""

# Worker → agent: sections. A slot is taken once its first word is not 0, and keeps its name.
SECTIONS = 512
SECTION_SLOTS = 32
SECTION_WORDS = 16
SECTION_NAME_BYTES = 64  # Of UTF-8, padded with NUL.
OPEN_NS = 8  # Within a slot: since when it is open; 0: it is closed.
TOOK_NS = 9  # How long it was open the last time.
LONGEST_NS = 10
CLOSED = 11  # How often it has been closed.
LIMIT_NS = 12  # As the limits above.
CLOSED_NS = 13  # When it was closed last.
CALCULATED_NS = 14  # As above.

# The kernel's marks in a robust mutex's lock word (linux/futex.h).
FUTEX_WAITERS = 0x80000000
FUTEX_OWNER_DIED = 0x40000000
FUTEX_TID_MASK = 0x3FFFFFFF

FUTEX_WAIT, FUTEX_WAKE = 0, 1

_FUTEX_SYSCALLS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "loongarch64": 98, "ppc64le": 221, "ppc64": 221, "s390x": 238}


def futex_syscall(machine: str) -> int | None:
    """Number of futex(2) on `machine` (as in `os.uname().machine`). None: not known, so deaths come by pidfd alone."""
    return _FUTEX_SYSCALLS.get(machine)


def source_in_words(word: int) -> str:
    """STATE_FROM as a person reads it: `script` · `stash` · `memory` · `rank N`; empty: none has been agreed on."""
    return ("", "script", "stash", "memory")[word] if word < FROM_RANK else f"rank {word - FROM_RANK}"
