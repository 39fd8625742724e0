"""Does a job come through each of the campaign's kinds of fault that are played with every change? Once each: `make chaos`
plays all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chaos import needs
from chaos.campaign import tidy
from chaos.faults import FAULTS
from chaos.play import play

PLAYED = [name for name, fault in FAULTS.items() if fault.smoke]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PLAYED)
def test_a_job_comes_through(name: str, test_mark: str) -> None:
    if reason := needs.missing(FAULTS[name].needs):
        pytest.skip(reason)
    with tidy() as stem:
        base = Path(f"{stem}-{os.getpid()}")
        base.mkdir()
        told = play(FAULTS[name], 1, base, mark=test_mark)
    assert told["outcome"] == "through", "\n".join(told["problems"])
