"""What every keeper of a rendezvous' shared state does, whatever it stands on. A subclass gives `backend`."""

from __future__ import annotations

import pytest


class BackendContract:
    """Compare-and-set of one value, by torch's protocol."""

    name = ""

    def test_there_is_no_state_at_first(self, backend):
        assert backend.get_state() is None and backend.name == self.name

    def test_a_state_is_written_and_read(self, backend):
        state, token, wrote = backend.set_state(b"x")
        assert (state, wrote) == (b"x", True) and backend.get_state() == (b"x", token)

    def test_the_current_token_wins(self, backend):
        _, first, _ = backend.set_state(b"x")
        state, second, wrote = backend.set_state(b"y", first)
        assert (state, wrote) == (b"y", True) and second != first
        assert backend.set_state(b"z", first) == (b"y", second, False)

    @pytest.mark.parametrize("token", [None, "not one of its own"])
    def test_no_token_writes_only_the_first_state(self, backend, token):
        state, first, _ = backend.set_state(b"x")
        assert backend.set_state(b"y", token) == (state, first, False)
