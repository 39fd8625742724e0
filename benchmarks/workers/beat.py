"""Prints what one heartbeat costs, in microseconds: the best of several rounds, since what disturbs only ever adds."""

import timeit

from holdfast import client

CALLS = 100_000
print(min(timeit.repeat(client.heartbeat, number=CALLS, repeat=7)) / CALLS * 1e6)
