"""What may a training script say to Holdfast? That it lives, how far it is, what it is doing, and what it wants of the job.

Importing this costs no more than the standard library's lightest modules, and a call is a few stores into shared memory.
Without an agent every call does nothing, so a script can be run by hand unchanged; and so in forked children, such as data
loaders, which are not the agent's workers. Any thread may call anything (see `client.writer`).
"""

from __future__ import annotations

from holdfast.client import control
from holdfast.client.commit import NotCommitted, commit
from holdfast.client.in_place.lives import Life, Regroup, lives, run_in_place
from holdfast.client.record import record
from holdfast.client.worker import this_worker

__all__ = [
    "Life", "NotCommitted", "Regroup", "commit", "control", "heartbeat", "lives", "progress", "record", "run_in_place",
    "section", "set_limits",
]  # fmt: skip

# Its methods themselves: a function around each would cost half as much again.
heartbeat = this_worker.heartbeat
progress = this_worker.progress
section = this_worker.section
set_limits = this_worker.set_limits
