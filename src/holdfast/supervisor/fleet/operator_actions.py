"""What may an operator ask of the fleet, and what is the answer? A granted request is a deed, in the record of all."""

from __future__ import annotations

from holdfast.core.machine import Action
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Act, HeldBy, NodeState, SwapStep, TroubleKind, Verb
from holdfast.supervisor.fleet import awaiting, deeds, repairs
from holdfast.supervisor.fleet.messages import Asked, Reply, Wish
from holdfast.supervisor.fleet.policies.case import Case, Choice
from holdfast.supervisor.fleet.state import FleetState


def asked(fleet: FleetState, asked: Asked, now: float) -> list[Action]:
    """The table of what may be asked for."""
    match asked.wish:
        case Wish.DRAIN:
            return _drain(fleet, asked, now)
        case Wish.UNCORDON:
            return _uncordon(fleet, asked, now)
        case Wish.RESTART:
            return _order_job(fleet, asked, Act.RESTART, now)
        case Wish.STOP:
            return _order_job(fleet, asked, Act.STOP, now)
        case Wish.INJECT:
            return _inject(fleet, asked, now)


def _drain(fleet: FleetState, asked: Asked, now: float) -> list[Action]:
    name, node = asked.node, fleet.nodes.get(asked.node)
    if node is None:
        return _refuse(asked.ask, f"no node {name} has ever been heard of")
    if node.standing == NodeState.UNFIT and node.is_in_repair:
        node.hold(NodeState.UNFIT, asked.reason, HeldBy.OPERATOR)
        stopped = repairs.stop(fleet, node, f"an operator has {name} left alone: {asked.reason}", now)
        return [*stopped, Reply(ask=asked.ask, ok=True, text=f"{name} stays out, and is not repaired")]
    is_out = node.standing == NodeState.UNFIT and node.repair is None  # one on probation has been let back
    if node.standing == NodeState.DRAINING or is_out:
        waits = f"; it waits for {text}" if (text := awaiting.wanted_by(fleet, node=name)) else ""
        return _refuse(asked.ask, f"{name} is {node.standing} already: {node.reason}{waits}")
    if not fleet.is_settled(now):
        return _too_early(fleet, asked.ask)
    worked = sorted({report.job for report in node.reports.values() if report.job})
    case = deeds.case_of(fleet, TroubleKind.OPERATOR, name, worked[0] if worked else "", asked.reason)
    done = deeds.consider(fleet, case, now)
    waits = f" and gets no more work; it waits for {text}" if (text := awaiting.wanted_by(fleet, node=name)) else ""
    told = f"{name} is {node.state}{waits}: `holdfast why {name}` tells what comes of it"
    return [*done, *fleet.keep(node, now), Reply(ask=asked.ask, ok=True, text=told)]


def _uncordon(fleet: FleetState, asked: Asked, now: float) -> list[Action]:
    """What the node holds against itself is not the operator's to forgive."""
    name, reason, node = asked.node, asked.reason, fleet.nodes.get(asked.node)
    if node is None:
        return _refuse(asked.ask, f"no node {name} has ever been heard of")
    if node.standing == NodeState.FIT and node.repair is None:
        return _refuse(asked.ask, f"nothing is held against {name}")
    swap = fleet.swap_of(name)
    if swap is not None and swap.step != SwapStep.AWAIT:
        return _refuse(asked.ask, f"{name} is just being drained ({swap.step}): wait for the end of it")
    actions = repairs.stop(fleet, node, f"an operator lets {name} be used: {reason}", now)
    if swap is not None:
        actions += awaiting.given_up(fleet, swap, f"an operator lets {name} stay: {reason}", now)
    node.pardon(reason, fleet.unix(now))
    case = Case(trouble=TroubleKind.OPERATOR, node=name, job="", what=reason)
    deed = deeds.new_deed(fleet, case, Choice(act=Act.UNCORDON, reason="an operator wants it"), now)
    own = node.reason
    actions += [*fleet.action_log.write(deed), *fleet.keep(node, now, "" if own else reason)]
    actions += repairs.let_back(fleet, name, deed.id, reason, now)
    once = f", once it no longer finds itself unfit: {own}" if own else ""
    return [*actions, Reply(ask=asked.ask, ok=True, text=f"{name} may be used again{once}")]


def _order_job(fleet: FleetState, asked: Asked, act: Act, now: float) -> list[Action]:
    name, job = asked.job, fleet.jobs.get(asked.job)
    if job is None:
        return _refuse(asked.ask, f"no job {name} has ever been heard of")
    if not fleet.is_settled(now):
        return _too_early(fleet, asked.ask)
    if not any(map(fleet.is_linked, job.reports)):
        ended = f"it {job.outcome}" if job.outcome else "it has ended, or cannot reach the supervisor"
        return _refuse(asked.ask, f"no agent of job {name} is heard: {ended}")
    if any(one.case.job == name and fleet.action_log.deeds[id].act == act for id, one in fleet.open_deeds.items()):
        return _refuse(asked.ask, f"job {name}: an operator has asked for a {act} already, and it is not over")
    case = Case(trouble=TroubleKind.OPERATOR, node="", job=name, what="an operator asked for it")
    actions = deeds.decided(fleet, case, Choice(act=act, reason=asked.reason), now)
    told = f"job {name} was told to {act}: `holdfast why {name}` tells what comes of it"
    return [*actions, Reply(ask=asked.ask, ok=True, text=told)]


def _inject(fleet: FleetState, asked: Asked, now: float) -> list[Action]:
    """The reply follows once the node's agent has answered."""
    name, node = asked.node, fleet.nodes.get(asked.node)
    assert asked.injection is not None
    agents = {one: said for one, said in (node.reports if node is not None else {}).items() if not said.is_watcher}
    linked = {one: said.job for one, said in agents.items() if fleet.is_linked(one) and said.job.startswith(asked.job)}
    if not linked:
        of = f" of job {asked.job}" if asked.job else ""
        return _refuse(asked.ask, f"no agent{of} is heard on {name}")
    if len(linked) > 1:
        return _refuse(asked.ask, f"{name} works for {', '.join(sorted(linked.values()))}: say which is meant (--job)")
    ((reporter, job),) = linked.items()
    what = f"{asked.injection.fault}, for practice, as {asked.injection.by or 'an operator'} asked for"
    case = Case(trouble=TroubleKind.OPERATOR, node=name, job=job, what=what)
    choice = Choice(act=Act.INJECT, reason="what follows is not the hardware's doing")
    deed = deeds.new_deed(fleet, case, choice, now)
    fleet.asked[deed.id] = asked.ask
    order = fleet.order(f"{deed.id}.inject", Verb.INJECT, deed.seen, target=name)
    return [*fleet.action_log.write(deed), *fleet.send(reporter, replace(order, injection=asked.injection), now)]


def injected(fleet: FleetState, id: str, ok: bool, text: str, now: float) -> list[Action]:
    """The node's agent has answered that order, or has not in time."""
    outcome = text.split("\n")[0] if ok else f"refused: {text}"
    ask = fleet.asked.pop(id, None)
    replies: list[Action] = [Reply(ask=ask, ok=ok, text=text)] if ask is not None else []
    return fleet.close(id, outcome, now) + replies


def _refuse(ask: int, why: str) -> list[Action]:
    return [Reply(ask=ask, ok=False, text=why)]


def _too_early(fleet: FleetState, ask: int) -> list[Action]:
    wait_s = fleet.rules.lease_s
    return _refuse(ask, f"the supervisor has just started, and does not know yet who is there: ask again in {wait_s:g} s")
