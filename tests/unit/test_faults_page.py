"""Do the table of faults and their page agree? And is the table what the campaign needs?"""

from __future__ import annotations

from chaos import page
from chaos.campaign import records
from chaos.fault import FAULTS
from chaos.needs import NEEDS


def test_the_page_is_made_from_the_table_and_the_record() -> None:
    assert page.PAGE.read_text() == page.page(records()), "run: make chaos"


def test_every_kind_has_a_heading_and_needs_that_exist() -> None:
    for fault in FAULTS.values():
        assert fault.group in page.TITLES, f"{fault.group}: give it a title in tests/chaos/page.py"
        assert set(fault.needs) <= set(NEEDS), f"{fault.name} needs what tests/chaos/needs.py does not know"
        assert fault.done and "|" not in fault.name, fault.name


def test_there_are_as_many_kinds_as_are_promised() -> None:
    assert len(FAULTS) >= 150
    assert sum(fault.torchrun for fault in FAULTS.values()) >= 20
    assert sum(fault.smoke for fault in FAULTS.values()) >= 40
