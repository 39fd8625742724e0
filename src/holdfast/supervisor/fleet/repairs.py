"""Repairs a node that was taken out, and lets it come back; or reports that a person has to.

    ready ──▶ run ──▶ check ──▶ probation ──▶ fit
      ▲        │        │           └── taken out again ──▶ it stays out, and is reported
      └────────┴────────┴── in vain: the next rung; none is left ──▶ the same

Nothing is done unless the operator allows it (`RepairRules`). Each rung is a deed of its own: by the log it is known what
came of it, what the node has had, and what the fleet has had in an hour. Each step is stored before it begins, and its order
and call have ids made of the deed's. So another life of the supervisor goes on there, and one decision reboots no host twice.
"""

from __future__ import annotations

from holdfast.core.job.xid import REBOOT, SERVICE, xid
from holdfast.core.machine import Action, Say
from holdfast.core.value import Value, replace
from holdfast.core.wire.fleet import Act, Deed, HeldBy, NodeState, Repair, RepairStep, Standing, TroubleKind, Verb
from holdfast.supervisor.fleet.messages import CallVerb, Need
from holdfast.supervisor.fleet.node import FleetNode
from holdfast.supervisor.fleet.state import FleetState

HOUR_S = 3600.0

BUDGET_S = 7 * 86400.0
"""The time that a rung's budget is for: a node that is back each week has a defect that no reboot mends."""

CHECKS_S = 3600.0
"""How long the deep checks may take: DCGM's third level takes some 30 minutes."""

AGAIN_S = 30.0
"""Between two looks at what a repair waits for. What a host says is acted on at once."""


class Rung(Value):
    """One row of the table."""

    act: Act
    times: int
    """Of one node, within BUDGET_S."""
    within_s: float = CHECKS_S
    """By then the host has to be heard, with what came of it."""


LADDER = (
    Rung(act=Act.CHECK, times=3),
    Rung(act=Act.RESET_GPU, times=2, within_s=600.0),
    Rung(act=Act.RESTART_DAEMON, times=2, within_s=600.0),
    Rung(act=Act.REBOOT, times=1, within_s=1800.0),
)
"""What costs least comes first. A server with eight GPUs boots within a quarter of an hour."""

COMMANDS = (Act.RESET_GPU, Act.RESTART_DAEMON, Act.REBOOT)
"""Acts of which so many may begin in an hour."""


# --- what happens -----------------------------------------------------------------------------------------------------


def begin(fleet: FleetState, now: float) -> list[Action]:
    """Another life of the supervisor, whose operator may allow less: what is allowed no more ends."""
    actions, why = list[Action](), "it is allowed no more"
    for node in [fleet.nodes[name] for name in fleet.repairs]:
        repair = node.repair
        if repair is None or not node.is_in_repair or repair.act in fleet.rules.repair.labels:
            continue
        goes_on = fleet.rules.repair.labels and repair.step != RepairStep.REPORT
        actions += _failed(fleet, node, repair, why, now) if goes_on else stop(fleet, node, why, now)
    return actions


def taken_out(fleet: FleetState, node: FleetNode, trouble: str, now: float) -> list[Action]:
    """A node has been taken out: repair it, unless a person has done that, or it was on probation."""
    if node.by != HeldBy.POLICY:
        return stop(fleet, node, "a person has taken it out", now)
    if node.repair is not None:
        again = fleet.close(node.repair.id, f"in vain: {node.reason}", now)
        return again + _report(fleet, node, "it has failed again within its probation", now)
    if not fleet.rules.repair.labels:
        return []
    actions = {xid(device.xid, device.reason).action for device in node.devices.values() if device.state == NodeState.UNFIT}
    if SERVICE in actions:
        return _report(fleet, node, "its hardware has to be looked at", now)
    is_well_perhaps = not actions and trouble in (TroubleKind.LOST, TroubleKind.UNFIT)
    first = Act.CHECK if is_well_perhaps else Act.REBOOT if REBOOT in actions else Act.RESET_GPU
    return _climb(fleet, node, _place(first), now)


def host_reports(fleet: FleetState, node: FleetNode, report: Standing, now: float) -> list[Action]:
    """A host's daemon is heard, perhaps with what came of its order."""
    repair = node.repair
    if repair is None or not report.offers or repair.step in (RepairStep.PROBATION, RepairStep.REPORT):
        return []
    done = report.repaired
    if repair.step == RepairStep.READY:
        return _ready(fleet, node, repair, now)
    if done is None or done.order != _order_id(repair):
        if repair.step == RepairStep.RUN and report.boot != repair.boot and _boots(fleet, repair):
            return [*fleet.action_log.note(repair.id, "the host was booted"), *_check(fleet, node, repair, now)]
        if report.node == repair.daemon:
            return _ordered(fleet, node, repair, now)
        repair = replace(repair, daemon=report.node)  # another life of it: it may never have heard of the order
        return _goes(fleet, node, repair, now, AGAIN_S) + _ordered(fleet, node, repair, now)
    if done.is_busy:
        step = RepairStep.READY if repair.step == RepairStep.RUN else repair.step
        return _goes(fleet, node, replace(repair, step=step, tries=repair.tries + 1, waits=done.text), now, AGAIN_S)
    noted = fleet.action_log.note(repair.id, f"{_verb(repair)}: {done.text}")
    if not done.ok:
        return noted + _failed(fleet, node, repair, done.text, now)
    return noted + (_check if repair.step == RepairStep.RUN else _let_try)(fleet, node, repair, now)


def answered(fleet: FleetState, node: FleetNode, verb: str, ok: bool, text: str, now: float) -> list[Action]:
    """An order or call of its repair was answered."""
    repair = node.repair
    assert repair is not None
    match verb, ok, repair.step:
        case CallVerb.VACANT, True, RepairStep.READY:
            return _begun(fleet, node, repair, now) + fleet.action_log.note(repair.id, f"{verb}: {text}")
        case CallVerb.VACANT, False, RepairStep.READY:
            waits = _goes(fleet, node, replace(repair, waits=text), now, AGAIN_S)
            return waits + fleet.call(repair.id, CallVerb.DRAIN, node.name, Need(reason=node.reason), now)  # it may have failed
        case CallVerb.LABEL, True, RepairStep.REPORT:
            return stop(fleet, node, text, now)
        case CallVerb.LABEL, False, RepairStep.REPORT:
            return _goes(fleet, node, replace(repair, waits=text), now, AGAIN_S)
        case CallVerb.LABEL, True, RepairStep.RUN:
            noted = fleet.action_log.note(repair.id, f"{verb}: {text}")
            return noted + _goes(fleet, node, replace(repair, waits="its cloud to act on the label"), now, AGAIN_S)
        case _, False, RepairStep.RUN | RepairStep.CHECK if verb in (CallVerb.LABEL, _verb(repair)):
            return _failed(fleet, node, repair, text, now)
        case CallVerb.UNCORDON, True, RepairStep.PROBATION:
            noted, left_s = fleet.action_log.note(repair.id, f"{verb}: {text}"), repair.until_unix - fleet.unix(now)
            return noted + _goes(fleet, node, replace(repair, waits=""), now, left_s)
        case CallVerb.UNCORDON, False, RepairStep.PROBATION:
            return _goes(fleet, node, replace(repair, waits=text), now, AGAIN_S)
    return []  # it has begun, or is about an earlier step


def due(fleet: FleetState, now: float) -> list[Action]:
    """Time has passed."""
    actions: list[Action] = []
    for name in [name for name, at in fleet.repairs.items() if now >= at]:
        node, fleet.repairs[name] = fleet.nodes[name], now + AGAIN_S
        repair = node.repair
        assert repair is not None
        is_late = fleet.unix(now) >= repair.until_unix
        match repair.step:
            case RepairStep.READY:
                actions += _ready(fleet, node, repair, now)
            case RepairStep.REPORT:
                actions += _labelled(fleet, node, repair, now)
            case RepairStep.PROBATION if repair.waits and node.by not in (HeldBy.POLICY, HeldBy.OPERATOR):
                deed = fleet.action_log.deeds.get(repair.id)
                actions += let_back(fleet, name, repair.id, deed.reason if deed else "it is on probation", now)
            case RepairStep.PROBATION if is_late and fleet.is_heard(name) and node.standing == NodeState.FIT:
                actions += stop(fleet, node, "it is fit", now)
            case RepairStep.RUN | RepairStep.CHECK if is_late:
                actions += _failed(fleet, node, repair, "the host has not told in time what came of it", now)
            case RepairStep.RUN | RepairStep.CHECK:
                actions += _ordered(fleet, node, repair, now)
    return actions


def stop(fleet: FleetState, node: FleetNode, why: str, now: float) -> list[Action]:
    """It is over: the probation, or an operator has the last word."""
    if node.repair is None:
        return []
    return [*fleet.close(node.repair.id, why, now), *_ends(fleet, node, now)]


def node_of(fleet: FleetState, deed: str) -> FleetNode | None:
    """The node whose repair that deed is. None: there is none."""
    nodes = map(fleet.nodes.__getitem__, fleet.repairs)
    return next((node for node in nodes if node.repair is not None and node.repair.id == deed), None)


def let_back(fleet: FleetState, node: str, deed: str, reason: str, now: float) -> list[Action]:
    """Have the scheduler and the jobs use a node again."""
    actions = fleet.call(deed, CallVerb.UNCORDON, node, Need(reason=reason), now)
    for index, job in enumerate(fleet.jobs.values()):
        if speaker := next(filter(fleet.is_linked, job.speakers(but="")), ""):
            order = fleet.order(f"{deed}.{index}.readmit", Verb.READMIT, reason, target=node)
            actions += fleet.send(speaker, order, now)
    return actions


# --- its steps --------------------------------------------------------------------------------------------------------


def _climb(fleet: FleetState, node: FleetNode, at: int, now: float) -> list[Action]:
    """Begin with the first rung from there on that is allowed and is left to this node."""
    since_unix, about = fleet.unix(now) - BUDGET_S, fleet.action_log.about(node=node.name)
    for rung in LADDER[at:]:
        lately = sum(deed.act == rung.act and deed.at_unix > since_unix for deed in about)
        if rung.act in fleet.rules.repair.labels and lately < rung.times:
            repair = Repair(act=rung.act, step=RepairStep.READY, id=fleet.action_log.fresh_id())
            return _goes(fleet, node, repair, now) + _ready(fleet, node, repair, now)
    return _report(fleet, node, "no repair that is allowed is left", now)


def _ready(fleet: FleetState, node: FleetNode, repair: Repair, now: float) -> list[Action]:
    """Once nothing is waited for here, the scheduler has to show that the host is cordoned and empty."""
    daemon, waits = _daemon(fleet, node), _waits(fleet, node, repair, now)
    if daemon is not None and repair.act not in daemon.offers and not fleet.rules.repair.labels[repair.act]:
        return _climb(fleet, node, _place(repair.act) + 1, now)
    if waits:
        return _goes(fleet, node, replace(repair, waits=waits), now, AGAIN_S)
    return fleet.call(repair.id, CallVerb.VACANT, node.name, Need(reason=node.reason), now)


def _waits(fleet: FleetState, node: FleetNode, repair: Repair, now: float) -> str:
    """What has to come first. Empty: nothing."""
    if _daemon(fleet, node) is None:
        return "its host's daemon: it is not heard, or can repair nothing (holdfast daemon --supervisor … --repair-with …)"
    if node.has_ranks:
        return "the end of the ranks that run there"
    lately = [deed for deed in fleet.action_log.deeds.values() if deed.at_unix > fleet.unix(now) - HOUR_S]
    begun, most = sum(deed.act in COMMANDS and deed.id != repair.id for deed in lately), fleet.rules.repair.per_hour
    return f"its turn: of all nodes {most} may be repaired in an hour" if repair.act in COMMANDS and begun >= most else ""


def _begun(fleet: FleetState, node: FleetNode, repair: Repair, now: float) -> list[Action]:
    """The host is cordoned and empty. What was seen before may have changed meanwhile."""
    daemon, waits = _daemon(fleet, node), _waits(fleet, node, repair, now)
    if daemon is None or waits:
        return _goes(fleet, node, replace(repair, waits=waits), now, AGAIN_S)
    decided = _decided(fleet, node, repair.act, "it was taken out, and this may mend it", now, id=repair.id)
    repair = replace(repair, daemon=daemon.node, boot=daemon.boot, waits="")
    if repair.act == Act.CHECK:
        return decided + _check(fleet, node, repair, now)
    return decided + _runs(fleet, node, repair, RepairStep.RUN, LADDER[_place(repair.act)].within_s, now)


def _check(fleet: FleetState, node: FleetNode, repair: Repair, now: float) -> list[Action]:
    return _runs(fleet, node, repair, RepairStep.CHECK, CHECKS_S, now)


def _runs(
    fleet: FleetState, node: FleetNode, repair: Repair, step: RepairStep, within_s: float, now: float
) -> list[Action]:
    repair = replace(repair, step=step, until_unix=fleet.unix(now) + within_s, waits="")
    return _goes(fleet, node, repair, now, AGAIN_S) + _ordered(fleet, node, repair, now)


def _ordered(fleet: FleetState, node: FleetNode, repair: Repair, now: float) -> list[Action]:
    """Order it, or order it again: it is done once."""
    if fleet.rules.repair.labels.get(repair.act) and repair.step == RepairStep.RUN:
        return [] if repair.waits else _labelled(fleet, node, repair, now)
    daemon = _daemon(fleet, node)
    if daemon is None or (repair.step == RepairStep.RUN and daemon.node != repair.daemon):
        return []
    order = fleet.order(_order_id(repair), _verb(repair), node.reason, target=node.name)
    return fleet.send(daemon.node, order, now)


def _failed(fleet: FleetState, node: FleetNode, repair: Repair, text: str, now: float) -> list[Action]:
    """It has not helped: the next rung."""
    return fleet.close(repair.id, f"in vain: {text}", now) + _climb(fleet, node, _place(repair.act) + 1, now)


def _let_try(fleet: FleetState, node: FleetNode, repair: Repair, now: float) -> list[Action]:
    """Its deep checks find it fit: it is a spare again, on probation; once no agent there finds it unfit."""
    held, reason = node.reason, f"its checks find it fit after {repair.act}"
    node.pardon(reason, fleet.unix(now))
    closed, probation_s = fleet.close(repair.id, "its checks find it fit", now), fleet.rules.repair.probation_s
    deed, words = fleet.action_log.fresh_id(), f"{reason}: it is a spare again, for {probation_s:g} s"
    written = _decided(fleet, node, Act.PROBATION, words, now, id=deed, seen=held)
    until_unix = fleet.unix(now) + probation_s
    waits = "its scheduler to give it work again"
    repair = Repair(act=Act.PROBATION, step=RepairStep.PROBATION, id=deed, until_unix=until_unix, waits=waits)
    tried = _goes(fleet, node, repair, now, AGAIN_S, f"on probation: {reason}")
    return [*closed, *written, *tried, *let_back(fleet, node.name, deed, reason, now)]


def _report(fleet: FleetState, node: FleetNode, why: str, now: float) -> list[Action]:
    """It stays out until an operator lets it back."""
    label = fleet.rules.repair.labels.get(Act.REPORT, "")
    seen = node.reason
    node.hold(NodeState.UNFIT, f"{seen}; a person has to repair it: {why}"[:400], HeldBy.POLICY)
    deed = fleet.action_log.fresh_id()
    written = _decided(fleet, node, Act.REPORT, why, now, id=deed, seen=seen)
    if not label:
        closed = fleet.close(deed, f"it stays out until `holdfast uncordon {node.name}`", now)
        return [*written, *closed, *_ends(fleet, node, now)]
    repair = Repair(act=Act.REPORT, step=RepairStep.REPORT, id=deed)
    return [*written, *_goes(fleet, node, repair, now, AGAIN_S), *_labelled(fleet, node, repair, now)]


def _labelled(fleet: FleetState, node: FleetNode, repair: Repair, now: float) -> list[Action]:
    """Have the node given its act's label, once."""
    need = Need(reason=node.reason, label=fleet.rules.repair.labels.get(repair.act, ""))
    return fleet.call(repair.id, CallVerb.LABEL, node.name, need, now)


def _decided(
    fleet: FleetState, node: FleetNode, act: Act, reason: str, now: float, *, id: str, seen: str = ""
) -> list[Action]:
    """Write the deed of that id, or that it begins only now."""
    deed = Deed(
        id=id,
        at_unix=fleet.unix(now),
        node=node.name,
        job="",
        trouble=TroubleKind.REPAIR,
        seen=seen or node.reason,
        policy=fleet.rules.policy.name,
        act=act,
        reason=reason,
    )
    return [*fleet.action_log.write(deed), Say(text=f"{node.name}: {act}: {reason}", level="warning")]


def _goes(
    fleet: FleetState, node: FleetNode, repair: Repair, now: float, again_s: float = 0.0, why: str = ""
) -> list[Action]:
    """Store where it is, and when to look again."""
    node.set_repair(repair)
    fleet.repairs[node.name] = now + again_s
    return fleet.keep(node, now, why)


def _ends(fleet: FleetState, node: FleetNode, now: float) -> list[Action]:
    node.set_repair(None)
    fleet.repairs.pop(node.name, None)
    return fleet.keep(node, now)


def _daemon(fleet: FleetState, node: FleetNode) -> Standing | None:
    """The report of the host's daemon, if it is heard and can repair its host."""
    return next((one for one in node.reports.values() if one.offers and fleet.is_linked(one.node)), None)


def _boots(fleet: FleetState, repair: Repair) -> bool:
    """Whether the host is to be booted by it: a cloud does whatever a label asks for by a boot."""
    return repair.act == Act.REBOOT or bool(fleet.rules.repair.labels.get(repair.act))


def _verb(repair: Repair) -> str:
    return Act.CHECK if repair.step == RepairStep.CHECK else repair.act


def _order_id(repair: Repair) -> str:
    """A daemon remembers what it has done for one."""
    return f"{repair.id}.{_verb(repair)}{repair.tries or ''}"


def _place(act: Act) -> int:
    return next(place for place, rung in enumerate(LADDER) if rung.act == act)
