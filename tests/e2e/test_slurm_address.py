"""Where is a node of Slurm whose name does not resolve? `scontrol` is asked, which may be missing, wrong or stuck."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from kit.waiting import PATIENCE_S

from holdfast.runtime.net import addresses

NODE = "n1.invalid"  # a domain that never resolves (RFC 2606)
STUCK = "exec sleep 600"


@pytest.mark.parametrize(
    ("scontrol", "found"),
    [
        ("echo NodeName=$4 NodeAddr=10.1.2.3 NodeHostName=x", "10.1.2.3"),
        ("echo NodeName=$4 NodeHostName=x", NODE),
        ("echo 'slurm_load_node error: Unable to contact slurm controller'; exit 1", NODE),
        (STUCK, NODE),
        (None, NODE),
    ],
    ids=("answers", "no-address", "fails", "stuck", "missing"),
)
def test_scontrol_is_asked_and_not_waited_for(scontrol, found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if scontrol is not None:
        program = tmp_path / "scontrol"
        program.write_text(f'#!/bin/sh\ntest "$*" = "show --oneliner node {NODE}" || exit 2\n{scontrol}\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if scontrol is not None else str(tmp_path))
    assert addresses.slurm_address(NODE, 0.3 if scontrol == STUCK else PATIENCE_S) == found


def test_a_name_that_resolves_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert addresses.slurm_address("localhost") == "localhost"
