"""Short runs of the fuzzers, so that they do not rot; `make fuzz` gives them longer."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from kit.stages import lying_elector, lying_member


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed: pip install '.[fuzz]'")
def test_the_decoder_stands_a_few_seconds_of_guided_fuzzing():
    fuzzer = Path(__file__).with_name("fuzz_decoder.py")
    done = subprocess.run([sys.executable, fuzzer, "4"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-4000:]


def test_without_the_fuzzer_s_library_it_says_so_and_ends_well():
    fuzzer = Path(__file__).with_name("fuzz_decoder.py")
    block = f"import sys, runpy; sys.modules['atheris'] = None; runpy.run_path({str(fuzzer)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("skipped: atheris is not installed")


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_whatever_a_member_says_the_others_job_goes_by_its_rules(first: int) -> None:
    """Through whole rounds, with failures of the others in between; `make fuzz` plays on."""
    for seed in range(first, first + 5):
        lying_member.play(seed)


def test_a_coordinator_that_believes_everything_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.rendezvous.coordinator.machine.believed", lambda job, message: message)
    with pytest.raises(AssertionError, match=r"another node's is told|out of reach"):
        for seed in range(100):
            lying_member.play(seed)


def test_whoever_lies_while_others_elect_ends_no_agent_by_an_error_and_has_no_two_lead() -> None:
    assert sum(lying_elector.play(seed) for seed in range(10)) >= 5
