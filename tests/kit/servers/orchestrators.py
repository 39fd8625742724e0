"""What any orchestrator has to do, as a suite: a subclass gives `orchestrator`, and the nodes that it has."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.errors import HoldfastError
from holdfast.supervisor.fleet.messages import Need


class OrchestratorSuite:
    """The contract. `names`: two nodes that the orchestrator gives work; `replaces`: whether it can get other ones."""

    names: tuple[str, str] = ("n1", "n2")
    replaces = True

    def held(self, name: str) -> str:
        """Why that node gets no work, as the orchestrator shows it. Empty: it gets some."""
        raise NotImplementedError

    def test_a_drained_node_gets_no_work_and_shows_why(self, orchestrator: Any) -> None:
        first, second = self.names
        assert first in orchestrator.drain(first, "GPU 0: Xid 79, the GPU has fallen off the bus")
        assert self.held(first) == "GPU 0: Xid 79, the GPU has fallen off the bus" and not self.held(second)

    def test_to_drain_twice_is_as_good_as_once(self, orchestrator: Any) -> None:
        first = self.names[0]
        for _ in range(2):
            orchestrator.drain(first, "its fan is loud")
        assert self.held(first) == "its fan is loud"

    def test_it_gets_work_again_when_it_is_let_back_once_or_twice(self, orchestrator: Any, wait_until: Any) -> None:
        first = self.names[0]
        orchestrator.drain(first, "its fan is loud")
        for _ in range(2):
            orchestrator.uncordon(first, "a new fan")
        wait_until(lambda: not self.held(first))  # Slurm asks the node itself first

    def test_a_reason_may_hold_anything(self, orchestrator: Any) -> None:
        first = self.names[0]
        orchestrator.drain(first, "two\nlines, 'quotes' \"of both\" kinds; State=IDLE [brackets] $HOME ü")
        assert "quotes" in self.held(first)

    def test_a_node_is_vacant_only_once_it_is_cordoned(self, orchestrator: Any, wait_until: Any) -> None:
        first = self.names[0]
        with pytest.raises(HoldfastError, match=first):
            orchestrator.vacant(first)
        orchestrator.drain(first, "its fan is loud")
        self.leave(first)
        wait_until(lambda: self.is_vacant(orchestrator, first))

    def leave(self, name: str) -> None:
        """Where somebody has to end what was evicted from that node: it has ended."""

    def is_vacant(self, orchestrator: Any, name: str) -> bool:
        try:
            return name in orchestrator.vacant(name)
        except HoldfastError:
            return False

    def test_another_node_is_asked_for_once_for_each_key(self, orchestrator: Any) -> None:
        first = self.names[0]
        if not self.replaces:
            try:
                orchestrator.replace(first, "1-1.replace", Need(reason="its fan is loud"))
            except HoldfastError as error:
                assert error.hint
            else:
                raise AssertionError("it cannot replace a node, and does not say so")
            return
        orchestrator.replace(first, "1-1.replace", Need(reason="its fan is loud"))
        self.has_come()
        for key in ("1-1.replace", "1-1.replace", "1-2.replace"):
            orchestrator.replace(first, key, Need(reason="its fan is loud"))
        assert self.asked_for(2) == 2

    def has_come(self) -> None:
        """Where work comes from a controller: it has made what was asked for, on the same node, since that is not drained."""

    def asked_for(self, wanted: int) -> int:
        """How many nodes have been asked for, once it is at least `wanted`."""
        raise NotImplementedError
