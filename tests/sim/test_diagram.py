"""Do the pages about rounds, nodes and succession say what the machines do?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tools.reference import group, injector, monitor, spares, succession
from tools.reference.rounds import diagram, page
from tools.reference.walk import Step, walk

from holdfast.agent.spares.state import Phase as SparePhase
from holdfast.agent.spares.state import SlotState
from holdfast.monitor.state import Phase
from holdfast.rendezvous.coordinator import member_messages
from holdfast.rendezvous.election.succession_state import LEADS, Role, State
from holdfast.rendezvous.election.succession_state import Step as Taken

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def steps() -> set[Step]:
    return walk()


def test_the_reference_is_made_from_the_machine(steps: set[Step]) -> None:
    said = "run: make reference"
    assert (DOCS / "reference" / "rounds.md").read_text() == page(steps), said


def test_the_explanation_shows_the_same_diagram(steps: set[Step]) -> None:
    assert diagram(steps) in (DOCS / "explanation" / "rounds.md").read_text(), "run: make reference"


def test_the_walk_comes_through_every_phase_and_every_state_of_a_seat(steps: set[Step]) -> None:
    phases = {step.after for step in steps if step.machine == "phase"}
    assert phases == {"gathering", "running", "ending", "ended"}
    seats = {step.after for step in steps if step.machine == "seat"}
    assert seats == {"ready", "running", "succeeded", "stopping", "stopped", "leaving", "no seat"}


def test_a_machine_that_does_otherwise_makes_another_page(steps: set[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_messages, "newcomer", lambda job, seat, now: [])
    assert walk() != steps


# --- a node ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node() -> set[group.Step]:
    return group.walk()


def test_the_reference_of_a_node_is_made_from_the_machine(node: set[group.Step]) -> None:
    assert (DOCS / "reference" / "node.md").read_text() == group.page(node), "run: make reference"


def test_the_walk_of_a_node_comes_through_every_phase_and_ends_in_one(node: set[group.Step]) -> None:
    assert {step.after for step in node} == set(group.PHASES)
    assert not {step for step in node if step.before == "ended" and step.after != "ended"}


# --- a monitor --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watched() -> set[monitor.Step]:
    return monitor.walk()


def test_the_reference_of_a_monitor_is_made_from_the_machine(watched: set[monitor.Step]) -> None:
    assert (DOCS / "reference" / "monitor.md").read_text() == monitor.page(watched), "run: make reference"


def test_the_walk_of_a_monitor_comes_through_every_phase(watched: set[monitor.Step]) -> None:
    assert {step.after for step in watched} == set(Phase)


def test_a_monitor_finds_no_rank_to_hang_but_by_a_second_look(watched: set[monitor.Step]) -> None:
    assert {step.event for step in watched if step.hangs} == {"a rank that seemed to hang has shown nothing new"}


# --- what stands beside it --------------------------------------------------------------------------------------------------


def test_the_reference_of_faults_that_are_played_is_made_from_the_machine() -> None:
    steps = injector.walk()
    assert (DOCS / "reference" / "injector.md").read_text() == injector.page(steps), "run: make reference"
    assert {step.after for step in steps} == set(injector.Phase)


def test_the_reference_of_warm_spares_is_made_from_the_machine() -> None:
    ranks, slots = spares.walks()
    assert (DOCS / "reference" / "spares.md").read_text() == spares.page(ranks, slots), "run: make reference"
    assert {step.after for step in ranks} == set(SparePhase) and {step.after for step in slots} == set(SlotState)


# --- succession -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roles() -> set[succession.Step]:
    return succession.walk()


def test_the_reference_of_succession_is_made_from_the_machine(roles: set[succession.Step]) -> None:
    assert (DOCS / "reference" / "succession.md").read_text() == succession.page(roles), "run: make reference"


def test_the_explanation_of_succession_shows_the_same_diagram(roles: set[succession.Step]) -> None:
    assert succession.diagram(roles) in (DOCS / "explanation" / "succession.md").read_text(), "run: make reference"


def test_the_walk_comes_through_every_role(roles: set[succession.Step]) -> None:
    assert {step.after for step in roles} == set(Role)


def test_a_node_that_leads_votes_for_nobody_and_one_that_follows_seats_nobody(roles: set[succession.Step]) -> None:
    heeded = {(step.before, step.event) for step in roles if step.heeded}
    asked, seated = "`Propose`: the called node asks for a vote", "a round has formed, or its seats have changed"
    assert (Role.SEEKING, asked) in heeded and (Role.LEADING, seated) in heeded
    assert not heeded & {(role, asked) for role in LEADS}
    assert not heeded & {(role, seated) for role in set(Role) - set(LEADS)}


def test_an_election_that_counts_no_votes_makes_another_page(
    roles: set[succession.Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore: Callable[[State, object, int, float], Taken] = lambda state, vote, link, now: (state, [])
    monkeypatch.setattr("holdfast.rendezvous.election.succession.voted", ignore)
    assert succession.walk() != roles
