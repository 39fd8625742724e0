"""The witness is asked by a process beside the ranks, whatever becomes of these meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ASKS_AND_SWEEPS = """
import sys
from holdfast.agent.leader.tie_breaker import Witness
from holdfast.core.machine import NEVER
from holdfast.rendezvous.election.witness_claims import Claim
from holdfast.runtime.host import Host

host = Host(print)
witness = Witness(sys.argv[1], host)
witness.perform(Claim(life="l", id=1, endpoint="10.0.0.2:4000"))
host.sweep()  # as when the ranks of a round are stopped
print(host.wait(NEVER), host.others)
"""


def test_it_is_not_taken_for_what_dead_ranks_have_left(tmp_path: Path) -> None:
    # In a process of its own: whatever else is below it would be swept away.
    done = subprocess.run([sys.executable, "-c", ASKS_AND_SWEEPS, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[Claimed(id=1, granted=True, reason='')] set()\n"
