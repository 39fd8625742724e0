"""A stage for one group: it is shown things one by one, and what it did last can be asked for."""

from __future__ import annotations

from typing import Any

from kit.stages import made_up
from kit.stages.quick_disk import QuickGroup

from holdfast.agent.group.messages import Ended, Send, Started, Told
from holdfast.agent.group.signal_forwarding import of_script
from holdfast.agent.group.state import State
from holdfast.core.job.events import Event
from holdfast.core.job.failure import Evidence
from holdfast.core.machine import Record
from holdfast.core.value import replace
from holdfast.core.wire.messages import Assigned, Join, Message

GRACE_S = 10.0
JOIN = Join(node="n1-id", name="n1", addr="n1", master_port=0, nproc=2, role="default")
REPORT = made_up.report("failed", "rank 5 failed")


def assigned(number: int = 1) -> Assigned:
    return made_up.assigned(number, group_rank=1, of=2, base_rank=4, world_size=6)


class Stage:
    """A group, and what it did last."""

    def __init__(
        self,
        *,
        hosting: bool = False,
        stop_signals: tuple[int, ...] = (),
        join: Join = JOIN,
        echoing: bool = False,
        **more: Any,
    ) -> None:
        script = of_script(stop_signals, echoing=echoing)
        self.group = QuickGroup(
            State(join=join, grace_s=GRACE_S, hosting=hosting, endpoint="head:29400", script=script, **more)
        )
        self.now = 0.0
        self.did = self.group.begin(0.0)

    def see(self, seen: Any, now: float | None = None) -> list[Any]:
        self.now = self.now if now is None else now
        self.did = self.group.observe(seen, self.now)
        return self.did

    def told(self, message: Message, now: float | None = None) -> list[Any]:
        return self.see(Told(message=message), now)

    def run(self, number: int = 1, *, carries_on: bool = False) -> None:
        """Get a round and start both workers."""
        self.told(replace(assigned(number), carries_on=carries_on))
        for i in range(2):
            self.see(Started(local_rank=i, pid=100 * number + i, argv=("x",), log_dir=None))

    def end(self, local_rank: int, exitcode: int, *, gone: bool = True, at: float = 0.0, message: str = "") -> list[Any]:
        evidence = Evidence(message=message, traceback="Traceback" if message else None)
        pid = self.group.workers[local_rank].pid
        return self.see(Ended(local_rank=local_rank, pid=pid, exitcode=exitcode, gone=gone, at_unix=at, evidence=evidence))

    @property
    def said(self) -> list[Message]:
        return [action.message for action in self.did if isinstance(action, Send)]

    def only(self, kind: type) -> Any:
        found = [action for action in self.did if isinstance(action, kind)]
        assert len(found) == 1, self.did
        return found[0]

    @property
    def recorded(self) -> list[Event]:
        return [action.event for action in self.did if isinstance(action, Record)]

    def does(self, kind: type) -> bool:
        return any(isinstance(action, kind) for action in self.did)


def running() -> Stage:
    """Both workers, global ranks 4 and 5, run in round 1."""
    stage = Stage()
    stage.run()
    return stage
