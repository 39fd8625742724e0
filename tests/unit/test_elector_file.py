"""Does what an elector must not forget outlive its agent? A file in a directory of the test's; nobody listens anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.leader.elector_file import SLOT, ElectorHands, earlier_electors
from holdfast.core.config.config import RunConfig
from holdfast.core.wire.messages import Electorate, Past, Roster
from holdfast.rendezvous.election.elector_memory import ElectorMemory, Remember
from holdfast.runtime.host import Host
from holdfast.telemetry.record.state_dir import JobDir, open_job

ROSTER = Roster(
    version=5,
    term=2,
    promise_s=4.5,
    line=("h:1", "h:2"),
    electorates=(Electorate(id=5, size=2, mine=True, line=("h:1", "h:2")),),
    past=Past(life="L"),
)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig(state_dir=str(tmp_path / "home"), training_script="t.py", rdzv_id="train", rdzv_endpoint="h:29400")


def keeps(config: RunConfig, *memories: ElectorMemory, endpoint: str = "h:2") -> JobDir:
    """One life of an agent, that keeps these one after the other, and is killed."""
    where = open_job(config.state_dir, "train", "n1", endpoint="h:29400")
    earlier = next((one for one in earlier_electors(config, "n1") if one.endpoint == endpoint), None)
    complaints: list[str] = []
    hands = ElectorHands(Host(complaints.append), "n1", None, earlier)
    hands.open(where)
    for memory in memories:
        hands.perform(Remember(memory=memory, endpoint=endpoint))
    hands.close(())
    where.close()
    assert not complaints
    return where


def memory_of(config: RunConfig) -> list[tuple[str, ElectorMemory]]:
    return [(one.endpoint, one.memory) for one in earlier_electors(config, "n1")]


def test_the_next_life_knows_the_endpoint_and_what_was_kept_last(config: RunConfig) -> None:
    last = ElectorMemory(term=3, roster=ROSTER)
    where = keeps(config, ElectorMemory(), ElectorMemory(term=2, roster=ROSTER), last)
    assert memory_of(config) == [("h:2", last)]
    assert not earlier_electors(config, "n2"), "another node's"
    path = Path(where.path, "elector-n1")
    assert path.stat().st_mode & 0o777 == 0o600


def test_so_does_the_one_after_that_and_only_the_newest_file_is_left(config: RunConfig) -> None:
    keeps(config, ElectorMemory(term=3, roster=ROSTER))
    newest = ElectorMemory(term=4, roster=ROSTER)
    keeps(config, ElectorMemory(term=3, roster=ROSTER), newest)
    assert memory_of(config) == [("h:2", newest)]
    assert len(list(Path(config.state_dir).glob("jobs/*/elector-*"))) == 1


def test_a_slot_that_was_not_written_to_its_end_leaves_the_older_one(config: RunConfig) -> None:
    older, newer = ElectorMemory(term=3), ElectorMemory(term=4)
    path = Path(keeps(config, older, newer).path, "elector-n1")
    with path.open("r+b") as file:
        file.seek(20)  # in the first slot, which was written second
        file.write(b"torn")
    assert memory_of(config) == [("h:2", older)] and path.stat().st_size == 2 * SLOT


def test_a_run_that_is_over_binds_nobody(config: RunConfig) -> None:
    Path(keeps(config, ElectorMemory(term=3)).path, "report.json").write_text("{}")
    assert not memory_of(config)


@pytest.mark.parametrize("harm", ["others may write", "a link", "nonsense"])
def test_a_file_that_may_be_somebody_else_s_is_left_alone(config: RunConfig, tmp_path: Path, harm: str) -> None:
    path = Path(keeps(config, ElectorMemory(term=3)).path, "elector-n1")
    match harm:
        case "others may write":
            path.chmod(0o622)
        case "a link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "nonsense":
            path.write_bytes(os.urandom(SLOT))
    assert not memory_of(config)


def test_what_cannot_be_written_is_told_and_not_waited_for(config: RunConfig) -> None:
    where = open_job(config.state_dir, "train", "n1", endpoint="h:29400")
    complaints: list[str] = []
    hands = ElectorHands(Host(complaints.append), "n1", None, None)
    hands.path = os.path.join(where.path, "nowhere", "elector-n1")
    hands.perform(Remember(memory=ElectorMemory(), endpoint="h:2"))
    hands.io_thread.caught_up(5.0)
    assert [answer.is_kept for answer in hands._answered()] == [False]
    assert len(complaints) == 1 and "this agent would have no say in who leads" in complaints[0]
    hands.close(())
    where.close()
