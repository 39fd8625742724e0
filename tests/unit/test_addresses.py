"""Which names, as they are written, mean this host and nothing else?"""

from __future__ import annotations

import pytest

from holdfast.runtime.net.addresses import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1"])
def test_these_mean_this_host(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["127.evil.example", "127.0.0.1.evil.example", "127.1", "0.0.0.0", "node0", "", "a\0b"])
def test_these_may_be_others(host):
    assert not is_loopback(host)
