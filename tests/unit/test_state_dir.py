"""Where a job's record lies: names, homes, who shares a directory, and what is pruned."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import StartError, UsageError
from holdfast.telemetry.record import state_dir
from holdfast.telemetry.record.prune import prune
from holdfast.telemetry.record.state_dir import (
    JobDir,
    homes,
    job_name,
    last_to_go,
    open_job,
    safe_name,
    split_run,
    state_home,
    unfinished_round,
)


@pytest.fixture
def spares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The places to fall back to, inside the test's own folder."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("HOLDFAST_SPARE_FOLDERS", str(folder))
    return (str(folder / f"holdfast-{os.geteuid()}"),)


@pytest.fixture
def home(tmp_path: Path, spares: tuple[str, ...]) -> str:
    return str(tmp_path / "home")


@pytest.fixture
def agents() -> Iterator[list[JobDir]]:
    """Whoever is in this list is closed at the end."""
    opened: list[JobDir] = []
    yield opened
    for agent in opened:
        agent.close()


def ended_job(home: str, name: str, touched: float, size: int = 0) -> Path:
    folder = Path(home, "jobs", name)
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "0.log").write_bytes(b"x" * size)
    events = folder / "events-n1.jsonl"
    events.write_text('{"seq": 1, "event": "JobEnded"}\n')
    os.utime(events, (touched, touched))
    return folder


# ---- names


@pytest.mark.parametrize("name", ["train", "gpt_7b-2024.1", "a" * 80, "2f1e0d"])
def test_a_safe_name_stays_as_it_is(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "../../etc", "a/b", "a b", "-rf", "größe", "a~2", "a\nb", "x" * 300, "\udcff"])
def test_any_other_is_cleaned_and_marked(name: str) -> None:
    safe = safe_name(name)
    assert safe != name and len(safe) <= 80 and safe == safe_name(safe)


@given(st.text(max_size=120), st.text(max_size=120))
def test_names_that_differ_stay_apart(one: str, other: str) -> None:
    assert (safe_name(one) == safe_name(other)) == (one == other)


@given(st.text(max_size=300))
def test_a_name_is_one_component_without_a_run_number(text: str) -> None:
    safe = safe_name(text)
    assert safe and "/" not in safe and "\0" not in safe and safe[0] not in ".-" and split_run(safe) == (safe, 1)


def test_torchruns_default_id_is_told_apart_by_its_endpoint() -> None:
    assert job_name("none", "10.0.0.1:29500") != job_name("none", "10.0.0.1:29501")
    assert job_name("train", "10.0.0.1:29500") == "train"


# ---- homes


def test_the_variable_wins(tmp_path: Path) -> None:
    assert state_home({"HOLDFAST_STATE_DIR": "/data/hf", "XDG_STATE_HOME": str(tmp_path)}) == "/data/hf"


def test_then_xdg_then_home(tmp_path: Path) -> None:
    xdg, home = tmp_path / "xdg", tmp_path / "me"
    home.mkdir()
    assert state_home({"XDG_STATE_HOME": str(xdg), "HOME": str(home)}) == f"{xdg}/holdfast"
    assert state_home({"HOME": str(home)}) == f"{home}/.local/state/holdfast"


@pytest.mark.parametrize("home", [None, "", "/nonexistent", "relative", "/proc/self", "/dev/null"])
def test_without_a_home_that_can_be_written_it_is_tmp(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_SPARE_FOLDERS")
    environ = {} if home is None else {"HOME": home}
    assert state_home(environ) == f"/tmp/holdfast-{os.geteuid()}"


def test_what_went_elsewhere_is_seen_where_the_same_folders_are_named_and_nowhere_else(
    home: str, agents: list[JobDir], tmp_path: Path, spares: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(home).touch()
    agents.append(open_job(home, "train", "n1"))
    assert homes({"HOLDFAST_STATE_DIR": home}) == [home, *spares]
    monkeypatch.setenv("HOLDFAST_SPARE_FOLDERS", f"relative::{tmp_path / 'other'}:{tmp_path / 'third'}")
    assert homes({"HOLDFAST_STATE_DIR": home}) == [home]
    agents.append(open_job(home, "train", "n1"))
    assert agents[1].path == f"{tmp_path}/other/holdfast-{os.geteuid()}/jobs/train"


def test_no_test_s_job_goes_where_another_test_or_another_checkout_looks(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert Path(os.environ["HOLDFAST_SPARE_FOLDERS"]).parent == tmp_path_factory.getbasetemp()
    assert Path(state_home({})).parent == Path(os.environ["HOLDFAST_SPARE_FOLDERS"])


def test_where_another_run_of_its_name_still_runs_that_is_said(home: str, agents: list[JobDir]) -> None:
    agents += [open_job(home, "train", "n1", alone=True) for _ in range(2)]
    agents[0].close()
    agents.append(open_job(home, "train", "n1", alone=True))
    told = "train~1 still runs on this host, and this is train~2: see that they do not write to the same checkpoints"
    assert [one.beside for one in agents] == ["", told, told.replace("~2", "~3").replace("~1", "~2")]


def test_what_we_make_is_ours_alone(home: str, agents: list[JobDir]) -> None:
    agents.append(open_job(home, "train", "n1"))
    made = [Path(home), Path(home, "jobs"), Path(agents[0].path)]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700] * 3
    assert stat.S_IMODE(Path(agents[0].events_path).stat().st_mode) == 0o600


@pytest.mark.root
def test_a_strangers_directory_in_tmp_is_refused(spares: tuple[str, ...]) -> None:
    os.mkdir(spares[0])
    os.chown(spares[0], 12345, 12345)
    with pytest.raises(UsageError, match=r"belongs to uid 12345") as refused:
        open_job(spares[0], "train", "n1")
    assert "HOLDFAST_STATE_DIR" in str(refused.value)


def test_a_link_in_tmp_is_refused(spares: tuple[str, ...], tmp_path: Path) -> None:
    os.symlink(tmp_path, spares[0])
    with pytest.raises(UsageError, match="is not a directory"):
        open_job(spares[0], "train", "n1")


def test_an_open_directory_of_ours_in_tmp_is_closed_to_others(spares: tuple[str, ...], agents: list[JobDir]) -> None:
    os.mkdir(spares[0])
    os.chmod(spares[0], 0o777)
    agents.append(open_job(spares[0], "train", "n1"))
    assert stat.S_IMODE(os.stat(spares[0]).st_mode) == 0o700


def test_a_home_that_fails_costs_a_line_not_the_job(tmp_path: Path, spares: tuple[str, ...], agents: list[JobDir]) -> None:
    (tmp_path / "file").write_text("")
    agents.append(open_job(str(tmp_path / "file" / "home"), "train", "n1"))
    assert agents[0].path == f"{spares[0]}/jobs/train" and "file/home" in agents[0].degraded


def test_nowhere_to_write_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_SPARE_FOLDERS", str(tmp_path / "file"))
    with pytest.raises(StartError, match="HOLDFAST_STATE_DIR"):
        open_job(str(tmp_path / "file" / "home"), "train", "n1")


# ---- who shares a directory


def test_agents_of_one_job_share_its_directory(home: str, agents: list[JobDir]) -> None:
    agents += [open_job(home, "train", "n1"), open_job(home, "train", "n2")]
    assert agents[0].path == agents[1].path and [agent.node for agent in agents] == ["n1", "n2"]
    assert state_dir.running_nodes(agents[0].path) == ["n1", "n2"]


def test_two_jobs_of_one_node_each_do_not_share_though_their_ids_are_the_same(home: str, agents: list[JobDir]) -> None:
    agents += [open_job(home, "train", "n1", alone=True) for _ in range(2)]
    assert [(agent.name, agent.node) for agent in agents] == [("train", "n1"), ("train~2", "n1")]


def test_two_jobs_of_one_id_that_meet_at_different_places_do_not_share(home: str, agents: list[JobDir]) -> None:
    agents += [open_job(home, "train", node, endpoint=f"n1:{port}") for port in (29400, 29500) for node in ("n1", "n2")]
    assert [agent.name for agent in agents] == ["train", "train", "train~2", "train~2"]
    assert [agent.node for agent in agents] == ["n1", "n2", "n1", "n2"]
    agents.append(open_job(home, "train", "n3", endpoint="n1:29400"))
    agents.append(open_job(home, "train", "n3", endpoint="n2:29400"))
    assert [agent.name for agent in agents[4:]] == ["train", "train~3"]


@pytest.mark.parametrize("other", ["localhost:29400", "127.0.0.1:29400", "[::1]:29400", "n1.cluster:29400", "10.0.0.2:4000"])
def test_one_job_may_be_found_by_other_words_and_where_its_nodes_listen(home: str, agents: list[JobDir], other: str) -> None:
    agents.append(open_job(home, "train", "n1", endpoint="n1:29400", listens="n1:29400"))
    agents.append(open_job(home, "train", "n2", endpoint="n1:29400", listens="10.0.0.2:4000"))
    agents.append(open_job(home, "train", "n3", endpoint=other))
    assert {agent.name for agent in agents} == {"train"}


def test_a_replacement_finds_its_job_though_another_of_that_id_came_later_and_is_over(home: str, agents: list[JobDir]) -> None:
    agents += [open_job(home, "train", "n1", endpoint="n1:29400"), open_job(home, "train", "n1", endpoint="n1:29500")]
    agents[1].close()
    agents.append(open_job(home, "train", "n2", endpoint="n1:29400"))
    assert agents[2].name == "train"
    agents.append(open_job(home, "train", "n1", endpoint="n1:29500"))
    assert agents[3].name == "train~3"


def test_a_second_agent_of_the_same_name_gets_a_name_of_its_own(home: str, agents: list[JobDir]) -> None:
    agents += [open_job(home, "train", "n1") for _ in range(3)]
    assert [agent.node for agent in agents] == ["n1", "n1-2", "n1-3"]


def test_a_replacement_takes_the_dead_agents_place(home: str, agents: list[JobDir]) -> None:
    agents += [open_job(home, "train", "n1"), open_job(home, "train", "n2")]
    agents[0].close()
    agents.append(open_job(home, "train", "n1"))
    assert (agents[2].path, agents[2].node) == (agents[1].path, "n1")


def test_who_comes_when_its_job_has_ended_comes_to_the_record_of_that(home: str, agents: list[JobDir]) -> None:
    first = open_job(home, "train", "n1", endpoint="n1:29400", started_by="srun 17")
    Path(first.report_path).touch()
    first.close()
    agents.append(open_job(home, "train", "n2", endpoint="n1:29400", started_by="srun 17"))
    assert agents[0].name == "train" and agents[0].joins and not first.joins


@pytest.mark.parametrize(
    ("node", "how"),
    [
        ("n1", {"started_by": "srun 17"}),  # it was in that run: this is the next one, by the same srun
        ("n2", {"started_by": "srun 17", "alone": True}),
        ("n2", {"started_by": "srun 17", "endpoint": "n1:29500"}),
        ("n2", {"started_by": "srun 18"}),
        ("n2", {}),
    ],
)
def test_the_end_of_a_run_that_is_not_its_own_is_none_of_its_business(
    home: str, agents: list[JobDir], node: str, how: dict[str, Any]
) -> None:
    first = open_job(home, "train", "n1", endpoint="n1:29400", started_by="srun 17")
    Path(first.report_path).touch()
    first.close()
    agents.append(open_job(home, "train", node, **{"endpoint": "n1:29400"} | how))
    assert agents[0].name == "train~2" and not agents[0].joins


def test_nor_is_a_run_that_others_have_begun_though_its_like_came_to_it(home: str, agents: list[JobDir]) -> None:
    agents.append(open_job(home, "train", "n1", alone=True))
    agents += [open_job(home, "train", node, endpoint="n1:29400", started_by="srun 17") for node in ("n2", "n3")]
    assert {agent.name for agent in agents} == {"train"} and not any(agent.joins for agent in agents)


def test_a_later_run_of_the_same_id_has_its_own_directory(home: str) -> None:
    names = []
    for _ in range(3):
        agent = open_job(home, "train", "n1")
        names.append(agent.name)
        agent.close()
    assert names == ["train", "train~2", "train~3"]


def test_looking_at_a_job_does_not_take_its_place(home: str, agents: list[JobDir]) -> None:
    agents.append(open_job(home, "train", "n1"))
    agents[0].close()
    fd = os.open(agents[0].events_path, os.O_RDONLY)
    assert not state_dir.is_running(agents[0].path)
    os.close(fd)


def test_a_kernel_with_flock_only_is_enough(home: str, agents: list[JobDir], monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(fcntl, "F_OFD_SETLK", 9999)
    monkeypatch.setattr(fcntl, "F_OFD_GETLK", 9999)
    agents += [open_job(home, "train", "n1"), open_job(home, "train", "n1")]
    assert [agent.node for agent in agents] == ["n1", "n1-2"] and state_dir.is_running(agents[0].path)
    for agent in agents:
        agent.close()
    assert not state_dir.is_running(agents[0].path)


# ---- pruning


def test_the_oldest_go_first(home: str) -> None:
    for number in range(5):
        ended_job(home, f"job{number}", touched=1000.0 + number)
    assert sorted(prune(home, keep=2)) == ["job0", "job1", "job2"]
    assert [os.path.basename(path) for path in state_dir.job_dirs(home)] == ["job4", "job3"]


def test_bytes_are_bounded_too_but_the_newest_stays(home: str) -> None:
    for number in range(3):
        ended_job(home, f"job{number}", touched=1000.0 + number, size=1000)
    assert sorted(prune(home, max_bytes=1500)) == ["job0", "job1"]
    assert prune(home, max_bytes=10) == []


def test_a_running_job_is_never_pruned(home: str, agents: list[JobDir]) -> None:
    agents.append(open_job(home, "long", "n1"))
    os.utime(agents[0].events_path, (1.0, 1.0))
    for number in range(3):
        ended_job(home, f"job{number}", touched=1000.0 + number)
    assert "long" not in prune(home, keep=1)


def test_sockets_of_dead_agents_go_when_their_runs_stay(home: str, agents: list[JobDir]) -> None:
    agents += [open_job(home, "long", "n1"), open_job(home, "long", "n2")]
    agents[1].close()
    for path in (agents[0].socket_path, agents[1].socket_path, ended_job(home, "ended", 1000.0) / "agent-n1.sock"):
        Path(path).touch()
    assert prune(home) == [] and not Path(home, "jobs", "ended", "agent-n1.sock").exists()
    assert Path(agents[1].socket_path).exists(), "where locks do not work its agent may live: it has not ended"
    state_dir.remove_dead_sockets(agents[0].path)
    assert Path(agents[0].socket_path).exists() and not Path(agents[1].socket_path).exists()


def test_a_job_without_an_ending_is_left_for_a_day(home: str) -> None:
    lost = ended_job(home, "lost", touched=1000.0)
    (lost / "events-n1.jsonl").write_text('{"seq": 1, "event": "AgentStarted"}\n')
    os.utime(lost / "events-n1.jsonl", (1000.0, 1000.0))
    ended_job(home, "later", touched=2000.0)
    assert prune(home, keep=1, unix=lambda: 3000.0) == []
    assert prune(home, keep=1, unix=lambda: 91_000.0) == ["lost"]


def test_pruning_does_not_follow_links(home: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "checkpoint").write_text("precious")
    os.symlink(tmp_path / "data", ended_job(home, "old", touched=1.0) / "logs" / "link")
    ended_job(home, "new", touched=2.0)
    assert prune(home, keep=1) == ["old"]
    assert (tmp_path / "data" / "checkpoint").read_text() == "precious"


# ---- was another agent of the job here?


@pytest.mark.parametrize(
    ("events", "unfinished"),
    [
        ((), 0),
        (("AgentStarted",), 0),
        (("AgentStarted", "RoundFormed"), 2),
        (("AgentStarted", "RoundFormed", "JobEnded"), 0),
        (("AgentStarted", "RoundFormed", "JobEnded", "AgentStarted"), 0),
        (("AgentStarted", "RoundFormed", "AgentStarted"), 2),
        (("AgentStarted", "RoundFormed", "JobEnded", "AgentStarted", "RoundFormed", "FailureSeen"), 5),
    ],
)
def test_an_agent_whose_record_has_no_end_leaves_its_last_round_unfinished(
    home: str, events: tuple[str, ...], unfinished: int
) -> None:
    with_old_run = ended_job(home, "train", 0.0)
    agent = open_job(home, "train", "n1")
    Path(agent.events_path).write_text("".join(f'{{"round": {n}, "event": "{event}"}}\n' for n, event in enumerate(events, 1)))
    assert with_old_run.exists() and unfinished_round(home, "train") == unfinished, "it lives, or another of its name does"
    agent.close()
    assert unfinished_round(home, "train") == unfinished
    assert not unfinished_round(home, "another") and not unfinished_round(home + "/nowhere", "train")


def test_the_last_to_go_are_the_agents_that_are_left_when_all_of_them_have_seen_the_end(home: str) -> None:
    one, two = open_job(home, "train", "n1"), open_job(home, "train", "n2")
    Path(one.events_path).write_text('{"event":"AgentStarted","pid":71}\n{"event":"RoundFormed"}\n{"event":"JobEnded"}\n')
    Path(two.events_path).write_text('{"event":"AgentStarted","pid":72}\n{"event":"RoundFormed"}\n')
    assert last_to_go(home, "train") == [], "the other works"
    two.close()
    assert last_to_go(home, "train") == [71] and last_to_go(home, "another") == []
    one.close()
    assert last_to_go(home, "train") == [], "it has ended"


def test_an_agent_of_another_job_of_that_id_leaves_a_round_unfinished_in_that_one_only(home: str) -> None:
    for port in (29400, 29500):
        agent = open_job(home, "train", "n1", endpoint=f"n1:{port}")
        Path(agent.events_path).write_text('{"round":1,"event":"RoundFormed"}\n' if port == 29400 else '{"event":"JobEnded"}\n')
        agent.close()
    assert unfinished_round(home, "train", endpoint="n1:29400") and not unfinished_round(home, "train", endpoint="n1:29500")
