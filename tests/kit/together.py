"""Which tests does one worker of pytest run, one after the other, since they share what is costly?

pytest-xdist 3.8 has a mark for that, `xdist_group`, which it writes behind the names of tests. pytest 9.2 gives the names
without it: each test is a group of its own, each worker may start its own cluster of Slurm, and nothing says so. Here the
controller looks the group up by the test's name, through xdist's hook for schedulers.
"""

from __future__ import annotations

from typing import Any

import pytest

GROUPS = {
    "unit/test_house.py": "one reads the source for all",
    "unit/test_style.py": "one reads the source for all",
    "unit/test_layering.py": "one reads the source for all",
    "unit/test_messages.py": "one reads the source for all",
    "security/test_unpickled.py::test_no_module": "one reads the source for all",
    "security/test_unpickled.py::test_the_exceptions": "one reads the source for all",
    "sim/test_diagram.py": "one walks through the machines for all",
    "sim/test_fleet_diagram.py": "one walks through a fleet for all",
    "e2e/test_dashboard": "one browser for all",
    "e2e/test_stash.py::test_what_was_restored": "one imports torch for all",
    "e2e/test_stash.py::test_a_child_keeps": "one imports torch for all",
    "e2e/test_stash.py::test_a_tensor_without": "one imports torch for all",
    "e2e/test_stash.py::test_tensors_come_back_as": "one imports torch for all",
    "e2e/test_stash.py::test_a_schedule_comes": "one imports torch for all",
    "unit/test_flags_against_torchrun.py": "one imports torch for all",
    "unit/test_box.py::test_the_box_is_that": "one imports torch for all",
    "unit/test_binding.py::test_whatever_the_machine": "one imports torch for all",
    "compat/test_elastic_launcher.py::test_a_collective": "one imports torch for all",
    "e2e/test_wheel.py": "one builds the wheels for all",
    "e2e/test_client_wheel.py": "one builds the wheels for all",
    "e2e/test_site.py": "one builds the site for all",
    "e2e/test_slurm.py": "one cluster for all",
    "e2e/test_slurm_supervisor.py": "one cluster for all",
    "e2e/test_orchestrators.py::TestSlurm": "one cluster for all",
    "sim/test_seeds.py::test_every_rule_holds_whatever": "one plays the first jobs for all",
    "sim/test_seeds.py::test_the_troubles_are": "one plays the first jobs for all",
    "sim/test_seeds.py::test_who_leads_and_who_takes_part_is": "one plays the first jobs for all",
    "sim/test_seeds.py::test_clocks_that_jump_late_words_and_slow_disks_are": "one plays the first jobs for all",
    "sim/test_seeds.py::test_warm_spares_that_fail_and_die_are": "one plays the first jobs for all",
}
"""How the names of tests begin → why they go to one worker, all that have the same reason."""


def group_of(test: str) -> str:
    """The group of the test of that name, as pytest says it. Empty: it may go anywhere."""
    name = test.removeprefix("tests/")
    return next((group for start, group in GROUPS.items() if name.startswith(start)), "")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Called by pytest-xdist. None: it shall do what it does."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Together(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid) or super()._split_scope(nodeid)

    return Together(config, log)
