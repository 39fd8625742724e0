"""Which global and role ranks do this node's workers get, when nodes may differ in role and number of workers?

Node 0 reads what every node has, adds up in the order of node ranks, and writes each node its own answer. A worker's rank is
its node's first rank plus its local rank.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .worker_group import Worker

ROLE_INFO, ASSIGNED_RANKS = "torchelastic/role_info/", "torchelastic/assigned_ranks/"
IDENTICAL_ENV = "TORCH_ELASTIC_WORKER_IDENTICAL"
"""Set to 1, it promises that all nodes have the same role and number of workers; then no node asks the others."""


@dataclass(slots=True)
class _RoleInstanceInfo:
    """What one node has."""

    role: str
    rank: int
    local_world_size: int

    def serialize(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def deserialize(data: bytes) -> _RoleInstanceInfo:
        """From that JSON."""
        return _RoleInstanceInfo(**json.loads(data))

    @staticmethod
    def compare(obj1: _RoleInstanceInfo, obj2: _RoleInstanceInfo) -> int:
        """By role, then by rank: negative, 0 or positive."""
        if obj1.role != obj2.role:
            return 1 if obj1.role > obj2.role else -1
        return obj1.rank - obj2.rank

    @staticmethod
    def find_role_boundaries(roles_infos: Sequence[_RoleInstanceInfo], role: str) -> tuple[int, int]:
        """First and last index of `role`; (-1, -1) if it is not there."""
        found = [index for index, info in enumerate(roles_infos) if info.role == role]
        return (found[0], found[-1]) if found else (-1, -1)


def first_ranks(nodes: Sequence[_RoleInstanceInfo]) -> list[tuple[int, int, int, int]]:
    """For each node: first global rank, global size, first rank within its role, size of its role."""
    role_sizes: defaultdict[str, int] = defaultdict(int)
    for node in nodes:
        role_sizes[node.role] += node.local_world_size
    global_size = sum(role_sizes.values())
    assigned, taken, taken_in_role = [], 0, defaultdict[str, int](int)
    for node in nodes:
        assigned.append((taken, global_size, taken_in_role[node.role], role_sizes[node.role]))
        taken += node.local_world_size
        taken_in_role[node.role] += node.local_world_size
    return assigned


def assign(store: Any, group_rank: int, group_world_size: int, role: str, local_world_size: int) -> list[Worker]:
    """This node's workers with their ranks; waits in `store` for what node 0 works out."""
    if os.environ.get(IDENTICAL_ENV, "0") == "1":
        global_size, base = group_world_size * local_world_size, group_rank * local_world_size
        base_in_role, role_size = base, global_size
    else:
        store.set(f"{ROLE_INFO}{group_rank}", _RoleInstanceInfo(role, group_rank, local_world_size).serialize())
        if group_rank == 0:
            given = store.multi_get([f"{ROLE_INFO}{index}" for index in range(group_world_size)])
            answers = [json.dumps(answer) for answer in first_ranks([_RoleInstanceInfo.deserialize(data) for data in given])]
            store.multi_set([f"{ASSIGNED_RANKS}{index}" for index in range(group_world_size)], answers)
        base, global_size, base_in_role, role_size = json.loads(store.get(f"{ASSIGNED_RANKS}{group_rank}"))
    return [
        Worker(index, base + index, base_in_role + index, global_size, role_world_size=role_size)
        for index in range(local_world_size)
    ]
