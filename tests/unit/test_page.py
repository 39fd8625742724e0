"""The layout of the page: no field in the place of another, and those of different writers apart."""

from __future__ import annotations

from holdfast.core.page import layout as page

AGENTS = {
    "MAGIC_AT", "VERSION_AT", "AGENT_PID", "REQUEST", "REQUEST_COUNT", "HOOK", "LEASE_NS", "LIFE_ASKED", "LIFE_BYTES", "LIFE",
}  # fmt: skip
WORKERS = {
    "LOCK_AT", "REQUEST_SEEN", "DUMP_SIGNAL", "DUMP_FD", "PID", "BOOTED_NS", "STATE", "EXIT_NS", "ERROR", "ERROR_UNIX_NS",
    "BEAT_NS", "BEATS", "STEP", "STEP_NS", "STEP_TOOK_NS", "FIRST_BEAT_NS", "AWAITED_NS", "LONGEST_GAP_NS", "OUT_SINCE_NS",
    "LONGEST_OUT_NS",
    "INITIAL_LIMIT_NS", "BEAT_LIMIT_NS", "OUT_LIMIT_NS", "LIMITS_COUNT", "CONTROL_COUNT", "CONTROL_KIND", "CONTROL_TEXT",
    "WARMUP_STEPS", "CALCULATED_INITIAL_NS", "CALCULATED_BEAT_NS", "CALCULATED_OUT_NS", "CALCULATED_COUNT",
    "STEP_TOLD", "TROUBLE", "SECTIONS", "JOINING_NS", "JOINED_NS", "RESTORED_NS", "RESTORE_TOOK_NS", "FIRST_STEP_NS",
    "MAIN_DUMP_SIGNAL", "FIRST_STEP", "MODULES_END", "MODULES", "HEARS", "REACHED_BYTES", "RECORD_BYTES", "RECORD",
    "LAST_WORDS", "LAST_LINE", "LIFE_STATE", "LIFE_COUNT", "STATE_STEP", "STATE_FROM",
    "HELD", "HELD_PART", "HELD_ROUND", "HELD_STEP",
}  # fmt: skip
AREAS = {
    "MUTEX": page.MUTEX_BYTES // 8,
    "CONTROL_TEXT": page.CONTROL_TEXT_BYTES // 8,
    "TROUBLE": page.TROUBLE_BYTES // 8,
    "LAST_WORDS": page.LAST_WORDS_BYTES // 8,
    "LAST_LINE": page.LAST_LINE_BYTES // 8,
    "SECTIONS": page.SECTION_SLOTS * page.SECTION_WORDS,
    "MODULES": page.MODULES_BYTES // 8,
    "RECORD": page.RECORD_ROOM // 8,
    "LIFE": page.LIFE_ROOM // 8,
}
NO_FIELDS = {
    "FIELDS_BYTES", "MODULES_BYTES", "HOOK_SIGNS", "HOOK_MODULES", "HOOK_ONCE",
    "SIZE", "MAGIC", "VERSION", "REQUEST_RECORD", "RECORD_ROOM", "LIFE_ROOM",
    "BOOTING", "RUNNING", "FINISHING", "NO_LIMIT", "NOT_IN_PLACE", "IN_PLACE", "LET_GO",
    "NO_STATE", "FROM_SCRIPT", "FROM_STASH", "FROM_MEMORY", "FROM_RANK",
    "HELD_KEPT", "HELD_STASHED", "HELD_WHOLE", "HELD_ALL",
    "MUTEX_BYTES", "CONTROL_TEXT_BYTES", "TROUBLE_BYTES", "LAST_WORDS_BYTES", "LAST_LINE_BYTES",
    "SECTION_SLOTS", "SECTION_WORDS", "SECTION_NAME_BYTES",
}  # fmt: skip
SLOT = {"OPEN_NS", "TOOK_NS", "LONGEST_NS", "CLOSED", "LIMIT_NS", "CLOSED_NS", "CALCULATED_NS"}
WORDS_PER_CACHE_LINE = 8


def words_of(name: str) -> set[int]:
    at: int = getattr(page, name)
    return set(range(at, at + AREAS.get(name, 1)))


def test_every_field_is_known_here() -> None:
    numbers = {name for name, value in vars(page).items() if isinstance(value, int) and not name.startswith("FUTEX_")}
    assert numbers == AGENTS | WORKERS | {"MUTEX"} | SLOT | NO_FIELDS


def test_fields_do_not_overlap_and_fit() -> None:
    taken: set[int] = set()
    for name in sorted(AGENTS | WORKERS | set(AREAS)):
        assert not taken & words_of(name), name
        taken |= words_of(name)
    assert max(taken) < page.SIZE // 8


def test_a_section_s_fields_follow_its_name_within_the_slot() -> None:
    places = [getattr(page, name) for name in SLOT]
    assert len(set(places)) == len(SLOT)
    assert min(places) >= page.SECTION_NAME_BYTES // 8 and max(places) < page.SECTION_WORDS


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
