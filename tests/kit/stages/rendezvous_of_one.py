"""A rendezvous of the user's own, for tests of agents that meet nobody."""

from __future__ import annotations

from holdfast.elastic.rendezvous.memory_store import MemoryStore


def rendezvous_of_one(names, waiting=(), backend="mine"):
    """Always this node alone, over a store in memory; a fresh port each round, `waiting` nodes at each question."""
    rendezvous = names("rendezvous")
    asked = iter(waiting)

    class Alone(rendezvous.RendezvousHandler):
        rounds = 0

        def next_rendezvous(self):
            self.rounds += 1
            meeting_point = rendezvous.RendezvousStoreInfo("10.0.0.1", 4000 + self.rounds)
            return rendezvous.RendezvousInfo(MemoryStore(), 0, 1, meeting_point)

        def num_nodes_waiting(self):
            return next(asked, 0)

        def get_backend(self):
            return backend

        def get_run_id(self):
            return "job7"

        def is_closed(self):
            return False

        def set_closed(self): ...

        def shutdown(self):
            return True

    return Alone()
