"""What were a node's other ranks doing when one of the job's failed? Their stacks, in the moment before they are asked to end.

Carries out `ShowStacks`. All are asked at once (a signal to faulthandler, which needs no GIL) and write within a millisecond,
unless they are stuck or have no processor. They are waited for, since SIGTERM would cut them short, but never for longer than
`WITHIN_S`: a restart takes some 30 ms. Whatever takes longer to find out is for a look at ranks that hang (`agent.stacks`).
"""

from __future__ import annotations

import select

from holdfast.core.stack_text import is_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.words import ShowStacks
    from holdfast.agent.workers import Workers

WITHIN_S = 0.005
"""For all of them together."""

POLL_MS = 1
"""Between two looks at what they have written: only of its end would one tell us."""


def last_stacks(workers: Workers, wanted: ShowStacks) -> dict[int, str]:
    """By global rank: what is to be kept of each, the stacks of its threads or why there are none."""
    until = workers.host.now() + WITHIN_S
    unable = workers.dump(wanted.local_ranks)
    pids = {local_rank: pid for pid, local_rank in workers.local_ranks.items()}
    stacks = {local_rank: "" for local_rank in wanted.local_ranks if local_rank not in unable}
    ends, awaited = select.poll(), {}
    for local_rank in stacks:
        fd = workers.host.children[pids[local_rank]].process.pidfd
        awaited[local_rank] = fd
        if fd is not None:
            ends.register(fd, select.POLLIN)
    while awaited and workers.host.now() < until:
        gone = {fd for fd, _ in ends.poll(POLL_MS)}
        for local_rank in tuple(awaited):
            stacks[local_rank] = workers.dumped(local_rank)
            if is_whole(stacks[local_rank]) or awaited[local_rank] in gone:
                del awaited[local_rank]
    late = f"it has not shown its stacks within {WITHIN_S * 1000:g} ms"
    told = {local_rank: text or late for local_rank, text in stacks.items()}
    told |= {local_rank: f"it cannot show its stacks: {why}" for local_rank, why in unable.items()}
    ranks = {wanted.base_rank + local_rank: (local_rank, text) for local_rank, text in told.items()}
    return {rank: f"{wanted.reason}\nrank {rank} (local {local})\n\n{text}\n" for rank, (local, text) in ranks.items()}
