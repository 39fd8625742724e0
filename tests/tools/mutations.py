"""Which wrong decisions does `mutate.py` make? One row each: in plain words, where, what stands there, and what is put instead.

A row is a decision that a release must get right, changed in the least way that a hurried hand might. The old text stands in
its file exactly once (`tests/unit/test_mutations.py`): a change of that code mends the row too.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """One of them."""

    name: str
    """What is wrong then, in plain words."""
    file: str
    """Below src/holdfast."""
    old: str
    new: str


MUTATIONS = (
    # --- who takes part, and who leads ---
    Mutation(
        "a round forms without the pause after a crash loop",
        "rendezvous/coordinator/job.py",
        "self.gathering.wait_until(now + pause_s)",
        "self.gathering.wait_until(now)",
    ),
    Mutation(
        "the failure to blame is the last one borne with, not the first",
        "rendezvous/coordinator/job.py",
        "self.borne = self.borne or (name, failure)",
        "self.borne = (name, failure)",
    ),
    Mutation(
        "each node's first rank follows the last node's by one",
        "rendezvous/placement/placement.py",
        "        base += one.nproc\n",
        "        base += 1\n",
    ),
    Mutation(
        "a member's lease ends no sooner than the coordinator gives it up",
        "rendezvous/lease.py",
        "return lease_s - _head_start_s(lease_s)",
        "return lease_s",
    ),
    Mutation(
        "a node votes although its promise binds it",
        "rendezvous/election/voting.py",
        "is_in_reach(state, proposed.term) or now < max(state.free_at, state.proposal.until):",
        "is_in_reach(state, proposed.term) or now < state.proposal.until:",
    ),
    Mutation(
        "a minority of an odd number of nodes is enough to lead",
        "rendezvous/election/leader_lease.py",
        "return (self.size + 1) // 2 if not self.witness",
        "return self.size // 2 if not self.witness",
    ),
    Mutation(
        "an assignment is passed on after the lease is over",
        "rendezvous/member.py",
        "if self.held is None or self.lease_ends is None or now >= self.lease_ends:",
        "if self.held is None or self.lease_ends is None:",
    ),
    # --- what next, after a failure ---
    Mutation(
        "the budget allows one restart more",
        "recovery/policy.py",
        "if self.left(now) <= 0:",
        "if self.left(now) < 0:",
    ),
    Mutation(
        "a job that restarts in vain ends with exit code 1",
        "recovery/policy.py",
        'reason=why, exit_code=self.no_restart_exit_code)',
        'reason=why, exit_code=1)',
    ),
    # --- what one node does ---
    Mutation(
        "a lease that ends does not shorten the workers' grace",
        "agent/group/stopping.py",
        "kill_at=min(stopping.kill_at, over.until)",
        "kill_at=max(stopping.kill_at, over.until)",
    ),
    Mutation(
        "no port is held for the round to come",
        "agent/workers/workers.py",
        "            return [self.hold_port()]\n",
        "            return []\n",
    ),
    Mutation(
        "a spare that still imports becomes a worker",
        "agent/spares/machine.py",
        'if slot.state is not SlotState.WAITING or slot.stale:',
        'if slot.state is SlotState.NONE or slot.stale:',
    ),
    Mutation(
        "a limit that the user gave is doubled",
        "monitor/limits.py",
        "Bound(limit_s=float(given), busy_s=float(given), is_sure=True)",
        "Bound(limit_s=2 * float(given), busy_s=2 * float(given), is_sure=True)",
    ),
    # --- which nodes are fit ---
    Mutation(
        "a swap is over while the node still has its place",
        "supervisor/fleet/swap_steps.py",
        "if job.round <= swap.round or not job.is_running or swap.node in job.ranked:",
        "if job.round <= swap.round or not job.is_running:",
    ),
    Mutation(
        "a verdict of unfit costs a node nothing",
        "health/examiner.py",
        "if one.state == UNFIT and label in self.counts)",
        "if one.state == UNFIT and label not in self.counts)",
    ),
    # --- what happened ---
    Mutation(
        "of several complaints the last is taken for the cause",
        "diagnosis/precedence.py",
        "return min(best, key=lambda one: one.line)",
        "return max(best, key=lambda one: one.line)",
    ),
    Mutation(
        "the last events are not recorded",
        "telemetry/record/recorder.py",
        "        self.flush()\n        self.io_thread.do(self._close_file)\n        if",
        "        self.io_thread.do(self._close_file)\n        if",
    ),
    # --- at the operating system, and in the rank ---
    Mutation(
        "the proof of the token is not compared",
        "runtime/net/frames.py",
        'if not _same(proof, self._proof("member")):',
        "if not proof:",
    ),
    Mutation(
        "the guardian ends nobody when the lease is over",
        "runtime/process/guardian.py",
        "            process.kill_below(self.agent)\n",
        "",
    ),
    Mutation(
        "a worker's request does not wake the agent",
        "client/writer.py",
        "            words[layout.CONTROL_COUNT] += 1\n        self._rouse()\n",
        "            words[layout.CONTROL_COUNT] += 1\n",
    ),
)
