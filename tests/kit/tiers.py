"""Which tests are only in `make test-all`, and why? `make test` (`pytest --everyday`) leaves out what stands in this table.

A line names a folder, a file, or a test with all its parameters; `but A, B` leaves those parameters in `make test`, `only A`
takes those alone out of it, and tests with a fixture of that name. What is left proves every promise of README and every
invariant of ARCHITECTURE.md.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

THOROUGH = {
    "the other ends of a rank: `make test` plays four, and knows all of them by what is recorded of them": """
        e2e/test_every_end.py but soon
        """,
    "more seeds: `make test` plays the first 200 simulated jobs for their troubles, and the first turns of each other loop": """
        sim/test_seeds.py::test_every_rule_holds_in_more_jobs
        sim/test_fleet.py::test_of_two_supervisors_one_takes_over_whatever_happens_to_them_and_to_their_store but 0
        sim/test_fleet.py::test_every_promise_is_kept_whoever_dies_when but 0
        sim/test_repaired_nodes.py::test_what_is_broken_is_repaired_once_or_reported_whoever_is_killed_when but 0
        security/test_fuzz.py::test_whoever_lies_while_others_elect_ends_no_agent_by_an_error_and_has_no_two_lead
        sim/test_fleet_daemons.py::test_what_a_daemon_has_noted_is_acted_on_whoever_is_killed_when but 0
        unit/test_diagnosis_corpus.py::test_causes_and_culprits_are_found but tuned
        unit/test_diagnosis_corpus.py::test_causes_and_culprits_are_found only 1
        unit/test_diagnosis_mutations.py only from threads, held out, once blind, tuned
        unit/test_sieve.py::test_a_scanner_finds_what_reading_each_line_for_each_rule_finds but 0
        unit/test_sieve.py::test_words_of_any_bytes_and_lengths_are_found but 0, 1, 2, 3, 4
        unit/test_sieve.py::test_no_packed_letter_means_something_else_in_a_pattern but 0
        """,
    "agents that die together or in whatever order, on real jobs: `make test` knows it of the simulator": """
        e2e/test_chaos.py
        e2e/test_lost_coordinator.py::test_two_of_three_agents_that_are_killed_together_and_started_again_are_the_voters_that_they_were
        e2e/test_lost_coordinator.py::test_an_operator_lets_the_one_that_is_left_go_on_and_who_was_declared_lost_waits
        sim/test_seeds.py::test_agents_that_die_together_come_back_and_the_job_trains_on but 0
        """,
    "other jobs that wait for a node: `make test` plays one real node that is lost, and the rest in the simulator": """
        e2e/test_kubernetes_swap.py::test_without_a_spare_the_job_shrinks_and_grows_again_by_the_pod_that_is_made
        e2e/test_kubernetes_swap.py::test_without_a_spare_a_job_that_needs_all_nodes_waits_for_the_pod_that_is_made
        e2e/test_supervisor.py::test_a_drained_node_without_a_spare_stays_until_another_that_was_asked_for_has_come
        e2e/test_supervisor.py::test_a_drain_that_waits_is_taken_back_by_uncordon
        """,
    "kinds of fault on real jobs, a few seconds each: `make test` holds their table to their page": """
        e2e/test_faults.py
        """,
    "the other half of a comparison: torch's or NVRx's own, which holds the test to them, and changes only when they do": """
        compat only torch, TCPStore, HashStore, nvrx, nvrx_says, nvrx_serves
        compat/test_elastic_launcher.py::test_two_nodes_come_back_after_a_failure_of_one
        compat/test_elastic_etcd.py::test_a_command_line_for_torch_s_etcd_backends_trains
        compat/test_elastic_stores.py::test_a_real_process_group_of_two_processes_meets_in_it but coordinator
        compat/test_ft_ours.py::test_under_our_agent_two_ranks_calculate_together_and_know_it_in_the_next_life
        compat/test_goodput_library.py
        compat/test_straggler.py
        compat/test_local_checkpoints.py
        compat/test_inprocess.py::test_all_ranks_choose_alike_whom_a_fault_comes_to
        compat/test_inprocess.py::test_the_ranks_that_live_go_on_in_their_processes but kill
        compat/test_inprocess_ranks.py::test_every_topology_ends_as_nvrx_s_does
        compat/test_ft_signatures.py::test_lightning_s_callbacks_take_the_same_with_the_same_defaults
        e2e/test_tee.py::test_streams_go_where_torchrun_sends_them
        e2e/test_tee.py::test_our_box_is_what_torchrun_prints
        e2e/test_better_than_torchrun.py::test_the_failure_box_is_torchrun_s_to_the_letter
        e2e/test_better_than_torchrun.py::test_the_console_shows_torch_elastic_s_events
        e2e/test_hard_use.py::test_torchrun_may_launch_us
        e2e/test_hard_use.py::test_a_script_may_itself_launch only torch.distributed.run
        """,
    "other Pythons than the oldest that a script may have": """
        e2e/test_older_python.py but 3.10
        """,
    "scripts in a process that has waited for them: `make test` plays plain ones and forked ones": """
        e2e/test_bootstrap.py only warm
        """,
    "one more way of what another test shows with a real torch, at some ten seconds each": """
        e2e/test_hangs.py::test_a_script_that_knows_nothing_of_it but blocked
        e2e/test_hangs.py::test_a_process_of_the_data_loader_hangs_and_shows_where
        e2e/test_hangs.py::test_a_deadlock_in_which_nobody_is_to_blame
        e2e/test_hangs.py::test_a_deadlock_of_collectives_is_blamed_on_who_is_out_of_place_and_else_on_nobody
        e2e/test_hangs.py::test_the_rank_that_never_came_to_a_collective_is_found_by_torch_s_own_record_of_a_running_job
        e2e/test_hangs.py::test_on_two_nodes_the_stacks_of_both_are_kept_and_the_culprit_is_found
        e2e/test_hooks.py::test_an_optimizer_s_steps_are_heartbeats_and_progress but plain
        e2e/test_hooks.py::test_a_hang_of_an_unmodified_script_is_found_and_the_job_goes_on
        e2e/test_hooks.py::test_a_script_that_looks_for_us_finds_torch_as_it_is but light
        e2e/test_hooks.py::test_the_step_by_which_a_checkpoint_s_reader_makes_the_optimizer_s_state_is_none_of_training_s
        e2e/test_hooks.py::test_so_is_the_one_of_deepspeed_s_optimizers_even_if_it_fails
        e2e/test_hooks.py::test_so_are_those_of_scripts_that_use_its_older_name
        e2e/test_hooks.py::test_compiled_optimizers_are_compiled_as_without_us
        e2e/test_hooks.py::test_the_forked_children_of_a_data_loader_say_nothing
        e2e/test_hooks.py::test_when_monitoring_is_off_nothing_is_marked
        e2e/test_hooks.py::test_distributed_checkpoints_are_sections
        e2e/test_hooks.py::test_a_script_that_has_used_up_all_names_saves_all_the_same
        e2e/test_stash_replicas.py::test_a_lost_node_s_ranks_go_on_elsewhere_and_lose_a_step_at_most but no token
        e2e/test_stash_replicas.py::test_with_two_copies_two_nodes_may_be_lost_at_once
        e2e/test_stash_disk.py::test_two_nodes_that_are_both_lost_go_on_from_their_disks
        e2e/test_stash.py::test_ranks_that_are_killed_lose_no_step_that_all_have_made but 1
        e2e/test_stash.py::test_two_nodes_go_on_from_a_step_that_both_have
        e2e/test_stash.py::test_the_example_loses_a_step_at_most
        e2e/test_stash_torch.py
        e2e/test_pairs_of_nodes.py
        e2e/test_diagnose.py::test_real_flight_recorders_name_the_rank_that_never_came
        compat/test_elastic_multiprocessing.py::test_tensors_come_back_from_spawned_functions
        e2e/test_beginnings.py::test_each_phase_of_a_restart_is_in_the_report
        e2e/test_inject.py::test_a_slow_rank_becomes_a_straggler
        e2e/test_inject.py::test_a_gpu_that_fails_costs_its_node_its_place_and_a_spare_takes_it but ecc
        e2e/test_limits_travel.py
        e2e/test_watchdog.py::test_a_worker_that_is_late_is_a_failure_like_any_other but the pipe
        e2e/test_warm_spares.py::test_warm_workers_of_torch_meet_and_reduce
        e2e/test_warm_spares.py::test_forked_ranks_draw_different_random_numbers_from_torch_in_each_life
        e2e/test_warm_spares.py::test_a_seed_that_an_import_has_chosen_is_left_to_forked_ranks
        e2e/test_network.py::test_a_host_that_loses_its_power_is_replaced_and_training_goes_on
        e2e/test_false_kills.py
        e2e/test_unmodified_hang.py::test_a_training_script_hangs_by_what_was_learned_from_its_steps
        e2e/test_min_healthy.py::test_a_script_carries_on_in_its_own_processes_and_nobody_is_restarted but a node
        e2e/test_worker_contract.py::test_gloo_works_across_two_agents_and_a_restart
        e2e/test_worker_contract.py::test_gloo_comes_back_at_every_restart but 1
        e2e/test_in_place.py::test_who_has_not_failed_keeps_its_process_and_the_loss_is_that_of_an_undisturbed_run but memory
        e2e/test_in_place_ways_out.py::test_nvrx_s_wrapper_is_led_by_the_agent
        e2e/test_in_place.py::test_no_state_is_trained_on_that_was_torn_by_a_kill_at_any_moment
        e2e/test_in_place.py::test_a_lost_part_of_a_sharded_model_comes_from_whoever_has_it
        e2e/test_in_place_ways_out.py::test_a_rank_comes_out_that_sends_to_one_that_is_killed
        e2e/test_in_place_ways_out.py::test_who_hears_of_a_lost_node_by_its_connections_keeps_its_process_and_its_state
        e2e/test_in_place_ways_out.py::test_a_rank_that_has_got_half_of_a_message_ends_at_the_limit_and_never_takes_it_for_whole
        e2e/test_in_place.py::test_all_that_one_update_changes_ends_as_undisturbed
        e2e/test_in_place_long.py
        e2e/test_hard_use.py::test_a_hundred_restarts_cost_the_agent_nothing
        """,
    "faults that take their seconds, of which a simulated job or a machine by itself shows the decision": """
        e2e/test_endpoint.py but c10d
        e2e/test_hung_disks.py::test_a_restart_comes_while_the_mount_hangs_and_no_lease_is_lost but state-n1
        e2e/test_hung_disks.py::test_ranks_that_wait_to_write_a_line_hold_up_no_restart
        e2e/test_hung_disks.py::test_a_job_ends_well_while_the_mount_hangs
        e2e/test_hung_disks.py::test_where_the_disk_is_full_a_failure_costs_one_restart_and_its_cause_is_known but logs
        e2e/test_failing_calls.py
        e2e/test_supervisor_pair.py::test_a_leader_that_is_stopped_beyond_its_lease_does_nothing_when_it_goes_on
        e2e/test_supervisor_pair.py::test_etcd_is_away_for_a_while
        e2e/test_supervisor_pair.py::test_one_that_is_told_to_end_hands_over_and_can_take_over_again
        e2e/test_kubernetes_store.py::test_a_leader_that_is_stopped_beyond_its_lease_does_nothing_when_it_goes_on
        e2e/test_kubernetes_store.py::test_the_leader_is_killed_in_the_middle_of_a_swap_and_the_other_completes_it
        e2e/test_kubernetes_store.py::test_one_that_is_told_to_end_hands_over_at_once
        e2e/test_kubernetes_store.py::test_what_belongs_together_is_completed_by_the_next_where_the_first_was_killed_in_between
        e2e/test_kubernetes_store.py::test_who_has_been_succeeded_writes_nothing_any_more
        e2e/test_repairs.py::test_a_host_is_booted_once_though_all_die_meanwhile_and_is_reported_when_it_fails_again
        e2e/test_health.py::test_a_check_that_sleeps_in_the_kernel_is_named_once_and_the_job_goes_on
        e2e/test_hard_use.py::test_too_few_descriptors_are_named
        e2e/test_several_nodes.py::test_when_the_hosting_agent_is_lost_the_others_say_so_and_end
        e2e/test_several_nodes.py only had been given up
        e2e/test_daemon_to_supervisor.py::test_a_host_that_dies_is_drained_and_one_without_ranks_takes_over
        e2e/test_daemon_to_supervisor.py::test_a_silent_rank_is_a_trouble_of_its_job
        compat/test_elastic_rendezvous_holdfast.py::test_a_wrong_token_and_a_wrong_job_are_turned_away_and_cost_the_job_nothing
        security/test_tls.py::test_a_certificate_is_no_token
        security/test_tls.py::test_tls_against_none_gets_one_line_on_each_side
        security/test_front_door.py but test_more_idle_connections_than_files_at_the_start_are_not_the_job_s_end
        """,
    "a network that is cut in every way: `make test` cuts off a member and the endpoint's host, and breaks it in two": """
        e2e/test_network.py::test_without_a_spare_the_job_goes_on_smaller_and_takes_the_lost_one_back
        e2e/test_network.py::test_a_spare_that_is_cut_off_costs_the_job_nothing
        e2e/test_network.py::test_an_interface_that_is_down_for_half_a_lease_costs_nothing
        e2e/test_network.py::test_an_agent_that_was_stopped_for_longer_than_its_lease_comes_back_as_any_other
        e2e/test_network.py::test_a_host_that_was_stopped_as_a_whole_comes_back
        e2e/test_network.py::test_a_member_that_is_cut_off_has_stopped_its_ranks_before_a_spare_takes_them but both ways
        e2e/test_network_succession.py::test_a_majority_goes_on_when_the_endpoint_s_host_is_cut_off but both ways
        e2e/test_network_succession.py::test_an_endpoint_s_host_that_is_lost_as_soon_as_all_ranks_run_is_succeeded_too
        e2e/test_network_succession.py::test_a_spare_votes_and_takes_the_place_of_the_endpoint_s_host_which_comes_back_as_a_spare
        e2e/test_network_succession.py::test_a_host_that_reaches_the_others_but_not_the_endpoint_s_takes_nothing_over
        e2e/test_network_succession.py::test_of_two_hosts_the_one_that_is_left_goes_on_where_it_may
        e2e/test_network_succession.py::test_the_successor_is_lost_too
        """,
    "an etcd that is away, moves or forgets: `make test` loses its leader of a job, and an etcd for longer than a lease": """
        e2e/test_etcd.py::test_whoever_slept_through_the_end_is_told_it_by_etcd
        e2e/test_etcd.py::test_a_leader_that_leaves_hands_over_at_once
        e2e/test_etcd.py::test_a_stopped_leader_s_workers_end_before_another_round_begins
        e2e/test_etcd.py::test_a_lease_revoked_by_hand_costs_one_round_and_no_restart
        e2e/test_etcd.py::test_etcd_restarted_within_the_lease_is_not_noticed_by_the_workers
        e2e/test_etcd.py::test_an_etcd_of_three_may_lose_any_one
        e2e/test_etcd.py::test_an_etcd_of_three_restarted_whole_costs_no_restart_of_the_budget
        e2e/test_etcd.py::test_history_that_is_compacted_under_the_watches_costs_nothing
        """,
    "frameworks that take long to import: Lightning, Transformers, JAX, DeepSpeed, torchtitan, Ray, NVRx's, Google's": """
        e2e/test_in_place_trainers.py
        e2e/test_callbacks.py but test_the_plain_loop_says_its_steps_and_sections
        e2e/test_jax.py
        e2e/test_deepspeed.py
        e2e/test_torchtitan.py
        e2e/test_ray.py
        e2e/test_nvrx_client.py
        e2e/test_google_supervisor.py
        e2e/test_google_daemon_to_supervisor.py
        e2e/test_daemon_to_sensor.py::test_google_s_own_sensor_controller_and_actuator_know_and_command_it
        e2e/test_daemon_to_supervisor.py::test_google_s_own_client_is_seen_and_acted_on
        e2e/test_daemon_to_supervisor.py::test_stock_torchrun_is_seen_with_its_restart
        """,
    "the image of supervisor and daemon, which is made from the checkout: some twenty seconds": """
        e2e/test_image.py
        """,
    "stock torchrun around our parts: each starts several of its agents, with torch in all of them": """
        e2e/test_torchrun_plugin.py
        e2e/test_torchrun_reports.py
        """,
    "every command of every document: `make test` types those of README and of the first tutorial": """
        e2e/test_docs.py::test_the_commands_do_what_the_document_says but README.md, docs/tutorial/first-job.md
        e2e/test_docs.py::test_what_is_not_run_is_still_there
        """,
    "the whole browser: `make test` sees one real job live and drains a node in it": """
        e2e/test_dashboard.py but test_a_real_job_is_seen_live_and_one_of_its_nodes_drained
        e2e/test_dashboard_login.py
        """,
    "whole clusters: `make test` starts one job under a real Slurm, and swaps one pod of Kubernetes": """
        e2e/test_slurm.py but test_srun_trains_on_two_nodes_without_a_flag
        e2e/test_slurm_supervisor.py
        e2e/test_orchestrators.py
        e2e/test_kubernetes_orchestrator.py
        e2e/test_jobset_in_place.py
        """,
    "what is tested elsewhere in parts: benchmarks, mutations, the demo with torch, a release in an empty place, the site": """
        e2e/test_benchmarks.py::test_every_benchmark_gives_its_rows
        e2e/test_demo.py::test_the_demo_survives_a_rank_and_a_node_with_pytorch
        e2e/test_developer_tools.py::test_tests_that_share_what_is_costly_go_to_one_worker_of_pytest
        e2e/test_developer_tools.py::test_a_mutation_is_found_by_a_test_or_survives_and_is_judged_once
        e2e/test_wheel.py
        e2e/test_client_wheel.py
        e2e/test_release.py
        e2e/test_site.py
        e2e/test_etcd.py::test_the_example_without_docker_forms_one_process_group
        """,
}  # fmt: skip
"""Reason → lines."""


class Line(NamedTuple):
    """One line of the table, taken apart."""

    prefix: str
    but: tuple[str, ...]
    only: tuple[str, ...]
    reason: str

    def takes(self, test: str, fixtures: Iterable[str] = ()) -> bool:
        """Is this test, as in `e2e/test_tee.py::test_it[id]`, with these fixtures, only in `make test-all`?"""
        path, _, identity = test.removesuffix("]").partition("[")
        if path != self.prefix and not path.startswith((f"{self.prefix}/", f"{self.prefix}::")):
            return False
        words = {path.rpartition("::")[2], identity, *identity.split("-"), *fixtures}
        return not words & set(self.but) and (not self.only or bool(words & set(self.only)))


def line_of(text: str, reason: str) -> Line:
    """`e2e/test_tee.py::test_it but this, that`, taken apart."""
    prefix, _, but = text.partition(" but ")
    prefix, _, only = prefix.partition(" only ")
    return Line(prefix, _words(but), _words(only), reason)


def lines() -> list[Line]:
    """The whole table."""
    return [
        line_of(line, reason) for reason, text in THOROUGH.items() for line in filter(None, map(str.strip, text.splitlines()))
    ]


@functools.cache
def lines_of(path: str) -> tuple[Line, ...]:
    """Those that may take a test of this file."""
    return tuple(line for line in lines() if line.prefix.partition("::")[0] == path or path.startswith(f"{line.prefix}/"))


def left_out(path: str) -> bool:
    """Are all tests of this file only in `make test-all`?"""
    return any("::" not in line.prefix and not line.but and not line.only for line in lines_of(path))


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, re.split(", ", text)))


def table() -> str:
    """The rows of CONTRIBUTING.md."""
    rows = [f"| {reason} | {' · '.join(_short(line) for line in lines() if line.reason == reason)} |" for reason in THOROUGH]
    return "\n".join(["| why | what |", "|---|---|", *rows])


def _short(line: Line) -> str:
    """Without the parameters that stay, which the table above names."""
    only = f" ({' and '.join(line.only)})" if line.only else ""
    return f"`{line.prefix}`{only}{', in part' if line.but else ''}"
