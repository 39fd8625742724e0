"""Which variables are told as slips of the pen, and which are others' or our own?"""

from __future__ import annotations

import re

import pytest
from kit import ROOT

from holdfast.core.config.flags import ALL_FLAGS
from holdfast.core.config.variables import misspelt


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HOLDFAST_NNODES", "PET_NNODES"),
        ("PET_LEASE", "HOLDFAST_LEASE"),
        ("HOLDFAST_LEASES", "HOLDFAST_LEASE"),
        ("PET_MAX_RESTRATS", "PET_MAX_RESTARTS"),
        ("HOLDFAST_SEGEMNT", "HOLDFAST_SEGMENT"),
    ],
)
def test_a_slip_is_told_with_what_was_meant(name: str, meant: str) -> None:
    assert list(misspelt([name], ALL_FLAGS)) == [(name, meant)]


def test_no_variable_that_anything_of_ours_reads_or_sets_is_taken_for_one() -> None:
    """Neither by our code and tests, nor in our documents."""
    rooms, kinds = ("src", "tests", "docs", "deploy"), (".py", ".md", ".yaml", ".sbatch", ".service")
    texts = [path.read_text() for room in rooms for path in (ROOT / room).rglob("*.*") if path.suffix in kinds]
    names = {name for text in texts for name in re.findall(r"\b(?:HOLDFAST|PET)_[A-Z_]*[A-Z]\b", text)}
    here = {"HOLDFAST_NNODES", "HOLDFAST_LEASES", "HOLDFAST_SEGEMNT", "HOLDFAST_LEESE", "HOLDFAST_MAX_RESTARTS"}
    here |= {"PET_LEASE", "PET_MAX_RESTRATS", "PET_MAX_RESTART"}
    assert len(names) > 100 and list(misspelt(names - here, ALL_FLAGS)) == []


def test_a_variable_that_is_like_no_flag_s_is_left_to_whom_it_belongs() -> None:
    assert list(misspelt(["HOLDFAST_COMPANY_THING", "PET_NAME", "NNODES", "HOLDFAST_SUPERVISOR_TOKEN"], ALL_FLAGS)) == []
