"""Phases of a restart, as a monitor logs them: the same lines after the same events as NVRx's."""

from __future__ import annotations

import pytest

HEARTBEAT, SECTION, LOST, CHECK, SIGNAL = (
    "handle_heartbeat_msg",
    "handle_section_msg",
    "handle_ipc_connection_lost",
    "periodic_restart_check",
    "handle_signal",
)
STORIES = {
    "nothing yet, and the end": ([SIGNAL, LOST], "UNINITIALIZED"),
    "it runs": ([HEARTBEAT], "INITIALIZE"),
    "it runs, told by a section": ([SECTION, SECTION], "INITIALIZE"),
    "it runs and is ended": ([HEARTBEAT, SIGNAL], "FINALIZED"),
    "ended twice": ([HEARTBEAT, SIGNAL, SIGNAL], "FINALIZED"),
    "lost": ([HEARTBEAT, LOST], "HANDLING_START"),
    "lost, and no news": ([HEARTBEAT, LOST, CHECK, CHECK], "HANDLING_PROCESSING"),
    "back at once": ([HEARTBEAT, LOST, HEARTBEAT], "HANDLING_COMPLETED"),
    "back after a while": ([SECTION, LOST, CHECK, SECTION], "HANDLING_COMPLETED"),
    "back, three times": ([HEARTBEAT, *[LOST, CHECK, HEARTBEAT] * 3], "HANDLING_COMPLETED"),
    "back, and the end": ([HEARTBEAT, LOST, CHECK, HEARTBEAT, SIGNAL], "FINALIZED"),
    "lost while it comes back": ([HEARTBEAT, LOST, LOST], "ABORTED"),
    "lost after no news": ([SECTION, LOST, CHECK, LOST], "ABORTED"),
    "lost, lost, lost": ([HEARTBEAT, LOST, LOST, LOST], "ABORTED"),
    "the end while it comes back": ([HEARTBEAT, LOST, SIGNAL], "ABORTED"),
    "the end after no news": ([HEARTBEAT, LOST, CHECK, SIGNAL], "ABORTED"),
    "the end after that": ([HEARTBEAT, LOST, CHECK, SIGNAL, SIGNAL], "FINALIZED"),
}


class Log(list):
    """As a monitor's: the newer way to say it, and the older."""

    def log_restarter_event(self, text):
        self.append(text)

    log_for_restarter = log_restarter_event


@pytest.fixture
def machine(ft):
    module = ft("rank_monitor_state_machine")
    made = module.RankMonitorStateMachine(Log())
    made.states, made.error = module.RankMonitorState, module.InvalidStateTransitionException
    return made


@pytest.mark.parametrize(("events", "state"), STORIES.values(), ids=STORIES)
def test_a_story_ends_where_it_should(machine, events, state):
    for event in events:
        getattr(machine, event)()
    assert machine.state is machine.states[state]
    assert machine.is_restarting() is (state in ("HANDLING_START", "HANDLING_PROCESSING"))


def test_each_phase_has_its_line(machine):
    for event in (HEARTBEAT, LOST, CHECK, HEARTBEAT, SIGNAL):
        getattr(machine, event)()
    start = "[NestedRestarter] name=[InJob] state="
    handling = [f"{start}handling stage={stage}" for stage in ("starting", "processing", "completed")]
    assert machine.logger == [f"{start}initialize", *handling, f"{start}finalized"]


def test_an_abort_has_its_line(machine):
    for event in (HEARTBEAT, LOST, SIGNAL):
        getattr(machine, event)()
    assert machine.logger[-1] == "[NestedRestarter] name=[InJob] state=aborted"


@pytest.mark.parametrize(
    ("before", "to"),
    [([], "ABORTED"), ([], "HANDLING_COMPLETED"), ([HEARTBEAT, SIGNAL], "HANDLING_START"), ([HEARTBEAT], "ABORTED")],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_where_there_is_no_way_it_stays_and_says_so(machine, before, to):
    for event in before:
        getattr(machine, event)()
    was = machine.state
    with pytest.raises(machine.error) as seen:
        machine.transition_to(machine.states[to])
    assert str(seen.value) == f"Invalid transition attempted from {was} to RankMonitorState.{to}" == machine.logger[-1]
    assert machine.state is was


@pytest.mark.parametrize(
    "events",
    [[CHECK], [HEARTBEAT, CHECK], [HEARTBEAT, SIGNAL, HEARTBEAT], [HEARTBEAT, LOST, LOST, SECTION]],
    ids=["a check with nothing to check", "a check while it runs", "a message after the end", "a message after the abort"],
)
def test_what_cannot_be_is_our_own_mistake(machine, events):
    for event in events[:-1]:
        getattr(machine, event)()
    with pytest.raises(AssertionError):
        getattr(machine, events[-1])()


def test_every_way_is_as_there(nvrx, ours_ft):
    theirs, mine = nvrx("rank_monitor_state_machine"), ours_ft("rank_monitor_state_machine")

    def ways(module):
        found = set()
        for state in module.RankMonitorState:
            machine = module.RankMonitorStateMachine(Log())
            machine.state = state
            found |= {(state.name, to.name) for to in module.RankMonitorState if machine.can_transition_to(to)}
        return found

    assert ways(mine) == ways(theirs)
