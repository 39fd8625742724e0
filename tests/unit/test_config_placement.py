"""Segments, the unit and the domain: what the command line says about the places of the nodes."""

from __future__ import annotations

import pytest
from kit.stages.command_lines import STATIC, TWO, config, error, warnings

FOUR = ("--nnodes", "4:9", "--rdzv-backend", "c10d", "--rdzv-endpoint", "a:1")


@pytest.mark.parametrize("name", ["--ft-segment", "--ft_segment", "--segment"])
def test_a_segment_is_told_by_any_of_its_names(name):
    assert config(*FOUR, name, "2").segment == 2


def test_nothing_said_means_no_segment_and_any_number_of_nodes():
    found = config(*FOUR)
    assert (found.segment, found.node_unit, found.domain, found.replacement_group_size) == (None, 1, None, 0)


def test_variables_tell_them_too():
    found = config(*FOUR, env={"HOLDFAST_SEGMENT": "4", "HOLDFAST_NODE_UNIT": "2", "HOLDFAST_DOMAIN": "rack7"})
    assert (found.segment, found.node_unit, found.domain) == (4, 2, "rack7")


def test_newcomers_are_taken_in_at_once_unless_told_otherwise():
    assert config(*FOUR).grow == "at-once"
    assert config(*FOUR, "--grow", "never").grow == "never"
    assert config(*FOUR, "--grow", "at-checkpoint").grow_after_s == 60.0
    assert config(*FOUR, "--grow", "at-checkpoint", "--grow-after", "0").grow_after_s == 0.0
    assert "--grow-after" in error(*FOUR, "--grow-after", "soon")
    assert "--grow: there is no 'later'" in error(*FOUR, "--grow", "later")


def test_the_least_number_of_nodes_must_be_a_multiple():
    said = error(*FOUR, "--ft-segment", "3")
    assert "4, is not a multiple of --ft-segment 3" in said and "let it be 3 or 6" in said
    assert "let it be 8" in error(*FOUR, "--node-unit", "8")
    assert config(*FOUR, "--ft-segment", "4").max_nodes == 9  # the ninth is a spare


def test_a_number_below_one_is_refused():
    assert "--ft-segment: 0 is too small" in error(*TWO, "--segment", "0")
    assert "HOLDFAST_NODE_UNIT" in error(*TWO, env={"HOLDFAST_NODE_UNIT": "two"})


def test_the_size_of_a_replacement_group_is_a_setting_of_the_rendezvous():
    found = config(*TWO, "--rdzv-conf", "replacement_group_size=2")
    assert found.replacement_group_size == 2
    assert warnings(*TWO, "--rdzv-conf", "replacement_group_size=2") == ""
    assert "replacement_group_size" in error(*TWO, "--rdzv-conf", "replacement_group_size=x")


def test_backends_that_give_the_ranks_themselves_say_that_it_is_ignored():
    assert "--ft-segment ignored" in warnings(*STATIC, "--ft-segment", "3")
    assert "raft backend" in warnings("--nnodes", "2", "--rdzv-backend", "raft", "--node-unit", "3")
