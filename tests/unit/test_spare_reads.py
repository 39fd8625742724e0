"""Which variables has a spare's import read? Not those of whoever copies or searches all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from holdfast.client.spare import _Reads


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], object]], set[str]]]:
    """`read(import_)`: names that it has read."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("HOME_OF_MINE", "/home")

    def names(import_: Callable[[], object]) -> set[str]:
        reads = _Reads()
        reads.begin()
        try:
            import_()
        finally:
            reads.end()
        return reads.names

    yield names
    assert list(os.environ) and os.environ["RANK"] == "3"


@pytest.mark.parametrize(
    "import_",
    [
        lambda: os.environ["RANK"],
        lambda: os.environ.get("RANK"),
        lambda: os.getenv("RANK"),
        lambda: os.environb[b"RANK"],
        lambda: (list(os.environ), os.environ["RANK"]),
        lambda: (dict(os.environ), os.environ["RANK"]),
    ],
    ids=["[]", "get", "getenv", "bytes", "after a walk", "after a copy"],
)
def test_whoever_asks_for_one_has_read_it(read, import_):
    assert "RANK" in read(import_) and len(read(import_)) == 1


@pytest.mark.parametrize(
    "import_",
    [
        lambda: dict(os.environ),
        lambda: os.environ.copy(),
        lambda: {**os.environ},
        lambda: list(os.environ.items()),
        lambda: [value for name, value in os.environ.items() if name.startswith("HOME_OF")],
        lambda: {name: os.environ[name] for name in os.environ},
        lambda: "RANK" in list(os.environ),
    ],
    ids=["dict", "copy", "unpacked", "items", "searched", "comprehended", "names"],
)
def test_whoever_copies_or_searches_all_has_read_none(read, import_):
    assert read(import_) == set()


def test_a_search_that_ends_early_hides_no_read(read):
    def searches_and_reads() -> None:
        for name in os.environ:
            if name == "RANK":
                break
        assert next(value for name, value in os.environ.items() if name == "RANK") == "3"
        os.environ["RANK"]

    assert read(searches_and_reads) == {"RANK"}


def test_who_has_all_names_and_reads_the_first_has_read_it(read):
    first = next(iter(os.environ))
    assert read(lambda: (list(os.environ), os.environ[first])) == {first}
