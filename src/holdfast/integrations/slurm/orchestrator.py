"""Slurm as an orchestrator: nodes are drained with a reason and resumed by `scontrol`, which its operators may use.

Within an allocation Slurm gives no other node for one that is drained: the spares of a job are the nodes that it has asked for
beyond those that it needs. So `replace` only says so.
"""

from __future__ import annotations

import subprocess

from holdfast.core.errors import HoldfastError
from holdfast.supervisor.orchestrator import ASK_S

RESUMED = ("DRAIN", "DOWN", "FAIL")  # Parts of a state (`IDLE+DRAIN`) that an operator's word ends.


class Adapter:
    """See `supervisor.orchestrator.Orchestrator`."""

    name = "slurm"

    def drain(self, node: str, reason: str) -> str:
        _ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={_in_a_line(reason)}")
        return f"Slurm gives {node} no more work"

    def uncordon(self, node: str, reason: str) -> str:
        state = _ask("scontrol", "show", "node", node, "--oneliner").partition(" State=")[2].partition(" ")[0]
        if state and not any(mark in state for mark in RESUMED):
            return f"Slurm gives {node} work already"  # to resume such a one is an error
        _ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return f"Slurm gives {node} work again"

    def replace(self, node: str, key: str, reason: str) -> str:
        """HoldfastError, always: see the module's text."""
        hint = "ask for more nodes than --nnodes needs (sbatch -N)"
        raise HoldfastError(f"Slurm gives no other node for {node} within an allocation", hint=hint)


def _ask(*command: str) -> str:
    """What one of Slurm's commands prints. HoldfastError: it cannot be asked, refuses, or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired as error:
        raise HoldfastError(f"{command[0]} has not answered within {ASK_S:g} s", hint="does slurmctld run?") from error
    except OSError as error:
        raise HoldfastError(f"{command[0]} cannot be run: {error.strerror}", hint="is Slurm installed here?") from error
    if done.returncode:
        raise HoldfastError(f"{command[0]}: {(done.stderr or done.stdout).strip()[:300]}")
    return done.stdout


def _in_a_line(text: str) -> str:
    """What Slurm keeps as a reason: one line, without what would end it in its own output."""
    return " ".join(text.replace("[", "(").replace("]", ")").split())[:200]
