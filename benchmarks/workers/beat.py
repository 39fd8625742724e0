"""Prints what each call costs, in microseconds: the best of several rounds, since what disturbs only ever adds."""

import json
import timeit

from holdfast import client

CALLS = 100_000
STATEMENTS = {
    "heartbeat": "heartbeat()",
    "progress": "progress(7)",
    "section": "with section('checkpoint'):\n    pass",
}
costs = {
    name: min(timeit.repeat(statement, globals=vars(client), number=CALLS, repeat=9)) / CALLS * 1e6
    for name, statement in STATEMENTS.items()
}
print(json.dumps(costs))
