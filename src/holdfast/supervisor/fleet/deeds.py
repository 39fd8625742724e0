"""Makes deeds: asks the policy what to do about a trouble, does it, and waits for the outcome.

A trouble becomes a `Case`, and the policy's choice about it a `Deed`: stored before anything is done, and again when its
outcome is known. An act that does not help within its time is followed by the policy's next choice.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Act, Deed, Heard, HeldBy, NodeState, Swap, SwapStep, Trouble, TroubleKind, Verb
from holdfast.supervisor.fleet import swap_steps
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.messages import InVain, Tell
from holdfast.supervisor.fleet.node import FleetNode
from holdfast.supervisor.fleet.policies.case import RESTART_S, SOFTWARE, Case, Choice
from holdfast.supervisor.fleet.state import EARLY, LEFT, FleetState, OpenDeed

# --- from a trouble to a deed -----------------------------------------------------------------------------------------


def reported(fleet: FleetState, node: FleetNode, trouble: Trouble, now: float) -> list[Action]:
    """A node has reported a trouble."""
    if not fleet.is_settled(now):
        waiting = fleet.early.setdefault(trouble.node, {})
        if len(waiting) < EARLY:
            waiting[trouble.number] = trouble, _case_of(fleet, trouble, node, fleet.job_of(trouble.node))
        return []
    heard = Tell(node=trouble.node, message=Heard(number=trouble.number))
    if not node.is_new(trouble.node, trouble.number):
        return [heard]
    if not node.may_report(now):
        what = f"{node.name} reports more troubles than are decided about: some are passed over, of other such nodes too"
        return [heard, *fleet.noise.said(what)]
    node.suffer(trouble, fleet.unix(now))
    kept = fleet.kept(node)
    case = _case_of(fleet, trouble, node, fleet.job_of(trouble.node))
    return [kept, *consider(fleet, case, now), *fleet.keep(node, now), heard]


def leaves(fleet: FleetState, reporter: str) -> None:
    """A reporter says goodbye. What it has told before this life knew who is here is not told again: it waits."""
    fleet.left.extend([*fleet.early.pop(reporter, {}).values()][: LEFT - len(fleet.left)])


def left(fleet: FleetState, trouble: Trouble, case: Case, now: float) -> list[Action]:
    """What a reporter had told that has left since."""
    if (node := fleet.nodes.get(case.node)) is None:
        return []
    node.suffer(trouble, fleet.unix(now))
    kept, job = fleet.kept(node), fleet.jobs.get(case.job)
    is_over = job is None or not job.is_here
    if not is_over or trouble.kind not in SOFTWARE:
        case = _case_of(fleet, trouble, node, "" if is_over else case.job)
        return [kept, *consider(fleet, case, now), *fleet.keep(node, now)]
    choice = fleet.rules.policy.decide(case, fleet.action_log.about(node=case.node, job=case.job), fleet.unix(now))
    deed = new_deed(fleet, case, choice, now)
    counted = [kept, *_incident(fleet, case, choice, now), *fleet.action_log.write(deed)]
    return [*counted, *fleet.close(deed.id, "the job ended before it could be done", now)]


def _case_of(fleet: FleetState, trouble: Trouble, node: FleetNode, job_name: str) -> Case:
    case = case_of(fleet, trouble.kind, node.name, job_name, trouble.what)
    more = {"xid": trouble.xid, "device": trouble.device, "cause": trouble.cause}
    return replace(case, handled=trouble.handled, round=trouble.round, **more)


def case_of(fleet: FleetState, trouble: str, node: str, job_name: str, what: str) -> Case:
    """What a policy needs to know about a trouble."""
    job = fleet.jobs.get(job_name)
    if job is None:
        return Case(trouble=trouble, node=node, job="", what=what)
    is_out = job.is_running and any(one.job == job_name and not one.ranks for one in fleet.nodes[node].reports.values())
    return Case(
        trouble=trouble,
        node=node,
        job=job_name,
        what=what,
        spares=tuple(fleet.spares(job, node)),
        nodes=len(job.ranked) + (node not in job.ranked),
        least=job.least,
        takes_orders=not job.is_watched,
        limits=job.limits,
        standby=fleet.standby(),
        restart_s=fleet.numbers.restart_s() or RESTART_S,
        goes_on=is_out and trouble in (TroubleKind.DEVICE, TroubleKind.UNFIT, TroubleKind.OPERATOR),
    )


def consider(fleet: FleetState, case: Case, now: float) -> list[Action]:
    """Ask the policy. Not about a node that was taken out already, or is on its way."""
    node = fleet.nodes[case.node]
    if fleet.swap_of(case.node) is not None or (node.standing == NodeState.UNFIT and node.by != HeldBy.ITSELF):
        return []
    before = fleet.action_log.about(node=case.node, job=case.job)
    choice = fleet.rules.policy.decide(case, before, fleet.unix(now))
    return [*_incident(fleet, case, choice, now), *decided(fleet, case, choice, now)]


def _incident(fleet: FleetState, case: Case, choice: Choice, now: float) -> list[Action]:
    """Count the end of a round once. An operator ends none, nor what is seen of a device and left at that."""
    job = fleet.jobs.get(case.job)
    ends = case.trouble in SOFTWARE or case.trouble == TroubleKind.LOST or choice.act != Act.NONE
    if job is None or case.trouble == TroubleKind.OPERATOR or case.in_vain or not ends or not job.ends(case.round or job.round):
        return []
    fleet.numbers.incident(case.cause or case.trouble, fleet.unix(now))
    return fleet.numbers.keep()


def decided(fleet: FleetState, case: Case, choice: Choice, now: float) -> list[Action]:
    """Store what the policy or an operator decided, and do it."""
    deed = new_deed(fleet, case, choice, now)
    said = Say(text=f"{case.node or case.job}: {choice.act}: {choice.reason}", level="warning")
    return [*fleet.action_log.write(deed), said, *_do(fleet, deed, case, choice, now)]


def new_deed(fleet: FleetState, case: Case, choice: Choice, now: float) -> Deed:
    """The record of a decision, yet to be written."""
    return Deed(
        id=fleet.action_log.fresh_id(),
        at_unix=fleet.unix(now),
        node=case.node,
        job=case.job,
        trouble=case.trouble,
        seen=case.what,
        policy=fleet.rules.policy.name,
        act=choice.act,
        reason=choice.reason,
    )


def _do(fleet: FleetState, deed: Deed, case: Case, choice: Choice, now: float) -> list[Action]:
    round = _round_of(fleet, case)
    match choice.act:
        case Act.NONE:
            return fleet.close(deed.id, "nothing was to be done", now)
        case Act.SWAP | Act.SHRINK | Act.REPLACE:
            by = HeldBy.OPERATOR if case.trouble == TroubleKind.OPERATOR else HeldBy.POLICY
            return swap_steps.begin(fleet, _swap(deed, case, choice, round), by, now)
        case Act.RESTART_WORKERS if case.handled:
            return _leave_to_agents(fleet, deed, case, case.round or round, now)
    act_at = now + choice.delay_s
    until = act_at + fleet.rules.policy.patience_s(case)
    fleet.open_deeds[deed.id] = OpenDeed(case=case, round=round, until=until, act_at=act_at)
    return _give_order(fleet, deed.id, now) if not choice.delay_s else []


def _round_of(fleet: FleetState, case: Case) -> int:
    """The round in which the node's ranks were."""
    round = fleet.jobs[case.job].round if case.job in fleet.jobs else 0
    if case.trouble == TroubleKind.LOST and case.round:
        return case.round  # its job may be in another by now, without it
    return round - 1 if case.goes_on else round  # the running one is without it


def _swap(deed: Deed, case: Case, choice: Choice, round: int) -> Swap:
    spare = case.spares[0] if choice.act == Act.SWAP and case.spares and not case.goes_on else ""
    awaits = choice.act == Act.REPLACE
    hopes_s = case.standby.within_s if awaits and case.can_shrink and case.standby is not None else 0.0
    return Swap(
        id=deed.id,
        node=case.node,
        job=case.job,
        reason=case.what,
        spare=spare,
        round=round,
        step=SwapStep.DRAIN if awaits else SwapStep.EXCLUDE,
        replaces=awaits or len(case.spares) < 2,
        awaits=awaits,
        size=case.nodes,
        expected_by_unix=deed.at_unix + hopes_s if hopes_s else 0.0,
    )


def _leave_to_agents(fleet: FleetState, deed: Deed, case: Case, round: int, now: float) -> list[Action]:
    """The job's own agents restart the ranks. They may have done so: another node's news of the next round can be faster."""
    until = now + fleet.rules.policy.patience_s(case)
    fleet.open_deeds[deed.id] = OpenDeed(case=case, round=round, until=until, act_at=NEVER)
    return fleet.action_log.note(deed.id, "left to the job's own agents") + job_reported(fleet, fleet.jobs[case.job], now)


def _give_order(fleet: FleetState, id: str, now: float) -> list[Action]:
    waits, deed = fleet.open_deeds[id], fleet.action_log.deeds[id]
    job = fleet.jobs[waits.case.job]
    verb = Verb.STOP if deed.act == Act.STOP else Verb.RESTART
    if job.round > waits.round and verb == Verb.RESTART:
        return _close(fleet, id, f"round {job.round} runs already", now)
    speakers = [one for one in job.speakers(but="") if fleet.is_linked(one) and one not in waits.tried]
    if not speakers:
        return failed(fleet, id, f"no agent of the job {'has answered' if waits.tried else 'is heard'}", now)
    # A restart needs ranks, which the coordinator's node may not have.
    speaker = next((one for one in speakers if verb == Verb.STOP or job.reports[one].ranks), speakers[0])
    fleet.open_deeds[id] = replace(waits, act_at=NEVER, tried=(*waits.tried, speaker))
    return fleet.send(speaker, fleet.order(f"{id}.{verb}", verb, deed.reason, round=waits.round), now)


# --- what comes of it -------------------------------------------------------------------------------------------------


def job_reported(fleet: FleetState, job: FleetJob, now: float) -> list[Action]:
    """Something new is known about a job: it may be the outcome of a deed."""
    actions: list[Action] = []
    for id, waits in list(fleet.open_deeds.items()):
        if waits.case.job != job.name or waits.act_at != NEVER:
            continue
        if job.is_running and job.round > waits.round:
            actions += _close(fleet, id, f"round {job.round} runs", now)
        elif not job.is_here or (job.outcome and not job.is_running):
            actions += _close(fleet, id, f"the job ended{job.outcome and f': {job.outcome}'}", now)
    return actions


def answered(fleet: FleetState, id: str, verb: str, ok: bool, text: str, now: float) -> list[Action]:
    """An order or a call for a deed was answered."""
    actions = fleet.action_log.note(id, f"{verb}: {text}")
    if not ok and id in fleet.open_deeds:
        return actions + failed(fleet, id, text, now)
    if id in fleet.action_log.deeds and id not in fleet.open_deeds:
        actions += fleet.close(id, text, now)
    return actions


def unanswered(fleet: FleetState, id: str, verb: str, now: float) -> list[Action]:
    """The agent that was given the order has not answered in time: another one of its job is given the same."""
    last = fleet.open_deeds[id].tried[-1]
    noted = fleet.action_log.note(id, f"{verb}: {fleet.reporters.get(last, last)} has not answered")
    return noted + _give_order(fleet, id, now)


def due(fleet: FleetState, now: float) -> list[Action]:
    """Time has passed."""
    actions: list[Action] = []
    for id, waits in list(fleet.open_deeds.items()):
        if now >= waits.act_at:
            actions += _give_order(fleet, id, now)
        elif now >= waits.until:
            patience_s = fleet.rules.policy.patience_s(waits.case)
            actions += failed(fleet, id, f"no other round ran within {patience_s:g} s", now)
    return actions


def failed(fleet: FleetState, id: str, text: str, now: float) -> list[Action]:
    """An act has not helped: ask the policy for the next one. What an operator ordered of a job is left at that."""
    waits, deed = fleet.open_deeds.pop(id, None), fleet.action_log.deeds[id]
    actions = fleet.close(id, f"in vain: {text}", now)
    if deed.trouble == TroubleKind.OPERATOR and not deed.node:
        return actions
    case = case_of(fleet, deed.trouble, deed.node, deed.job, deed.seen)
    if waits is not None:  # the spares are counted anew: one may have been promised to another node meanwhile
        case = replace(waits.case, spares=case.spares, nodes=case.nodes)
    return actions + consider(fleet, replace(case, in_vain=(*case.in_vain, Act(deed.act))), now)


def next_choices(fleet: FleetState, actions: list[Action], now: float) -> list[Action]:
    """`actions`, with the policy's next choice in the place of each `InVain`."""
    done: list[Action] = []
    for action in actions:
        if isinstance(action, InVain):
            done += next_choices(fleet, failed(fleet, action.deed, action.text, now), now)
        else:
            done.append(action)
    return done


def _close(fleet: FleetState, id: str, outcome: str, now: float) -> list[Action]:
    del fleet.open_deeds[id]
    return fleet.close(id, outcome, now)
