"""What is remembered of a node's GPUs: how each is, and what was said of it before."""

from __future__ import annotations

from typing import Any

from holdfast.core.wire.fleet import Bye, FleetMessage, HeldBy, NodeState, Standing
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Asked, Reply, Said, Wish
from holdfast.supervisor.fleet.node import DEVICE_HISTORY, DEVICES, LIVES, FleetNode
from holdfast.supervisor.fleet.policies import policy
from holdfast.supervisor.fleet.state import Kept

GPU = "0000:9b:00"


def told(node: FleetNode) -> list[tuple[str, str, float]]:
    return [(change.state, change.reason, change.at_unix) for change in node.devices[GPU].history]


def seen(*xids: tuple[int, str]) -> FleetNode:
    node = FleetNode("a")
    for at, (number, what) in enumerate(xids, 1):
        node.device(GPU, number, what, float(at))
    return node


def test_a_gpu_s_history_has_what_was_said_of_it_and_what_it_was_then() -> None:
    node = seen((43, "Xid 43"), (79, "Xid 79"), (43, "Xid 43 again"))
    assert told(node) == [("fit", "Xid 43", 1.0), ("unfit", "Xid 79", 2.0), ("unfit", "Xid 43 again", 3.0)]
    kept = node.devices[GPU]
    assert (kept.state, kept.reason, kept.xid, kept.at_unix) == ("unfit", "Xid 79", 79, 2.0)


def test_a_gpu_that_was_pardoned_is_fit_and_its_past_is_known() -> None:
    node = seen((79, "Xid 79"))
    node.hold(NodeState.UNFIT, "Xid 79", HeldBy.POLICY)
    node.pardon("it was replaced", 5.0)
    node.pardon("twice is as good", 6.0)
    assert told(node) == [("unfit", "Xid 79", 1.0), ("fit", "it was replaced", 5.0)]
    assert (node.state, node.devices[GPU].xid) == ("spare", 0)
    assert node.device(GPU, 79, "Xid 79, again", 7.0) == "unfit"


class Drained:
    """Node a, taken out for its GPU, while its own check of the kernel's log still finds that; its daemon finds nothing."""

    def __init__(self) -> None:
        self.fleet, self.number = Fleet(policy("default"), generation=1, lease_s=5.0, now=0.0, now_unix=1000.0), 0
        self.stands("agent", unfit="xid: Xid 79")
        self.stands("daemon")
        self.node = self.fleet.state.nodes["a"]
        self.node.device(GPU, 79, "Xid 79", 1001.0)
        self.node.hold(NodeState.UNFIT, "Xid 79", HeldBy.POLICY)

    def say(self, message: FleetMessage) -> None:
        self.fleet.observe(Said(message=message), 1.0)

    def stands(self, reporter: str, unfit: str = "") -> None:
        self.number += 1
        said = {"name": "a", "job": f"{reporter}'s", "state": "joining", "is_watcher": reporter == "daemon"}
        self.say(Standing(node=reporter, number=self.number, unfit=unfit, **said))

    def uncordon(self) -> str:
        actions = self.fleet.observe(Asked(ask=1, wish=Wish.UNCORDON, node="a", reason="it was replaced"), 2.0)
        return next(action.text for action in actions if isinstance(action, Reply))

    @property
    def shown(self) -> tuple[str, str, str]:
        return self.node.state, self.node.by, self.node.devices[GPU].state


def test_a_node_that_still_finds_itself_unfit_stays_so_and_its_gpu_too() -> None:
    drained = Drained()
    assert drained.uncordon() == "a may be used again, once it no longer finds itself unfit: xid: Xid 79"
    assert drained.shown == ("unfit", "itself", "unfit")
    assert "it was replaced" not in [change.reason for change in drained.node.history]
    drained.stands("daemon")
    assert drained.shown == ("unfit", "itself", "unfit"), "another's word is not its own"
    drained.stands("agent")
    assert drained.shown == ("spare", "", "fit")


def test_a_host_s_daemon_that_is_back_before_the_agent_pardons_no_node_that_finds_itself_unfit() -> None:
    drained = Drained()
    drained.node.hold(NodeState.UNFIT, "xid: Xid 79", HeldBy.ITSELF)
    kept = Kept(nodes=(drained.node.kept(),))
    drained.fleet = Fleet(policy("default"), generation=2, lease_s=5.0, now=0.0, now_unix=1000.0, kept=kept)
    drained.node = drained.fleet.state.nodes["a"]
    drained.stands("daemon")
    assert drained.shown == ("unfit", "itself", "unfit")
    drained.stands("agent", unfit="xid: Xid 79")
    assert drained.shown == ("unfit", "itself", "unfit")
    drained.stands("agent")
    assert drained.shown == ("spare", "", "fit")


def test_what_an_agent_that_has_gone_found_holds_nobody() -> None:
    drained = Drained()
    drained.say(Bye(node="agent", reason="its job is over"))
    assert drained.uncordon() == "a may be used again"
    assert drained.shown == ("spare", "", "fit")


def test_another_life_of_the_supervisor_knows_it_too() -> None:
    node = seen((79, "Xid 79"))
    node.pardon("it was replaced", 5.0)
    assert told(FleetNode("a", node.kept())) == told(node)


def test_whoever_says_much_of_many_devices_fills_no_memory() -> None:
    node: Any = seen(*[(43, f"Xid 43, {number}") for number in range(50)])
    assert told(node)[-1][1] == "Xid 43, 49" and len(told(node)) == DEVICE_HISTORY
    for number in range(1000):
        node.device(f"made-up-{number}", 43, "Xid 43", 60.0)
    assert len(node.devices) == DEVICES and "made-up-999" in node.devices


def test_a_gpu_that_is_not_fit_is_forgotten_after_all_that_are() -> None:
    node = seen((79, "Xid 79"))
    for number in range(DEVICES - 1):
        node.device(f"unfit-{number}", 79, "Xid 79", 60.0)
    for number in range(DEVICES):
        node.device(f"fit-{number}", 43, "Xid 43", 61.0)
    assert GPU in node.devices and {device.state for device in node.devices.values()} == {"unfit"}
    node.device("one-more", 79, "Xid 79", 62.0)
    assert len(node.devices) == DEVICES and GPU not in node.devices, "of which nothing was heard for the longest time"


def test_what_a_reporter_told_that_outlives_many_others_is_not_new_again() -> None:
    node = FleetNode("a")
    assert node.is_new("daemon", 1)
    for number in range(2, 100):
        assert node.is_new(f"agent-{number}", 7) and not node.is_new("daemon", 1)
    assert node.is_new("daemon", 2) and not node.is_new("daemon", 1) and len(node.heard) == LIVES
    assert node.is_new("agent-2", 7), "it was forgotten, as one that said nothing any more"
