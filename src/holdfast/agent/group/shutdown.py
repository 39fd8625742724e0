"""How does this node leave the job before its end? At a signal to its agent, or when its guardian is gone.

Where the coordinator is in this process, the job ends with it, unless the node has made way for another
(`agent.leader.peer_elected_node`); else the others are told, and go on without this node. Workers get the agent's signal and
their grace; a second signal ends both at once.
"""

from __future__ import annotations

from holdfast.agent.group import stopping
from holdfast.agent.group.job_end import exit
from holdfast.agent.group.messages import Send, SignalWorkers
from holdfast.agent.group.state import Leaving, Phase, State, Step, first
from holdfast.core.job.events import GuardianLost, SignalReceived
from holdfast.core.machine import Action, Record, Say
from holdfast.core.signals import name_of, signal
from holdfast.core.value import replace
from holdfast.core.wire.messages import Leave, Request, RequestKind, Stopped

ECHO_S = 1.0
"""The same signal within this time is the same request: a scheduler that signals a whole cgroup (Slurm, systemd) reaches us
twice, once directly and once through our guardian. A person who is in a hurry presses again."""


def signalled(state: State, signum: int, now: float) -> Step:
    """The agent got a signal."""
    return first([Record(event=SignalReceived(signal=name_of(signum)))], _heeded(state, signum, now))


def _heeded(state: State, signum: int, now: float) -> Step:
    is_over = state.phase is Phase.ENDED
    if signum in state.script.signums:
        script, signums = (state.script, ()) if is_over else state.script.came(signum, now)
        return replace(state, script=script), _pass_on(state, signums)
    # An echo: it says no more than the signal before.
    if state.leaving is not None and signum == state.leaving.signum and now - state.leaving.since < ECHO_S:
        return state, []
    if is_over:  # only last lines are waited for
        return replace(state, in_a_hurry=True), []
    return _hurry(state, now) if state.leaving is not None else _told_to_go(state, signum, now)


def script_signals_due(state: State, now: float) -> Step:
    """Signals of the script's whose echo has not come."""
    script, signums = state.script.due(now)
    return replace(state, script=script), _pass_on(state, signums)


def _pass_on(state: State, signums: tuple[int, ...]) -> list[Action]:
    return [SignalWorkers(local_ranks=state.workers.alive, signum=signum) for signum in signums]


def _told_to_go(state: State, signum: int, now: float) -> Step:
    name, grace_s = name_of(signum), state.grace_s if state.term_grace_s is None else state.term_grace_s
    text = f"received {name}; stopping the workers, SIGKILL in {grace_s:g} s, or at another signal"
    said: list[Action] = [] if state.is_early else [Say(text=text, level="warning")]
    return first(said, _go(replace(state, grace_s=grace_s), signum, f"received {name}", now))


def unguarded(state: State, now: float) -> Step:
    """The guardian was killed. If the agent is killed next, nothing is left to end the workers."""
    text = "the guardian (the process that you started) was killed; stopping everything now"
    actions: list[Action] = [Record(event=GuardianLost()), Say(text=text, level="error")]
    if state.leaving is None and state.phase is not Phase.ENDED:
        state, gone = _go(state, signal.SIGTERM, "lost its guardian: the process that was started was killed", now)
        actions += gone
    if state.phase is not Phase.ENDED:
        return first(actions, _hurry(state, now))
    return state, actions


def made_way(state: State, reason: str) -> Step:
    """The agent was told to go, and its coordinator's part is another's: the job goes on without this node."""
    return exit(state, 1, complaint=f"stopped: {reason}")


def _go(state: State, signum: int, why: str, now: float) -> Step:
    """This node's part ends: workers get `signum`."""
    goodbye = _goodbye(state, why)
    if state.is_early:
        return first(goodbye, exit(state, -signum, reason=why))
    state = replace(state, leaving=Leaving(signum=signum, since=now, why=why), rejoin=False)
    match state.phase:
        case Phase.RUNNING:
            return first(goodbye, stopping.stop(state, signum, f"the agent {why}", now))
        case Phase.SUCCEEDED:
            return first(goodbye, stopping.all_gone(state, now))
        case Phase.JOINING | Phase.STOPPED if not state.hosting:
            return first(goodbye, exit(state, 1, complaint=f"stopped: it {why}"))
    return state, goodbye


def _hurry(state: State, now: float) -> Step:
    """A second signal: no more grace."""
    state = replace(state, in_a_hurry=True)
    if state.stopping is not None:
        return stopping.kill(state, state.stopping, now)
    return exit(state, 1, complaint="stopped by a second signal, without waiting for the other nodes")


def _goodbye(state: State, why: str) -> list[Action]:
    node, name, number = state.join.node, state.join.name, state.round
    if state.hosting:
        return [Send(message=Request(node=node, kind=RequestKind.STOP, reason=f"{name} {why}"))]
    goodbye: list[Action] = [Send(message=Leave(node=node, round=number, reason=why))]
    if not state.workers.alive:
        # Said at once: an assignment may be on its way to us that makes others wait for our workers.
        goodbye.append(Send(message=Stopped(node=node, round=number)))
    return goodbye
