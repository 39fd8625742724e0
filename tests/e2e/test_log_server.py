"""With --ft-enable-log-server the lines of all nodes come to the coordinator's node, or are kept where they were said."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.certificates import Certificates
from kit.descriptors import open_here
from kit.jobs.ranks import agent_pid
from kit.jobs.succession import LEASE, LOGS

from holdfast.agent.logs.app_log import AppLog
from holdfast.agent.logs.receiver import LINKS, LINKS_PER_NODE, LogReceiver, open_receiver
from holdfast.agent.logs.sender import Upstream
from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.errors import UsageError
from holdfast.core.machine import NEVER
from holdfast.core.value import replace
from holdfast.core.wire.messages import Join
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.rules import Heard, Rules
from holdfast.runtime.net.blocking_link import BlockingLink
from holdfast.runtime.net.frames import Identity, Turned

TOKEN = "0123456789abcdef0123456789abcdef"

DIES_ONCE = """
import os, signal, sys
rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
for number in range(int(sys.argv[1])):
    stream = sys.stderr if number % 2 else sys.stdout
    print(f"{rank}/{cycle} says {number} " + "x" * 100, file=stream, flush=True)
if (rank, cycle) == ("3", "0"):
    print("last words", end="", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def said(rank: int, cycle: int, count: int) -> list[str]:
    return [f"{rank}: {rank}/{cycle} says {number} {'x' * 100}" for number in range(count)]


def of(rank: int, path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith(f"{rank}: ")]


@pytest.mark.parametrize("secured", ["no token", "token", "TLS"])
def test_every_line_of_every_node_comes_to_the_coordinator_s(
    holdfast: Any, script: Any, tmp_path: Path, free_port: int, wait_until: Any, secured: str
) -> None:
    if secured == "TLS":
        pytest.importorskip("trustme", reason="trustme is not installed: it makes the certificates")
    tls = Certificates(tmp_path / "tls") if secured == "TLS" else None
    lines, program, agents = 3000, script(DIES_ONCE), []
    for name in "ab":
        meeting = ("--nnodes", 2, "--rdzv-endpoint", f"localhost:{free_port}", "--nproc-per-node", 2, "--node-name", name)
        logs = ("--ft-enable-log-server", "true", "--ft-per-cycle-applog-prefix", tmp_path / name / "job.log")
        options = (*meeting, "--max-restarts", 1, *logs, *(tls.flags(name) if tls else ()))
        env = {"HOLDFAST_TOKEN": TOKEN} if secured != "no token" else {}
        agents.append(holdfast.start("ft_launcher", *options, program, lines, env=env))
        wait_until(lambda: holdfast.events("NodeJoined"), what="a's agent, which hosts the coordinator")
    assert [agent.wait().returncode for agent in agents] == [0, 0], agents[0].output
    first, second = (tmp_path / "a" / f"job_cycle{cycle}.log" for cycle in (0, 1))
    assert of(3, first) == [*said(3, 0, lines), "3: last words"]
    for rank in range(4):
        assert of(rank, second) == said(rank, 1, lines)
    assert len(second.read_text().splitlines()) == 4 * lines
    assert not (tmp_path / "b").exists()


TALKS_ON = """
import os, sys, time
rank, round, number = os.environ["RANK"], os.environ["HOLDFAST_ROUND"], 0
while not os.path.exists(sys.argv[1]):
    print(f"{rank} in {round} says {number}", flush=True)
    number += 1
    time.sleep(0.001)
"""


def test_when_the_node_that_gathers_is_lost_the_next_coordinator_s_goes_on_and_no_line_is_lost(
    holdfast: Any, script: Any, tmp_path: Path, free_port: int, wait_until: Any
) -> None:
    program, end, agents = script(TALKS_ON), tmp_path / "end", {}
    for name in "abc":
        meeting = ("--nnodes", "2:3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", *LEASE)
        logs = ("--ft-enable-log-server", "--ft-per-cycle-applog-prefix", tmp_path / name / "job.log")
        agents[name] = holdfast.start("run", *meeting, *logs, "--node-name", name, program, end, env=LOGS)
        wait_until(lambda: holdfast.events("NodeJoined"), what="a's agent, which hosts the coordinator")
    for name in "bc":
        agents[name].wait_for_output("the 3 nodes choose another")

    def ranks_in(path: Path) -> set[str]:
        return {line.partition(":")[0] for line in path.read_text().splitlines()} if path.exists() else set()

    wait_until(lambda: ranks_in(tmp_path / "a" / "job_cycle0.log") == {"0", "1", "2"}, what="the lines of all three")
    os.kill(agent_pid(holdfast, "a"), signal.SIGKILL)
    agents["a"].wait()
    found = lambda: [name for name in "bc" if ranks_in(tmp_path / name / "job_cycle1.log") == {"0", "1"}]
    (successor,) = wait_until(found, what="the second cycle's log, at one of them, with both ranks' lines")
    end.touch()
    assert [agents[name].wait().returncode for name in "bc"] == [0, 0]
    (other,) = {"b", "c"} - {successor}
    assert not (tmp_path / other / "job_cycle1.log").exists()
    logs = {path: path.read_text().splitlines() for path in tmp_path.glob("[abc]/job_cycle*.log")}
    for path, lines in logs.items():
        assert len(lines) == len(set(lines)), f"some lines are in {path} twice"
    gathered = {line.partition(": ")[2] for lines in logs.values() for line in lines}
    for name in "bc":
        kept = list(tmp_path.glob(f"state/jobs/*/logs/{name}/attempt_*/0/output.log"))
        assert len(kept) == 2
        for path in kept:
            assert not [line for line in path.read_text().splitlines() if line not in gathered], path


# --- one node's sender, and one receiver --------------------------------------------------------------------------------


class Rank:
    """A rank's own file, and what sends it."""

    def __init__(self, folder: Path, at: str, *, token: str = TOKEN, patience_s: float = 60.0, **how: Any) -> None:
        folder.mkdir()
        self.file, self.own = folder / "output.log", folder / "job_cycle0.log"
        self.file.touch()
        self.upstream = Upstream(Identity("job", token.encode()), None, "here:1", patience_s, **how)
        self.upstream.at = at
        self.log: Any = AppLog(str(folder / "job.log"), 0, [(str(self.file), "3: ")], self.upstream)

    def say(self, *lines: str) -> None:
        with self.file.open("a") as file:
            file.writelines(line + "\n" for line in lines)

    def end(self, *, job_too: bool = False) -> None:
        self.upstream.is_over = job_too
        self.log.finish()
        assert self.log.wait(60.0)


@pytest.fixture
def receiver(tmp_path: Path) -> Callable[..., LogReceiver]:
    """`receiver()`: takes lines into tmp_path/there/job_cycle<N>.log; what it has to tell is in `told`."""

    def make(token: str = TOKEN, patience_s: float = 60.0, newest_round: int = 9) -> LogReceiver:
        told: list[str] = []
        prefix = str(tmp_path / "there" / "job.log")
        identity, how = Identity("job", token.encode()), {"patience_s": patience_s, "tell": told.append}
        made = LogReceiver(identity, None, "127.0.0.1", 0, prefix=prefix, newest_round=lambda: newest_round, nodes=2, **how)
        made.told = told  # type: ignore[attr-defined]
        return made

    return make


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class Cable:
    """Between a sender and `to`: hands on what comes, and what comes back unless `swallows`. Without `to` it says nothing."""

    def __init__(self, to: str = "") -> None:
        self.to, self.swallows = to, False
        self.ends: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.at = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        for sock in self.ends:
            sock.shutdown(socket.SHUT_RDWR)
        self.ends = []

    def _listen(self) -> None:
        while True:
            came, _ = self.listener.accept()
            self.ends.append(came)
            if self.to:
                on = socket.create_connection(("127.0.0.1", int(self.to.rpartition(":")[2])))
                self.ends.append(on)
                for one, other in ((came, on), (on, came)):
                    threading.Thread(target=self._hand_on, args=(one, other, one is on), daemon=True).start()

    def _hand_on(self, one: socket.socket, other: socket.socket, comes_back: bool) -> None:
        with contextlib.suppress(OSError):  # it is cut
            while data := one.recv(1 << 16):
                if not (comes_back and self.swallows):
                    other.sendall(data)


def test_a_piece_whose_answer_is_lost_is_written_once(receiver: Any, tmp_path: Path, wait_until: Any) -> None:
    there, log = receiver(), tmp_path / "there" / "job_cycle0.log"
    cable = Cable(there.address)
    rank = Rank(tmp_path / "b", cable.at, again_s=0.05)
    wait_until(lambda: there.begun)
    rank.say("one")
    wait_until(lambda: rank.log.sender.number == 1)
    cable.swallows = True
    rank.say("two")
    wait_until(lambda: lines_of(log) == ["3: one", "3: two"])
    assert rank.log.sender.number == 1
    cable.swallows = False
    cable.cut()
    rank.say("three")
    rank.end()
    assert lines_of(log) == ["3: one", "3: two", "3: three"] and not rank.own.exists()
    assert there.is_whole(str(log)) and there.streams == {}


def test_who_lacks_the_token_writes_nothing_there_and_keeps_its_lines(receiver: Any, tmp_path: Path, wait_until: Any) -> None:
    there = receiver()
    rank = Rank(tmp_path / "b", there.address, token="another")
    rank.say("one", "two")
    rank.end(job_too=True)
    assert lines_of(rank.own) == ["3: one", "3: two"] and not (tmp_path / "there").exists()
    refused, kept = rank.log.complaints
    assert refused.startswith(f"cannot send lines of this node's ranks to {there.address} for now (")
    assert "wrong job token" in refused
    assert kept == f"lines of this node's ranks that could not be sent are in {rank.own} on this node"
    wait_until(lambda: there.complaints)
    there.due()
    assert there.told == [f"turned away a connection from 127.0.0.1: {Identity('job', b'x').wrong}"]
    with pytest.raises(Turned, match="wrong job token"):
        link_to(there, "another")


def link_to(there: LogReceiver, token: str = TOKEN) -> BlockingLink:
    sock = socket.create_connection(("127.0.0.1", int(there.address.rpartition(":")[2])))
    return BlockingLink(sock, Identity("job", token.encode()), None, ours=True)


@pytest.mark.parametrize(
    "asked",
    [
        {"cycle": "../../elsewhere", "stream": "a", "at": 0},
        {"cycle": -1, "stream": "a", "at": 0},
        {"cycle": 9, "stream": "a", "at": 0},
        {"cycle": 0, "stream": "a" * 100, "at": 0},
        {"path": "/elsewhere/job.log"},
    ],
    ids=["a path", "no cycle", "a cycle that has not begun", "a long name", "a path of its own"],
)
def test_nobody_says_what_is_written_but_by_a_cycle_s_number(receiver: Any, tmp_path: Path, asked: Any) -> None:
    link = link_to(receiver())
    link.say(asked)
    with pytest.raises(OSError, match="closed the link"):
        link.heard(time.monotonic() + 10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lines", [b"half a line", b"x" * (1 << 20) + b"\n"], ids=["half a line", "too much"])
def test_what_is_no_whole_lines_or_too_much_is_not_written(receiver: Any, tmp_path: Path, lines: bytes) -> None:
    link = link_to(receiver())
    link.say({"cycle": 0, "stream": "a", "at": 0})
    assert link.heard(time.monotonic() + 10) == {"have": 0}
    with pytest.raises(OSError, match=r"closed the link|reset by peer|Broken pipe"):  # in the middle of what is too much
        link.send(bytes(8) + lines)
        link.heard(time.monotonic() + 10)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_sent_waits_and_goes_where_the_coordinator_has_moved(
    receiver: Any, tmp_path: Path, wait_until: Any
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        rank = Rank(tmp_path / "b", f"127.0.0.1:{nobody.getsockname()[1]}")
        lines = [f"{number} " + "x" * 1000 for number in range(5000)]
        rank.say(*lines)
        wait_until(lambda: rank.log.complaints)
        there = receiver()
        rank.upstream.at = there.address
        wait_until(lambda: len(lines_of(tmp_path / "there" / "job_cycle0.log")) == len(lines))
        rank.say("last")
        rank.end()
    assert lines_of(tmp_path / "there" / "job_cycle0.log") == [f"3: {line}" for line in (*lines, "last")]
    assert not rank.own.exists() and len(rank.log.complaints) == 1


def test_a_disk_that_is_full_over_there_is_told_on_both_sides_and_the_lines_are_here(
    receiver: Any, tmp_path: Path, wait_until: Any
) -> None:
    there = receiver()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "job_cycle0.log").symlink_to("/dev/full")
    rank = Rank(tmp_path / "b", there.address)
    rank.say("one")
    wait_until(lambda: rank.log.complaints)
    rank.end(job_too=True)
    assert lines_of(rank.own) == ["3: one"] and "No space left on device" in rank.log.complaints[0]
    there.due()
    assert there.told and all("No space left on device" in line for line in there.told)


@pytest.mark.parametrize("is_there", [True, False])
def test_where_one_rank_s_file_cannot_be_read_what_others_have_said_by_then_is_kept(
    receiver: Any, tmp_path: Path, wait_until: Any, free_port: int, is_there: bool
) -> None:
    """It has been taken from their files, and waits to be sent with more."""
    there = receiver()
    said, own, unreadable = tmp_path / "output.log", tmp_path / "b" / "job_cycle0.log", tmp_path / "folder"
    said.write_text("one\ntwo\n")
    unreadable.mkdir()  # it can be opened
    upstream = Upstream(Identity("job", TOKEN.encode()), None, "here:1", 60.0)
    upstream.at = there.address if is_there else f"127.0.0.1:{free_port}"
    log = AppLog(str(tmp_path / "b" / "job.log"), 0, [(str(said), "3: "), (str(unreadable), "4: ")], upstream)
    assert log.wait(60.0)
    assert lines_of(tmp_path / "there" / "job_cycle0.log" if is_there else own) == ["3: one", "3: two"]
    assert "is incomplete; the ranks' own files are complete" in log.complaints[-1] and "Is a directory" in log.complaints[-1]
    wait_until(lambda: not any(stream.links for stream in there.streams.values()), what="the end of the link")
    log.close()


def test_a_log_whose_files_or_thread_cannot_be_had_keeps_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "output.log").touch()
    before = open_here()
    log = AppLog(str(tmp_path / "job.log"), 0, [(str(tmp_path / file), "3: ") for file in ("output.log", "gone.log")])
    assert log.wait(60.0) and "No such file or directory" in log.complaints[0]
    log.close()

    def no_more(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short, pytest.raises(RuntimeError, match="new thread"):
        short.setattr("_thread.start_new_thread", no_more)
        AppLog(str(tmp_path / "job.log"), 0, [(str(tmp_path / "output.log"), "3: ")])
    assert open_here() <= before


def test_who_says_nothing_is_waited_for_until_the_patience_ends(tmp_path: Path, wait_until: Any) -> None:
    rank = Rank(tmp_path / "b", Cable().at)
    rank.say("one")
    rank.log.finish()
    assert not rank.log.wait(0.2)
    rank.log.sender.cut()
    assert rank.log.wait(60.0) and lines_of(rank.own) == ["3: one"]


def test_where_the_file_here_takes_nothing_either_that_is_told(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "b", Cable().at, patience_s=0.0)
    rank.own.symlink_to("/dev/full")
    rank.say("one")
    rank.log.sender.cut()
    rank.end(job_too=True)
    assert "is incomplete; the ranks' own files are complete: No space left" in rank.log.complaints[-1]


def test_the_receiver_stays_until_all_that_send_have_ended(receiver: Any, tmp_path: Path, wait_until: Any) -> None:
    there, log = receiver(), tmp_path / "there" / "job_cycle0.log"
    rank = Rank(tmp_path / "b", there.address)
    wait_until(lambda: there.begun == {0: 1})
    staying = threading.Thread(target=there.finish, args=(None, "", lambda: False))
    staying.start()
    wait_until(lambda: there.changed is not None)
    assert not there.is_whole(str(log)) and staying.is_alive()
    rank.say("last")
    rank.end(job_too=True)
    staying.join()
    assert lines_of(log) == ["3: last"] and there.told == [] and there.deadline() == NEVER


def test_who_took_part_and_has_not_come_yet_is_waited_for(receiver: Any, tmp_path: Path, wait_until: Any) -> None:
    there = receiver()
    rules = Rules(job="j", min_nodes=2, max_nodes=2, lease_s=3.0)
    job = Rendezvous(rules, RestartOnFailure(max_restarts=0), now=0.0, now_unix=0.0)
    for name in "ab":
        joins = Join(node=name, name=name, addr=name, master_port=1, nproc=1, role="", logs_at=f"{name}:1")
        job.observe(Heard(message=joins, here=name == "a"), 0.0)
    assert job.phase == "running"
    staying = threading.Thread(target=there.finish, args=(job, "a", lambda: False))
    staying.start()
    wait_until(lambda: there.changed is not None)
    assert staying.is_alive()
    rank = Rank(tmp_path / "b", there.address)
    rank.say("only")
    rank.end()
    staying.join()
    assert lines_of(tmp_path / "there" / "job_cycle0.log") == ["3: only"] and there.told == []


def test_who_says_nothing_holds_up_no_end_unless_it_is_a_node_whose_ranks_may_have_more(
    receiver: Any, tmp_path: Path, wait_until: Any
) -> None:
    """The token opens the port to anybody who has it; a node's id is known to the coordinator and to itself."""
    there, later, ended = receiver(), [0.0], threading.Event()
    there.clock = lambda: time.monotonic() + later[0]
    rules = Rules(job="j", min_nodes=1, max_nodes=2, lease_s=3.0)
    job = Rendezvous(rules, RestartOnFailure(max_restarts=0), now=0.0, now_unix=0.0)
    for name in "ab":
        joins = Join(node=name, name=name, addr=name, master_port=1, nproc=1, role="", logs_at=f"{name}:1")
        job.observe(Heard(message=joins, here=name == "a"), 0.0)
    silent = link_to(there)
    silent.say({"cycle": 0, "stream": "silent", "at": 0, "node": "nobody"})
    rank = Rank(tmp_path / "b", there.address, node="b")
    wait_until(lambda: len(there.streams) == 2)
    staying = threading.Thread(target=lambda: (there.finish(job, "a", lambda: False), ended.set()))
    staying.start()
    wait_until(lambda: there.changed is not None)
    later[0] = 50.0
    assert not ended.wait(0.2), "b's ranks may have written what its disk has not given yet"
    rank.say("late")
    rank.end(job_too=True)
    staying.join()
    assert lines_of(tmp_path / "there" / "job_cycle0.log") == ["3: late"] and there.told == []
    silent.close()


def test_many_links_of_one_member_are_not_as_many_threads(receiver: Any) -> None:
    """Or they are all that a container may have, and the coordinator's node can start no rank again."""
    there, links = receiver(), []
    for number in range(200):
        with contextlib.suppress(OSError, EOFError):
            links.append(link_to(there))
            links[-1].say({"cycle": 0, "stream": f"{number}", "at": 0})
    assert 0 < len(there.guests) <= LINKS + LINKS_PER_NODE * 2
    for link in links:
        link.close()


def test_a_port_that_is_given_is_used_and_one_that_is_taken_is_named(tmp_path: Path, free_port: int) -> None:
    told: list[str] = []
    ft = FaultTolerance(per_cycle_applog_prefix=str(tmp_path / "job.log"), log_server_port=free_port)
    first, second = (open_receiver(ft, Identity("job", b""), None, "127.0.0.1", told.append, int, 2) for _ in range(2))
    assert first is not None and second is not None
    assert first.address == f"127.0.0.1:{free_port}" != second.address
    assert told == [f"--ft-log-server-port: {free_port} is in use; other nodes' lines come to {second.address}"]
    with pytest.raises(UsageError, match="70000 is not a port number"):
        open_receiver(replace(ft, log_server_port=70000), Identity("job", b""), None, "127.0.0.1", told.append, int, 2)


def test_where_no_thread_can_be_had_no_lines_are_taken_and_the_port_is_given_back(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    told: list[str] = []
    ft = FaultTolerance(per_cycle_applog_prefix=str(tmp_path / "job.log"), log_server_port=free_port)
    monkeypatch.setattr("holdfast.runtime.net.blocking_server.start_new_thread", no_more)
    assert open_receiver(ft, Identity("job", b""), None, "127.0.0.1", told.append, int, 2) is None
    assert len(told) == 1 and told[0].startswith("cannot listen for other nodes' lines: ") and "new thread" in told[0]
    socket.create_server(("127.0.0.1", free_port)).close()


def test_where_the_coordinator_s_node_takes_none_each_keeps_its_own_and_says_so(
    holdfast: Any, script: Any, tmp_path: Path, free_port: int, wait_until: Any
) -> None:
    agents = []
    for name, more in (("a", ()), ("b", ("--ft-enable-log-server",))):
        meeting = ("--nnodes", 2, "--rdzv-endpoint", f"localhost:{free_port}", "--node-name", name)
        logs = (*more, "--ft-per-cycle-applog-prefix", tmp_path / name / "job.log")
        agents.append(holdfast.start("ft_launcher", *meeting, *logs, script(DIES_ONCE), 10))
        wait_until(lambda: holdfast.events("NodeJoined"), what="a's agent, which hosts the coordinator")
    assert [agent.wait().returncode for agent in agents] == [0, 0]
    for rank, name in enumerate("ab"):
        assert lines_of(tmp_path / name / "job_cycle0.log") == said(rank, 0, 10)
    assert "the coordinator's node gathers no lines" in agents[1].stderr


def test_without_a_log_to_gather_the_flag_says_that_it_does_nothing(holdfast: Any, script: Any, free_port: int) -> None:
    meeting = ("--nnodes", "1:2", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-conf", "last_call_timeout=0.1")
    done = holdfast("ft_launcher", *meeting, "--ft-enable-log-server", script("print(1)"))
    assert done.returncode == 0 and "gathers nothing without --ft-per-cycle-applog-prefix" in done.stderr


def test_a_dry_run_tells_of_the_port(holdfast: Any, script: Any) -> None:
    logs = ("--ft-enable-log-server", "--ft-log-server-port", "50051", "--ft-per-cycle-applog-prefix", "/logs/job.log")
    done = holdfast("ft_launcher", "--dry-run", "--nnodes", 2, "--rdzv-endpoint", "h:29400", *logs, script("print(1)"))
    assert "50051 at each agent (--ft-log-server-port)" in done.stdout, done.output
