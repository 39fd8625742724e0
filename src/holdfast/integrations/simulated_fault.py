"""How is a rank made to die or to hang after a while, for a test? By NVRx's names."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

SIGNALS = {"rank_killed": signal.SIGKILL, "rank_hung": signal.SIGSTOP}


@dataclasses.dataclass
class SimulatedFaultParams:
    """After `base_delay` seconds, and up to `rand_delay` more, `rank_to_fail` (None: any one) is killed, or stopped."""

    fault_type: str  # rank_killed · rank_hung · random (one of the two)
    base_delay: float
    rand_delay: float = 0.0
    rank_to_fail: int | None = None

    @classmethod
    def parse(cls, given: Any) -> SimulatedFaultParams | None:
        """One, or its fields as a mapping. ValueError: it is neither."""
        if given is None or isinstance(given, cls):
            return given
        try:
            return cls(**given) if isinstance(given, Mapping) else cls(**dict(given))
        except (TypeError, ValueError) as error:
            raise ValueError(f"simulated_fault_params: {given!r} is not a SimulatedFaultParams: {error}") from error

    def arrange(self, trainer: Any) -> None:
        """Have it happen, in the rank that the first rank draws."""
        drawn = random.randrange(trainer.world_size) if self.rank_to_fail is None else self.rank_to_fail
        if trainer.strategy.broadcast(drawn) != trainer.global_rank:
            return
        kind = random.choice(sorted(SIGNALS)) if self.fault_type == "random" else self.fault_type
        if kind not in SIGNALS:
            raise ValueError(f"simulated_fault_params: there is no fault_type {kind!r}: {', '.join(SIGNALS)}, random")
        timer = threading.Timer(self.base_delay + self.rand_delay * random.random(), _happen, (kind,))
        timer.daemon = True
        timer.start()


def _happen(kind: str) -> None:
    print(f"simulated fault: {kind} (pid {os.getpid()})", file=sys.stderr, flush=True)
    os.kill(os.getpid(), SIGNALS[kind])
