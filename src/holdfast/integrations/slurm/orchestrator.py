"""Slurm as an orchestrator: nodes are drained with a reason and resumed by `scontrol`, which its operators may use.

Within an allocation Slurm gives no other node for one that is drained: the spares of a job are the nodes that it has asked for
beyond those that it needs. So another node is another job's, where the site says how to submit one (`--replace-with`, which
`sbatch`es an agent of the same job). Else a job that stands until another node is there is requeued, once: it begins again on
other nodes, from its checkpoint.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from holdfast.core.errors import HoldfastError
from holdfast.supervisor.fleet.messages import Need
from holdfast.supervisor.orchestrator import ASK_S, NO_LABELS, asked_by_command, note_folder

JOB = re.compile(r"(\d+)\.(\d+)")
"""How the page has jobs called: number, and how often it was queued again (docs/how-to/slurm.md)."""

RESUMED = ("DRAIN", "DOWN", "FAIL")  # Parts of a state (`IDLE+DRAIN`) that an operator's word ends.


class Adapter:
    """See `supervisor.orchestrator.Orchestrator`."""

    name, evicts = "slurm", False

    def __init__(self, folder: str = "", command: Sequence[str] = ()) -> None:
        """`command`: submits a job of one node, whose agent joins; `folder`: where it is remembered that it was started."""
        self.command, self.folder = tuple(command), folder and note_folder(folder)

    def drain(self, node: str, reason: str) -> str:
        _ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={_in_a_line(reason)}")
        return f"Slurm gives {node} no more work"

    def uncordon(self, node: str, reason: str) -> str:
        state = _state(node)
        if state and not any(mark in state for mark in RESUMED):
            return f"Slurm gives {node} work already"  # to resume such a one is an error
        _ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return f"Slurm gives {node} work again"

    def replace(self, node: str, key: str, need: Need) -> str:
        """See the module's text."""
        if self.command:
            return asked_by_command(self.folder, self.command, node, key, need)
        if need.is_urgent and (name := JOB.match(need.job)):
            return _requeued(node, name[1], int(name[2]))
        hint = "ask for more nodes than --nnodes needs (sbatch -N), or give --replace-with"
        raise HoldfastError(f"Slurm gives no other node for {node} within an allocation", hint=hint)


    def vacant(self, node: str) -> str:
        if "DRAIN" not in (state := _state(node)):
            raise HoldfastError(f"Slurm does not drain {node}: it is {state}")
        if jobs := _ask("squeue", "--noheader", f"--nodelist={node}", "--format=%A").split():
            raise HoldfastError(f"Slurm's job {jobs[0]} has {node}")
        return f"Slurm drains {node} ({state}), and no job has it"

    def label(self, node: str, key: str, label: str) -> str:
        raise HoldfastError(NO_LABELS)


def _state(node: str) -> str:
    return _ask("scontrol", "show", "node", node, "--oneliner").partition(" State=")[2].partition(" ")[0]


def _requeued(node: str, job: str, restarts: int) -> str:
    """Queue a job again, unless that was done: then it has restarted more often than when it was named."""
    said = f" {_ask('scontrol', 'show', 'job', job, '--oneliner')}"
    if int(said.partition(" Restarts=")[2].partition(" ")[0] or 0) > restarts or " JobState=PENDING" in said:
        return f"Slurm has queued job {job} again already"
    if " Requeue=1" not in said:
        hint = "submit it with --requeue, or ask for more nodes than --nnodes needs (sbatch -N)"
        raise HoldfastError(f"Slurm gives no other node for {node}, and job {job} may not be requeued", hint=hint)
    _ask("scontrol", "requeue", job)
    return f"Slurm queues job {job} again, for it needs another node than {node}"


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
