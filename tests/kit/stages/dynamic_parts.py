"""What tests of the dynamic rendezvous are made of: settings, nodes, clocks that stand, and places for its state."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from datetime import datetime, timedelta
from unittest.mock import patch

NOW = datetime(2000, 1, 1)
SECOND = timedelta(seconds=1)


def settings_of(dynamic, min_nodes=1, max_nodes=2, **timeouts):
    return dynamic.RendezvousSettings(
        run_id="job",
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        timeout=dynamic.RendezvousTimeout(**timeouts),
        keep_alive_interval=30 * SECOND,
        keep_alive_max_attempt=3,
    )


def node(dynamic, name, number=1):
    return dynamic._NodeDesc(name, number, number)


@contextmanager
def stopped_clocks(dynamic, monotonic=10.0):
    with patch.object(dynamic, "datetime") as wall, patch.object(dynamic, "time") as clock:
        wall.now.return_value = NOW
        clock.monotonic.return_value = monotonic
        yield clock


def state_with(dynamic, participants=(), **rest):
    state = dynamic._RendezvousState()
    for name in participants:
        state.participants[node(dynamic, name)] = 0
        state.last_heartbeats[node(dynamic, name)] = NOW
    for field, value in rest.items():
        setattr(state, field, value)
    return state


class Backend:
    """Holds one state; the token counts the writes."""

    name = "mine"

    def __init__(self):
        self.state, self.token, self.reads, self.writes = None, 0, 0, 0

    def get_state(self):
        self.reads += 1
        return None if self.state is None else (self.state, self.token)

    def set_state(self, state, token=None):
        self.writes += 1
        wins = (token or 0) == self.token
        if wins:
            self.put(state)
        return self.state, self.token, wins

    def put(self, state):
        self.state, self.token = state, self.token + 1

    @property
    def seen(self):
        return pickle.loads(self.state)


class Holder:
    """A copy of the state that nobody else writes."""

    def __init__(self, state):
        self.state, self.calls, self.dirty = state, [], None

    def sync(self):
        self.calls.append("sync")
        was, self.dirty = self.dirty, None
        return was

    def mark_dirty(self):
        self.calls.append("mark")
        self.dirty = True
