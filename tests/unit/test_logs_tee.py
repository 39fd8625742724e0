from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.descriptors import open_here

from holdfast.agent.logs.attempt_logs import AttemptLogs, RankPaths, Stream
from holdfast.agent.logs.nonblocking_writer import Console, Stderr
from holdfast.agent.logs.tee import BATCH_S, CHUNK, PARTIAL_S, POLL_S, PROGRESS_S, PUMP_BYTES, Source, Tee


class Followed:
    """Files that are written to, and the pipe that they are shown on, under a clock that is moved by hand."""

    def __init__(
        self, folder: Path, ranks: int = 2, kept: str = "", words: tuple[str, ...] = (), filed: bool = False
    ) -> None:
        self.now = 1000.0
        folder.mkdir()
        self.paths = [folder / str(rank) for rank in range(ranks)]
        for path in self.paths:
            path.touch()
        self.reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.set_blocking(self.reader, False)
        self.tee = Tee(lambda: self.now)
        sources = [Source(str(path), f"[{rank}]:", True, filed) for rank, path in enumerate(self.paths)]
        self.tee.follow(sources, writer, kept, words)
        os.close(writer)

    def write(self, rank: int, text: bytes) -> None:
        with self.paths[rank].open("ab") as file:
            file.write(text)

    def shown(self) -> bytes:
        """What has come out since the last time."""
        text = b""
        try:
            while piece := os.read(self.reader, 1 << 20):
                text += piece
        except BlockingIOError:
            pass
        return text

    def pump(self, later_s: float = 0.0) -> bytes:
        self.now += later_s
        self.tee.pump()
        return self.shown()

    def close(self) -> None:
        self.tee.close()
        os.close(self.reader)


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    made = Followed(tmp_path / "files")
    yield made
    made.close()


def test_complete_lines_are_shown_behind_their_prefix_with_their_bytes_as_they_are(followed: Followed):
    followed.write(0, b"a\n\n\xff\xfe\x1b[1m\r\n")
    assert followed.pump() == b"[0]:a\n[0]:\n[0]:\xff\xfe\x1b[1m\r\n"
    followed.write(1, b"b\n")
    assert followed.pump() == b"[1]:b\n"


def test_a_line_without_an_end_waits_for_its_rest(followed: Followed):
    followed.write(0, b"one ")
    assert followed.pump() == b"" == followed.pump(PARTIAL_S / 2)
    followed.write(1, b"other\n")
    followed.write(0, b"line\nnext")
    assert followed.pump(PARTIAL_S / 4) == b"[0]:one line\n[1]:other\n"
    assert followed.pump(PARTIAL_S) == b"[0]:next\n", "half a second is long enough"


def test_what_follows_a_piece_that_was_shown_is_a_line_of_its_own(followed: Followed):
    followed.write(0, b"Loading ... ")
    followed.pump()
    assert followed.pump(PARTIAL_S) == b"[0]:Loading ... \n"
    followed.write(0, b"done\n")
    assert followed.pump() == b"[0]:done\n"
    followed.write(0, b"Password:")
    followed.pump()
    followed.pump(PARTIAL_S)
    followed.write(0, b"\n\nafter\n")
    assert followed.pump() == b"[0]:\n[0]:after\n", "the end of a line that was shown already adds no empty one"


@pytest.mark.parametrize("draw", [b"\r%3d%%", b"%3d%%\r"], ids=["return first", "return last"])
def test_a_progress_bar_is_shown_at_a_walking_pace_and_at_its_end(followed: Followed, draw: bytes):
    shown = []
    for percent in range(100):
        followed.write(0, draw % percent)
        shown += followed.pump(0.1).splitlines()
    assert 10 / PROGRESS_S - 1 <= len(shown) <= 10 / PROGRESS_S + 2
    assert all(line.endswith(b"%") and line.count(b"%") == 1 for line in shown)
    followed.write(0, draw % 100 + b"\n")
    assert followed.pump().split() == [b"[0]:100%"]


def test_redraws_within_one_read_leave_the_last_state(followed: Followed):
    followed.write(0, b"\r 1%\r 2%\r100%\nplain\r\n   \r\n")
    assert followed.pump() == b"[0]:100%\n[0]:plain\r\n[0]:   \r\n"


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[Followed]:
    """What is shown in a file."""
    made = Followed(tmp_path / "files", filed=True)
    yield made
    made.close()


@pytest.mark.parametrize("draw", [b"Loading ... ", b"\r 10%"], ids=["a piece", "a progress bar"])
def test_in_a_file_a_line_is_whole_however_long_it_takes(filed: Followed, draw: bytes):
    filed.write(0, draw)
    assert filed.pump() == b"" == filed.pump(3600.0)
    filed.write(0, b"\r100%\nlast")
    assert filed.pump() == b"[0]:100%\n"
    filed.tee.drain()
    assert filed.shown() == b"[0]:last\n"


def test_a_file_stays_text_whatever_ranks_write(filed: Followed):
    filed.write(0, b"a\0b\0\n\xff\xfe \xc3\xa9\n")
    assert filed.pump().decode() == "[0]:a<NUL>b<NUL>\n[0]:\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} é\n"


def test_a_file_that_is_cut_short_is_followed_from_its_new_beginning(followed: Followed):
    followed.write(0, b"before\nhalf")
    assert followed.pump() == b"[0]:before\n"
    os.truncate(followed.paths[0], 0)
    followed.write(0, b"after\n")
    assert followed.pump() == b"[0]:half\n[0]:after\n"


def test_lines_with_a_word_are_copied_with_their_prefix(tmp_path: Path):
    followed = Followed(tmp_path / "files", kept=str(tmp_path / "kept"), words=("loss", "acc"))
    followed.write(0, b"step 1\nloss 3\n")
    followed.write(1, b"nothing\nacc 0.5\n")
    assert followed.pump().count(b"\n") == 4
    assert (tmp_path / "kept").read_bytes() == b"[0]:loss 3\n[1]:acc 0.5\n"
    followed.close()


def test_a_hidden_source_is_only_looked_at_for_words(tmp_path: Path):
    (tmp_path / "log").write_bytes(b"loss 3\n")
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    tee = Tee()
    tee.follow([Source(str(tmp_path / "log"), "p:", False)], writer, str(tmp_path / "kept"), ("loss",))
    assert tee.drain() and (tmp_path / "kept").read_bytes() == b"p:loss 3\n"
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    tee.close()
    os.close(reader)
    os.close(writer)


def test_where_one_file_cannot_be_opened_the_others_are_closed_again(tmp_path: Path):
    (tmp_path / "there").touch()
    paths = [RankPaths(stdout=Stream(path=str(tmp_path / name), is_shown=True)) for name in ("there", "gone")]
    attempt = AttemptLogs(paths)
    attempt.release()
    (tmp_path / "gone").unlink()
    before = open_here()
    with pytest.raises(FileNotFoundError):
        attempt.tee(["a", "b"])
    new = {what for _, what in open_here() - before}
    assert all(what.startswith("socket:") for what in new), "a tee has files and pipes; a thread of another test may connect"


def test_draining_shows_everything_and_the_last_piece_too(followed: Followed):
    followed.write(0, b"x" * 100 + b"\n" + b"y" * 10)
    followed.write(1, b"\r 5%\r 7%")
    assert followed.tee.drain()
    assert followed.shown() == b"[0]:" + b"x" * 100 + b"\n[0]:" + b"y" * 10 + b"\n[1]: 7%\n"


def test_draining_ends_though_somebody_goes_on_writing(followed: Followed, monkeypatch: pytest.MonkeyPatch):
    followed.write(0, b"first\n")
    pump = followed.tee.pump

    def and_write_more() -> bool:
        followed.write(0, b"more\n")
        return pump()

    monkeypatch.setattr(followed.tee, "pump", and_write_more)
    assert followed.tee.drain() and followed.shown() == b"[0]:first\n"


def test_one_pump_does_a_bounded_amount_of_work_and_takes_ranks_in_turns(followed: Followed):
    followed.write(0, (b"x" * 99 + b"\n") * 20_000)
    followed.write(1, b"short\n")
    shown = followed.pump()
    assert b"[1]:short\n" in shown and len(shown) < 2 * PUMP_BYTES
    assert followed.tee.look_at <= followed.now, "and asks to be called again at once"


def test_a_console_that_takes_nothing_costs_neither_time_nor_memory(followed: Followed):
    line = b"x" * 995 + b"\n"
    for rank in (0, 1):
        followed.write(rank, line * 2000)
    for _ in range(50):
        assert followed.tee.pump() is False
    (outlet,) = followed.tee._outlets
    assert len(outlet.console._pending) < 3 * CHUNK
    assert followed.tee.drain(stall_s=-1.0) is False, "nobody reads: give up"
    shown = b""
    while piece := followed.pump():
        shown += piece
    assert sorted(shown.splitlines(True)) == [b"[0]:" + line] * 2000 + [b"[1]:" + line] * 2000


def test_draining_has_a_limit_however_much_there_is(followed: Followed):
    followed.write(0, b"x\n" * PUMP_BYTES)
    assert followed.tee.drain(limit_s=-1.0) is False


def test_an_endless_line_is_shown_in_pieces(followed: Followed):
    followed.write(0, b"z" * 3 * CHUNK)
    shown = followed.pump()
    assert shown.replace(b"[0]:", b"").replace(b"\n", b"").startswith(b"z" * 2 * CHUNK)
    (outlet,) = followed.tee._outlets
    assert len(outlet.sources[0]._held) <= CHUNK


def test_a_console_that_is_gone_stops_nothing(followed: Followed):
    os.dup2(os.open(os.devnull, os.O_RDONLY), followed.reader)
    followed.write(0, b"into the void\n" * 10_000)
    assert followed.tee.drain()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=12).map(lambda text: text.replace(b"\r", b"")))))
def test_no_line_is_lost_doubled_or_joined_with_anothers(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, bytes]]
):
    followed = Followed(tmp_path_factory.mktemp("t") / "files", ranks=3)
    shown = b""
    for rank, text in writes:
        followed.write(rank, text)
        shown += followed.pump()
    assert followed.tee.drain()
    shown += followed.shown()
    lines = shown.split(b"\n")[:-1]
    for rank in range(3):
        text = b"".join(text for by, text in writes if by == rank)
        prefix = b"[%d]:" % rank
        assert [line[len(prefix) :] for line in lines if line.startswith(prefix)] == text.removesuffix(b"\n").split(
            b"\n"
        ) * bool(text)
    followed.close()


def ready(tee: Tee) -> bool:
    return bool(select.select([tee], [], [], 0)[0])


def test_a_write_wakes_whoever_waits(followed: Followed):
    while not followed.tee.pump():
        pass
    assert not ready(followed.tee)
    followed.write(1, b"news\n")
    assert ready(followed.tee) and followed.pump() == b"[1]:news\n"
    assert followed.tee.fileno() == -1, "right after a look, more writes wait to be seen together"
    assert followed.now < followed.tee.look_at <= followed.now + BATCH_S


def test_without_inotify_it_looks_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Refuses:
        def __getattr__(self, name: str):
            return lambda *args: -1

    monkeypatch.setattr("ctypes.CDLL", lambda name: Refuses())
    followed = Followed(tmp_path / "files")
    while not followed.tee.pump():
        pass
    assert followed.tee.fileno() == -1 and followed.tee.look_at <= followed.now + POLL_S
    followed.write(0, b"news\n")
    assert followed.pump(POLL_S) == b"[0]:news\n"
    followed.close()


def test_pieces_end_at_line_ends_so_that_a_pipe_does_not_tear_them(monkeypatch: pytest.MonkeyPatch):
    reader, writer = os.pipe()
    written: list[bytes] = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, text: written.append(bytes(text)) or real(fd, text))
    console = Console(writer)
    console.write(b"".join(b"line %d\n" % number for number in range(2000)))
    assert all(len(piece) <= select.PIPE_BUF and piece.endswith(b"\n") for piece in written) and len(written) > 3
    console.close()
    os.close(reader)
    os.close(writer)


def test_the_streams_own_flags_stay_as_they_are():
    reader, writer = os.pipe()
    console = Console(writer)
    assert os.get_blocking(writer), "our workers have this stream too"
    console.close()
    os.close(reader)
    os.close(writer)


class Later:
    """A thread for files that begins when it is told to end."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], None]] = []

    def do(self, task: Callable[[], None], patience_s: float | None = None) -> bool:
        self.tasks.append(task)
        return True

    def close(self) -> bool:
        for task in self.tasks:
            task()
        return True


def test_what_is_said_at_the_end_is_in_the_file_though_the_thread_that_writes_has_not_begun(tmp_path: Path):
    with (tmp_path / "stderr").open("wb") as file:
        stderr = Stderr(file.fileno(), io_thread=Later())
        stderr.say("holdfast: job x failed\n")
        stderr.close()
    assert (tmp_path / "stderr").read_text() == "holdfast: job x failed\n"
