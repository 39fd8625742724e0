"""The error record: torch elastic's JSON, and what goes into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.client import record as recorded
from holdfast.client.record import describe, write


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def caught() -> Exception:
    try:
        raise RuntimeError("boom")
    except RuntimeError as error:
        return error


def test_it_has_the_shape_that_torch_gives_it() -> None:
    message = describe(caught(), 1795209654_987654321)["message"]
    assert message["message"] == "RuntimeError: boom"
    assert message["extraInfo"]["timestamp"] == "1795209654"
    assert message["extraInfo"]["py_callstack"].startswith("Traceback (most recent call last):\n")
    assert message["extraInfo"]["py_callstack"].endswith("RuntimeError: boom\n")


def test_an_exception_without_a_text_is_recorded_all_the_same() -> None:
    assert describe(Unprintable(), 0)["message"]["message"] == "Unprintable: <exception without a text>"


def test_a_text_of_many_megabytes_is_recorded_without_its_middle() -> None:
    text = json.dumps(describe(RuntimeError("begins here " + "x" * (8 << 20) + " ends here"), 0))
    assert len(text) < 1 << 20
    for words in ("RuntimeError: begins here", "characters left out", "ends here"):
        assert text.count(words) == 2, words


def test_the_first_record_stays(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    assert write(str(path), caught(), 0)
    first = path.read_text()
    assert not write(str(path), Unprintable(), 0)
    assert path.read_text() == first
    assert list(tmp_path.iterdir()) == [path]


def test_the_decorator_records_what_leaves_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))

    @recorded
    def main(ending: BaseException | None) -> int:
        """Trains."""
        if ending:
            raise ending
        return 3

    assert (main(None), main.__doc__) == (3, "Trains.")
    for quiet in (SystemExit(1), KeyboardInterrupt()):
        with pytest.raises(type(quiet)):
            main(quiet)
    assert not path.exists()
    with pytest.raises(ValueError, match="loud"):
        main(ValueError("loud"))
    assert json.loads(path.read_text())["message"]["message"] == "ValueError: loud"
