"""The stash without memory: descriptors of generations, which of them all ranks have, and states as text."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.stages.round_stage import Job

from holdfast.client.stash_code import Coder, Unstashable, decode
from holdfast.core.config.grammar import memory
from holdfast.core.errors import UsageError
from holdfast.core.page import stash
from holdfast.core.value import replace
from holdfast.core.wire.messages import Assigned, Join
from holdfast.rendezvous.placement.partners import partners, ticket


def page() -> memoryview:
    return memoryview(bytearray(stash.HEADER_BYTES)).cast("Q")


def generation(**fields: Any) -> stash.Generation:
    usual = {"slot": 0, "sequence": 1, "round": 1, "step": 7, "rank": 0, "world_size": 2}
    rest = {"header_bytes": 10, "bytes_at": 4096, "size": 9000, "saved_unix_ns": 5, "header_crc": 1}
    return stash.Generation(**(usual | rest | fields))


def test_what_is_sealed_is_found_oldest_first_and_what_is_unsealed_is_not() -> None:
    words = page()
    for slot, sequence in ((0, 4), (1, 2), (2, 3)):
        stash.seal(words, generation(slot=slot, sequence=sequence))
    stash.unseal(words, 2)
    assert [(one.slot, one.sequence) for one in stash.generations(words)] == [(1, 2), (0, 4)]
    assert stash.generations(words)[0] == generation(slot=1, sequence=2)


def test_a_descriptor_that_has_changed_is_none() -> None:
    words = page()
    stash.seal(words, generation())
    words[2] ^= 1
    assert stash.generations(words) == []


def test_a_node_has_what_all_its_ranks_have_at_their_places() -> None:
    of_rank_4 = [generation(rank=4, step=step, world_size=8) for step in (1, 2, 3)]
    of_rank_5 = [generation(rank=5, step=step, world_size=8) for step in (2, 3, 4)]
    assert stash.held_by_all([of_rank_4, of_rank_5]) == ((1, 2, 4, 8), (1, 3, 4, 8))
    assert stash.held_by_all([of_rank_5, of_rank_4]) == ()  # not where they were
    assert stash.held_by_all([of_rank_4, []]) == stash.held_by_all([]) == ()


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([([(1, 8, 0, 4), (1, 9, 0, 4)], 0), ([(1, 7, 2, 4), (1, 8, 2, 4)], 2)], (1, 8)),
        ([([(1, 9, 0, 4), (2, 5, 0, 4)], 0), ([(1, 9, 2, 4), (2, 5, 2, 4)], 2)], (2, 5)),  # the later life knows better
        ([([(1, 9, 0, 4)], 0), ([(2, 9, 2, 4)], 2)], None),  # the same step of different lives
        ([([(1, 9, 0, 4)], 2), ([(1, 9, 2, 4)], 0)], None),  # they have changed places
        ([([(1, 9, 0, 6)], 0), ([(1, 9, 2, 6)], 2)], None),  # the world was larger
        ([([(1, 9, 0, 4)], 0), ([], 2)], None),  # a node that is new
        ([], None),
    ],
)
def test_the_newest_generation_that_every_node_has_where_it_is_now(nodes: Any, expected: Any) -> None:
    found = stash.agreed([(held, (), base_rank, 2) for held, base_rank in nodes], 4)
    assert found == (None if expected is None else (expected, {}, {}))


def test_a_node_that_lacks_it_is_told_where_it_is_kept() -> None:
    survivor = ([(1, 8, 0, 4), (1, 9, 0, 4), (1, 10, 0, 4)], (), 0, 2)
    kept = [("b:1", [(1, 8, 2, 4, 2), (1, 9, 2, 4, 2)])]
    assert stash.agreed([survivor, ([], (), 2, 2)], 4, kept) == ((1, 9), {2: "b:1"}, {})
    assert stash.agreed([survivor, ([(1, 9, 2, 4)], (), 2, 2)], 4, kept) == ((1, 9), {}, {})  # it has it itself
    assert stash.agreed([survivor, ([], (), 2, 4)], 4, kept) is None  # of as many ranks as the other node had
    assert stash.agreed([survivor, ([], (), 2, 2)], 6, kept) is None  # nor in another world
    assert stash.agreed([survivor, ([], (), 4, 2)], 4, kept) is None  # nor at another place


def test_another_s_word_on_what_a_node_has_saved_goes_no_further_than_its_own() -> None:
    """A member that lies says that it keeps a later state of everybody: it would be theirs to restore."""
    own = [([(1, 9, base, 4)], (), base, 2) for base in (0, 2)]
    lie = [("evil:1", [(1, 5000, base, 4, 2) for base in (0, 2)])]
    assert stash.agreed(own, 4, lie, "now", 1) == ((1, 9), {}, {})
    of_no_round = [("evil:1", [(2, 5000, base, 4, 2) for base in (0, 2)])]
    assert stash.agreed(own, 4, of_no_round, "now", 1) == ((1, 9), {}, {})


def test_what_earlier_lives_have_left_on_the_disks_comes_after_what_this_one_has() -> None:
    disks = [("old", 9, 50, base, 4, 100 + base) for base in (0, 2)], [("older", 9, 90, base, 4, 10) for base in (0, 2)]
    first, second = ([one[at] for one in disks] for at in (0, 1))
    found = stash.agreed([((), first, 0, 2), ((), second, 2, 2)], 4, life="now")
    assert found == ((0, 50), {}, dict.fromkeys((0, 2), ("old", 9, 50)))
    # An agent was lost with its memory: of this life its disk has something that the other node still has.
    mine, read = [(3, 7, 0, 4), (3, 8, 0, 4)], [("now", 3, 7, 2, 4, 5), *second]
    assert stash.agreed([(mine, first, 0, 2), ((), read, 2, 2)], 4, life="now") == ((3, 7), {}, {2: ("now", 3, 7)})
    # And what another node keeps for it in memory is newer.
    kept = [("a:1", [(3, 7, 2, 4, 2), (3, 8, 2, 4, 2)])]
    assert stash.agreed([(mine, first, 0, 2), ((), read, 2, 2)], 4, kept, "now") == ((3, 8), {2: "a:1"}, {})
    assert stash.agreed([((), first, 0, 2), ((), (), 2, 2)], 4, life="now") is None  # a new node without a disk of it


def test_what_is_overwritten_next_is_never_all_that_the_ranks_can_restore() -> None:
    whole = [generation(slot=slot, sequence=slot + 1, round=1, step=8 + slot) for slot in range(3)]
    assert stash.oldest(whole, 2, (1, 8)).step == 9 and stash.oldest(whole, 2, (1, 9)).step == 8
    assert stash.oldest(whole, 1, (1, 8)).step == 8  # in the round that wrote them they go in turn
    assert stash.oldest(whole[:1], 2, (1, 8)).step == 8


@pytest.mark.parametrize(
    ("domains", "expected"),
    [
        ([None], [""]),
        ([None, None], ["1", "0"]),
        ([None, None, None], ["1", "2", "0"]),
        (["x", "x", "y", "y"], ["2", "3", "0", "1"]),
        (["x", "x", "x", "y", "y", "y"], ["3", "4", "5", "0", "1", "2"]),
        (["x", "y", "x", "y"], ["1", "2", "3", "0"]),
        (["x", "x", "x"], ["1", "2", "0"]),  # there is no other domain
        (["x", "x", "x", "y"], ["1", "2", "3", "0"]),  # as far as it goes: one node of y can keep for one only
    ],
)
def test_each_node_has_a_partner_in_another_domain_and_keeps_for_one(domains: Any, expected: Any) -> None:
    found = partners([(str(number), domain) for number, domain in enumerate(domains)])
    assert [*map("".join, found)] == expected and sorted(filter(None, found)) == sorted((one,) for one in expected if one)


@pytest.mark.parametrize(
    ("domains", "expected"),
    [
        ([None, None], ["1", "0"]),
        ([None, None, None], ["12", "20", "01"]),
        ([None] * 4, ["12", "23", "30", "01"]),
        (["x", "x", "y", "y", "z", "z"], ["24", "35", "40", "51", "02", "13"]),  # a copy in each of the other domains
        (["x", "y", "z"], ["12", "20", "01"]),
    ],
)
def test_each_node_has_two_partners_in_different_domains_and_keeps_for_two(domains: Any, expected: Any) -> None:
    found = partners([(str(number), domain) for number, domain in enumerate(domains)], 2)
    assert [*map("".join, found)] == expected
    assert sorted(one for partner in found for one in partner) == sorted(str(n) for n in range(len(domains)) for _ in found[0])


def test_where_one_node_has_no_address_none_has_a_partner() -> None:
    assert partners([("a", None), ("", None), ("c", None)]) == [(), (), ()]


def test_many_nodes_have_partners_at_once() -> None:
    found = partners([(str(number), str(number // 16)) for number in range(16_000)], 2)
    assert found[:2] == [("16", "32"), ("17", "33")] and len(set(found)) == 16_000


def test_a_replacement_is_told_where_to_fetch_and_everybody_where_to_send() -> None:
    job = Job()
    usual: dict[str, Any] = {"addr": "h", "master_port": 9, "nproc": 2, "role": "default"}
    for node in ("a", "b"):
        job.hear(Join(node=node, name=node, stash_at=f"{node}:1", stash_replicas=1, **usual))
    first = [message for _, message in job.said if isinstance(message, Assigned)]
    assert [message.stash_partners for message in first] == [("b:1",), ("a:1",)]
    assert [message.stash_tickets for message in first] == [{"b:1": ticket("b", 1, 0, 2)}, {"a:1": ticket("a", 1, 2, 2)}]
    job.fail("a")
    held, kept = ((1, 8, 0, 4), (1, 9, 0, 4)), ((1, 8, 2, 4, 2), (1, 9, 2, 4, 2))
    job.machine.seats["a"].join = replace(job.machine.seats["a"].join, stash=held, kept=kept)
    job.machine.seats["b"].join = replace(job.machine.seats["b"].join, stash=())  # another life of it
    job.hear(Join(node="a", name="a", round=1, stash=held, kept=kept, stash_at="a:1", **usual))
    job.hear(Join(node="b", name="b", round=1, stash_at="b:1", **usual))
    second = {node: said for node, said in job.said if isinstance(said, Assigned) and said.round == 2}
    assert [(said.stash, said.stash_from) for _, said in sorted(second.items())] == [((1, 9), ""), ((1, 9), "a:1")]


def test_every_node_is_told_what_all_can_restore() -> None:
    job = Job()
    job.join("a", "b")
    first = [message for _, message in job.said if isinstance(message, Assigned)]
    assert [message.stash for message in first] == [None, None]
    job.fail("a")
    for node, held in (("a", ((1, 8, 0, 4), (1, 9, 0, 4))), ("b", ((1, 7, 2, 4), (1, 8, 2, 4)))):
        job.machine.seats[node].join = replace(job.machine.seats[node].join, stash=held)
        usual: dict[str, Any] = {"name": node, "addr": node, "master_port": 9, "nproc": 2, "role": "default"}
        job.hear(Join(node=node, round=1, stash=held, **usual))
    second = [message for _, message in job.said if isinstance(message, Assigned) and message.round == 2]
    assert [message.stash for message in second] == [(1, 8), (1, 8)]


def through(state: Any) -> Any:
    """What comes back: as text, with its bytes aside."""
    coder = Coder()
    told = json.loads(json.dumps(coder.code(state)))
    room = bytearray(coder.size)
    for at, size, source in coder.sources:
        room[at : at + size] = source
    return decode(told, lambda what, into: (bytes if what[0] == "b" else bytearray)(room[what[1] : what[1] + what[2]]))


@pytest.mark.parametrize(
    "state",
    [
        None,
        {"a": 1, 2: "two", (3, "x"): [True, None, -1.5, 2**70], None: ()},
        [["d", []], ["T", 0, 1], ("l",)],  # what looks like our own words
        {"bytes": b"\0\xff" * 50, "more": bytearray(b"abc"), "none": b""},
        {1 + 2j: {1, 2}, frozenset("ab"): "\ud800"},
        OrderedDict(z=1, a=OrderedDict()),
    ],
)
def test_a_state_comes_back_as_it_was(state: Any) -> None:
    back = through(state)
    assert back == state and type(back) is type(state)


def test_numbers_that_json_does_not_know_come_back() -> None:
    nan, most = through([float("nan"), float("inf")])
    assert nan != nan and most == float("inf")


def test_the_versions_of_a_module_s_state_come_back() -> None:
    state: Any = OrderedDict(weight=1)
    state._metadata = OrderedDict({"": {"version": 2}})
    assert through(state)._metadata == {"": {"version": 2}}


class Custom(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("what", [object(), Custom(), print, type("Point", (tuple,), {})((1, 2))])
def test_what_cannot_be_told_in_bytes_is_refused_by_its_place(what: Any) -> None:
    with pytest.raises(Unstashable, match=r"state\['model'\]\[1\] is a "):
        Coder().code({"model": [0, what]})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("40%", "40%"), ("64GB", "64000000000"), ("1.5g", "1500000000"), ("2GiB", "2147483648"), ("123", "123"), ("0%", "0")],
)
def test_an_amount_of_memory_is_a_share_or_bytes(text: str, expected: str) -> None:
    assert memory(text, "--stash-limit") == expected


@pytest.mark.parametrize("text", ["much", "-1", "101%", "", "12 parsecs", "nan"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="amount of memory"):
        memory(text, "--stash-limit")


OWN = 3
"""Generations of a replicated state on its own node, of tensors in the host's memory."""


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=30, max_size=150))
def test_whenever_a_node_is_lost_there_is_a_step_that_all_can_have(moves: list[tuple[int, bool]]) -> None:
    """Two nodes of two ranks that save after each collective. In each move one of them begins or ends to save, or begins or
    ends to have its state at its partner; whatever comes overwrites the oldest."""
    done, at_partner = [-1] * 4, [-1] * 4
    own: list[list[int]] = [[] for _ in range(4)]
    afar: list[list[int]] = [[] for _ in range(4)]
    saving, coming = [False] * 4, [False] * 4
    for rank, saves in moves:
        if saves and saving[rank]:
            done[rank] += 1
            own[rank], saving[rank] = [*own[rank], done[rank]], False
        elif saves and min(done) >= done[rank] and at_partner[rank] == done[rank]:
            own[rank], saving[rank] = own[rank][-(OWN - 1) :], True
        elif coming[rank]:
            at_partner[rank] += 1
            afar[rank], coming[rank] = [*afar[rank], at_partner[rank]], False
        elif at_partner[rank] < done[rank]:
            afar[rank], coming[rank] = afar[rank][-(stash.REPLICAS - 1) :], True
        if min(done) < 1:
            continue
        for survivor, lost in ((0, 2), (2, 0)):
            common = set.intersection(*map(set, own[survivor : survivor + 2]), *map(set, afar[lost : lost + 2]))
            assert common and max(common) >= min(done) - 1, (own, afar)
