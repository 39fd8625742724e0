"""Supervisors that find their leader by a Lease of Kubernetes and keep what they know in ConfigMaps: one leads, and whatever
becomes of it the other goes on where it was.
"""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit.fleet.pair import Pair, hanging
from kit.jobs.ranks import Cluster
from kit.servers.kubernetes import LEASES, MAPS, Kubernetes
from kit.servers.kubernetes_standin import Standin

from holdfast.core.errors import HoldfastError
from holdfast.core.wire.fleet import Deed, JobKept, NodeKept, Swap
from holdfast.integrations.kubernetes import fleet_store
from holdfast.integrations.kubernetes.fleet_store import KubernetesStore, open_store
from holdfast.supervisor.fleet.messages import Keep
from holdfast.supervisor.store import LeadLost

NAME = "holdfast-supervisor"
NODE = NodeKept(name="a/ü", state="unfit", standing="unfit", reason="Xid 79")
WHAT = {"trouble": "device", "seen": "", "policy": "default", "act": "swap", "reason": ""}
BATCH = [
    Keep(table="nodes", key="a/ü", value=NODE),
    Keep(table="swaps", key="1-1", value=Swap(id="1-1", node="a/ü", job="train", reason="")),
    Keep(table="deeds", key="1-1", value=Deed(id="1-1", at_unix=1.0, node="a/ü", job="train", **WHAT)),
    Keep(table="jobs", key="train", value=JobKept(name="train")),
]


@pytest.fixture
def opened(kubernetes_api: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], KubernetesStore]]:
    """Makes stores of supervisors in this cluster."""
    for name, value in kubernetes_api.pod_env(NAME).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(fleet_store, "STEP_S", 20.0)  # what a slow answer costs is no part of this
    made: list[KubernetesStore] = []

    def one() -> KubernetesStore:
        made.append(open_store(NAME, f"host{len(made)}"))
        return made[-1]

    yield one
    for store in made:
        store.close()


def leading(store: KubernetesStore) -> KubernetesStore:
    while store.seek():
        pass
    return store


def silent(store: KubernetesStore, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., Any]) -> None:
    """As one that is stopped: it renews nothing, and gives nothing back. Its last lease is a short one."""
    with monkeypatch.context() as short:
        short.setattr(fleet_store, "TTL_S", 2)
        wait_until(lambda: 0 < store.left_s() <= 2)
        store.closed.set()
        for thread in threading.enumerate():
            if thread.name == "lead":  # it may be renewing the Lease at this moment
                thread.join()


def test_everything_comes_back_as_it_was_and_the_number_of_the_life_grows(opened):
    with closing(leading(opened())) as first:
        assert first.load()[0] == 1
        first.keep(BATCH)
        first.keep([Keep(table="jobs", key="train", value=None)])
    generation, kept = leading(opened()).load()
    assert (generation, kept.nodes, kept.swaps, kept.deeds, kept.jobs) == (2, (NODE,), (BATCH[1].value,), (BATCH[2].value,), ())


def test_one_connection_of_each_thread_is_used_for_all_requests_and_made_again_where_it_has_ended(opened, kubernetes_api):
    if not isinstance(kubernetes_api, Standin):
        pytest.skip("a real API server does not tell how many connections were made")
    store = leading(opened())
    store.load()
    store.keep(BATCH)
    assert len(kubernetes_api.connections) <= 2  # one that renews the Lease, and ours
    kubernetes_api.end_connections()
    store.keep([Keep(table="jobs", key="train", value=None)])
    assert not store.load()[1].jobs


def test_who_has_been_succeeded_writes_nothing_any_more(opened, kubernetes_api, monkeypatch, wait_until):
    first, second = leading(opened()), opened()
    first.load()
    assert second.seek() == "host0 leads"
    silent(first, monkeypatch, wait_until)
    monkeypatch.setattr(fleet_store, "TTL_S", 60)  # of the second one's: what it does here takes a while on a busy machine
    leading(second)
    assert first.left_s() <= 0 < second.left_s()
    second.load()
    for change in BATCH:
        first.until = second.until  # as if it had not noticed yet
        with pytest.raises(LeadLost, match="another supervisor leads"):
            first.keep([change])
    assert second.load()[1].nodes == ()
    assert kubernetes_api.ask("GET", f"{LEASES}/{NAME}")["spec"]["leaseTransitions"] == 1


def test_what_belongs_together_is_completed_by_the_next_where_the_first_was_killed_in_between(opened, monkeypatch, wait_until):
    for writes in range(1, 5):
        first = leading(opened())
        first.load()
        left, write = [writes], first._write

        def one(name: str, data: Any, left: list[int] = left, write: Any = write) -> Any:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return write(name, data)

        first._write = one  # type: ignore[method-assign]
        deed = Deed(id=f"1-{writes}", at_unix=float(writes), node="b", job="", **WHAT)
        node = NodeKept(name="b", state="fit", standing="fit", reason=deed.id)
        others = [
            Keep(table="nodes", key=name, value=NodeKept(name=name, state="fit", standing="fit", reason="")) for name in "cd"
        ]
        with pytest.raises(KeyboardInterrupt):
            first.keep([Keep(table="deeds", key=deed.id, value=deed), Keep(table="nodes", key="b", value=node), *others])
        silent(first, monkeypatch, wait_until)
        next_one = leading(opened())
        _, kept = next_one.load()
        next_one.close()
        assert deed in kept.deeds and node in kept.nodes and len(kept.nodes) == 3


def test_an_answer_that_was_lost_costs_no_lead(opened, kubernetes_api):
    store = leading(opened())
    store.load()
    maps = {thing["metadata"]["name"] for thing in kubernetes_api.ask("GET", MAPS)["items"]}
    for name in maps & {NAME, *(f"{NAME}-{part}" for part in range(fleet_store.PARTS))}:
        kubernetes_api.ask("PATCH", f"{MAPS}/{name}", {"metadata": {"labels": {"somebody": "else"}}})
    store.keep(BATCH)
    assert store.load()[1].nodes == (NODE,)


def test_rights_that_are_away_end_no_supervisor(opened, kubernetes_api):
    if not isinstance(kubernetes_api, Standin):
        pytest.skip("its rights are those of the manifest, for all tests")
    store, rights = leading(opened()), kubernetes_api.rights[NAME]
    store.load()
    kubernetes_api.troubles += [(401, "Unauthorized"), (403, "forbidden")]
    store.keep(BATCH)
    rights.remove(("patch", "configmaps"))
    for call in (lambda: store.keep(BATCH), store.load):
        with pytest.raises(LeadLost, match=r"may not patch configmaps \(403\); deploy/kubernetes/base/rbac.yaml has"):
            call()
        leading(store)
    rights.remove(("get", "leases"))
    assert "may not get /apis/coordination" in opened().seek()
    rights |= {("patch", "configmaps"), ("get", "leases")}
    assert leading(store).load()[1].nodes == (NODE,)


def test_what_a_configmap_has_no_room_for_is_refused_and_all_that_was_kept_can_be_read(opened):
    store = leading(opened())
    store.load()
    values = (NodeKept(name=str(n), state="fit", standing="fit", reason="é" * 15_000) for n in itertools.count())
    changes = (Keep(table="nodes", key=value.name, value=value) for value in values)
    long = list(itertools.islice((change for change in changes if fleet_store._row(change)[0] == 7), 12))
    with pytest.raises(HoldfastError, match=f"ConfigMap {NAME}-7 has no room for it") as refused:
        store.keep(long)
    assert not isinstance(refused.value, LeadLost)
    _, kept = store.load()
    assert kept.nodes and {node.name for node in kept.nodes} < {change.key for change in long}
    store.keep([Keep(table="nodes", key="a/ü", value=NODE)])
    assert NODE in store.load()[1].nodes


def test_an_api_server_that_is_away_costs_the_lead(opened, kubernetes_api):
    if not isinstance(kubernetes_api, Standin):
        pytest.skip("it serves other tests")
    store = leading(opened())
    store.load()
    kubernetes_api.stop()
    with pytest.raises(LeadLost, match="has not taken what was to be kept"):
        store.keep(BATCH)
    assert store.left_s() <= 0
    kubernetes_api.start()
    leading(store).load()


# --- real processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(holdfast: Any, job: Cluster, tmp_path: Path, wait_until: Any, kubernetes_api: Kubernetes) -> Pair:
    return Pair(holdfast, job, tmp_path, wait_until, f"kubernetes://{NAME}", **kubernetes_api.pod_env(NAME))


def test_the_leader_is_killed_in_the_middle_of_a_swap_and_the_other_completes_it(pair):
    agents = pair.begin()
    with hanging(pair, 0):
        pair.drain("b")
        pair.wait_until(lambda: pair.why("b")[-1]["done"])
        pair.both[0].kill()
        pair.leads(1)
    pair.swapped_once(agents)
    assert "generation 2" in pair.both[1].stdout


def test_a_leader_that_is_stopped_beyond_its_lease_does_nothing_when_it_goes_on(pair):
    agents = pair.begin()
    with hanging(pair, 0):
        pair.drain("b")
        pair.wait_until(lambda: pair.why("b")[-1]["done"])
        pair.both[0].kill(signal.SIGSTOP)
        pair.leads(1)
        deed = pair.over("b")
    pair.both[0].kill(signal.SIGCONT)
    pair.both[0].wait_for_output("acts no more until it leads again")
    pair.both[0].wait_for_output(f"{pair.ports[1]}) leads")
    assert pair.why("b") == [deed]
    pair.swapped_once(agents)


def test_one_that_is_told_to_end_hands_over_at_once(pair):
    agents = pair.begin()
    pair.both[0].kill(signal.SIGTERM)
    assert pair.both[0].wait().returncode == 0
    pair.leads(1)
    pair.wait_until(lambda: pair.states() == {"a": "fit", "b": "fit", "c": "spare"})
    pair.drain("b")
    pair.swapped_once(agents)


def test_one_that_is_told_to_end_while_it_loses_the_lead_ends(pair, kubernetes_api):
    if not isinstance(kubernetes_api, Standin):
        pytest.skip("a real API server is not made to refuse")
    pair.begin()
    pair.drain("c")  # it lets itself be asked by now
    kubernetes_api.troubles += [(503, "it is too busy")] * 10_000
    before = len(kubernetes_api.asked)
    asked = pair.holdfast.start("drain", "b", "--reason", "its fan is loud", "--state", pair.state)
    writes = lambda: ("holdfast-supervisor", "patch", "configmaps") in kubernetes_api.asked[before:]
    pair.wait_until(writes, what="that it tries to keep the drain")
    pair.both[0].kill(signal.SIGTERM)
    assert pair.both[0].wait().returncode == 0
    asked.wait()
