"""How small is what a dashboard is sent, and does every client read it?"""

from __future__ import annotations

import gzip
import json
import random
import string
import zlib

import pytest
from kit.fleet import dashboard_stage as made_up

from holdfast.supervisor.web import compression


def a_thousand_nodes() -> bytes:
    """A cluster's own names; 8 ranks a node, with pids, times of a step and ages of heartbeats as agents report them."""
    chance = random.Random(1)
    pools = [f"gke-prod-us-central1-a3-mega-pool-{pool}-{chance.randrange(1 << 32):08x}" for pool in range(16)]
    names = [f"{pools[at // 64]}-{''.join(chance.choices(string.ascii_lowercase + string.digits, k=4))}" for at in range(1000)]
    nodes = []
    for at, name in enumerate(names):
        pid, step_s = chance.randrange(1000, 90_000), round(chance.uniform(0.4, 0.42), 3)
        ranks = [
            made_up.rank(8 * at + slot, slot, pid=pid + slot, step_s=step_s, beat_age_s=round(chance.uniform(0, 0.4), 1))
            for slot in range(8)
        ]
        on_it = {"job": "pretrain", "round": 1, "state": "running", "ranks": ranks}
        nodes.append(made_up.node(name, domain=f"block-{at // 64}", jobs=[on_it]))
    return json.dumps(made_up.fleet(nodes, [made_up.job("pretrain", names)]), separators=(",", ":")).encode()


def test_a_thousand_nodes_are_at_most_80_kb_on_the_wire():
    plain = a_thousand_nodes()
    assert len(plain) > 1_000_000
    assert len(compression.whole(plain)) <= 80_000
    assert len(compression.block(plain)) <= 80_000, "the stream's first message"


def test_messages_compressed_once_are_read_in_any_stream_and_each_as_soon_as_it_comes():
    messages = [f"event: change\ndata: {at}\n\n".encode() * at for at in (1, 5, 90)]
    blocks = [compression.block(message) for message in messages]
    for order in ([0, 1, 2], [2, 0], [1]):
        reader = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        assert reader.decompress(compression.HEAD) == b""
        for at in order:
            assert reader.decompress(blocks[at]) == messages[at]


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("identity", False),
        ("", False),
        ("x-gzip-like", False),
    ],
)
def test_gzip_is_for_clients_that_take_it(asked, taken):
    assert compression.takes_gzip({"accept-encoding": asked}) is taken
    assert gzip.decompress(compression.whole(b"as it was")) == b"as it was"
