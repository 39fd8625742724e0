"""The layout of the page: no field in the place of another, and those of different writers apart."""

from __future__ import annotations

from holdfast.core import page

AGENTS = {"MAGIC_AT", "VERSION_AT", "AGENT_PID", "REQUEST", "REQUEST_COUNT"}
WORKERS = {
    "LOCK_AT", "REQUEST_SEEN", "PID", "BOOTED_NS", "STATE", "EXIT_NS", "ERROR", "ERROR_UNIX_NS",
    "BEAT_NS", "BEATS", "STEP", "STEP_NS",
}  # fmt: skip
AREAS = {"MUTEX": page.MUTEX_BYTES // 8, "SECTIONS": page.SECTIONS_WORDS, "TROUBLE": page.TROUBLE_BYTES // 8}
WORDS_PER_CACHE_LINE = 8


def words_of(name: str) -> set[int]:
    at: int = getattr(page, name)
    return set(range(at, at + AREAS.get(name, 1)))


def test_fields_do_not_overlap_and_fit() -> None:
    taken: set[int] = set()
    for name in sorted(AGENTS | WORKERS | set(AREAS)):
        assert not taken & words_of(name), name
        taken |= words_of(name)
    assert max(taken) < page.SIZE // 8


def test_the_two_writers_share_no_cache_line() -> None:
    def lines(names: set[str]) -> set[int]:
        return {word // WORDS_PER_CACHE_LINE for name in names for word in words_of(name)}

    assert not lines(AGENTS) & lines(WORKERS)
    assert not lines({"MUTEX"}) & lines(AGENTS | WORKERS)


def test_the_lock_word_can_be_found_in_the_mutex() -> None:
    assert page.FUTEX_WAITERS | page.FUTEX_OWNER_DIED | page.FUTEX_TID_MASK == 0xFFFFFFFF
    assert page.futex_syscall("x86_64") == 202
    assert page.futex_syscall("aarch64") == 98
    assert page.futex_syscall("vax") is None
