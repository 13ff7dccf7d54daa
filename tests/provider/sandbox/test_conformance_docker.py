"""The Docker provider against the suite that every provider must pass."""

from __future__ import annotations

import os

import pytest
from support.rounds import MORE_ROUNDS
from support.world_readiness import WorldReadiness

from benchflow.contracts.sandbox import Sandbox
from benchflow.testing.sandbox_conformance import SandboxConformance
from benchflow.testing.waiting import until


@pytest.mark.docker
class TestDocker(SandboxConformance, WorldReadiness):
    provider_path = "benchflow.planes.sandbox.docker:DockerDriver"
    base_image = os.environ.get("BENCHFLOW_TEST_IMAGE", "debian:bookworm-slim")
    long = frozenset(
        {
            *MORE_ROUNDS,
            # Shown by the same test for a plain sandbox, as far as it is Docker's.
            "test_a_process_that_starts_a_world_may_be_killed_at_any_moment[first-3]",
            "test_a_process_that_starts_a_world_may_be_killed_at_any_moment[below-3]",
            # Shown by the fork of which each child is one moment of the world.
            *("test_worlds_forked_again_and_again_are_whole_each_time", "test_thirty_generations_are_as_good_as_one"),
            *(
                "test_a_snapshot_may_be_taken_while_the_world_goes_on",
                "test_a_sandbox_may_be_forked_by_two_at_the_same_time",
            ),
            # Shown by test_docker_snapshots.py, by what the daemon says of both.
            "test_children_have_what_their_parent_was_given",
            # Shown by restoring, and by children.
            "test_a_snapshot_is_an_image_to_start_from_and_so_is_one_of_what_began_from_it",
            # Shown by the snapshot of one layer, and by the one that is damaged.
            "test_a_snapshot_above_another_comes_back_with_both",
            *(
                "test_unpacking_at_the_same_time_is_unpacking_once",
                "test_a_process_that_dies_in_the_middle_leaves_no_image",
            ),
            # Shown by the image that resets its base's command, and for the rest of Dockerfiles by the daemon itself.
            *(
                "test_a_dockerfile_is_carried_out_step_by_step",
                "test_a_dockerfile_builds_upon_an_image_that_was_built_here",
                "test_the_name_may_be_an_argument_and_over_several_lines",
                "test_an_image_upon_a_changed_one_is_another",
                "test_an_image_upon_another_runs_the_others_entrypoint_if_asked",
            ),
            *("test_a_build_that_failed_may_be_mended", "test_no_step_sees_this_hosts_files"),
            "test_a_removed_image_is_gone_and_removing_it_again_is_success",
            "test_removing_an_image_in_use_is_refused_or_does_its_sandbox_no_harm",
            *(
                f"test_entrypoint_and_command_combine_as_in_docker[{steps}]"
                for steps in ("exec", "shell", "exec and shell", "exec and exec", "shell and exec", "another shell")
            ),
            # Shown by test_docker_entrypoint.py.
            "test_an_entrypoint_may_end_and_says_how",
            # More of the same log, and the other form of what the first shows.
            "test_a_long_log_is_shown_from_its_end",
            "test_an_entrypoint_runs_once_as_the_image_says_and_with_its_secrets[below]",
            "test_an_entrypoint_below_can_be_ended_with_all_it_started",
            "test_what_an_entrypoint_starts_stays_and_what_the_agent_started_goes[below]",
            "test_a_port_of_each_of_two_sandboxes_is_reached_from_this_host",
            # Shown by test_docker_lifecycle.py: what the container's limits are.
            "test_a_sandbox_cannot_use_up_this_hosts_processes",
            "test_enough_memory_is_enough_and_a_limit_that_cannot_be_kept_is_a_warning",
            # Shown by starts and sweeps, and by those that start one at the same moment.
            "test_many_start_and_go_at_the_same_time",
            "test_starting_and_sweeping_at_the_same_time_does_no_harm",
            *("test_one_provider_serves_one_event_loop_after_another", "test_closing_a_provider_ends_no_sandbox"),
            "test_a_sandbox_that_is_full_of_processes_goes_all_the_same",
            "test_processes_that_multiply_are_all_killed_and_services_live",
            # Shown by the caller whose execution is found again, and at more moments by local sandboxes.
            "test_a_caller_may_be_killed_at_any_moment[5]",
            # Shown by the caller that is killed, and by starts at the same moment.
            "test_a_process_that_starts_one_may_be_killed_at_any_moment[3]",
            "test_callers_and_processes_at_the_same_moment_share_one_build",
            # Shown by a timeout that kills, and by many commands that are one execution.
            *(
                "test_time_counts_from_the_start_also_for_those_who_attach",
                "test_many_commands_at_the_same_time_do_not_mix",
            ),
            "test_a_build_that_takes_too_long_is_stopped",
            # What is above commands is the same code for all providers.
            *(
                "test_a_setup_command_that_takes_too_long_is_killed",
                "test_a_setup_command_that_fails_is_told_with_its_last_words",
                "test_setup_commands_run_once_however_often_they_are_asked_for",
                "test_a_healthcheck_that_hangs_is_killed_each_time",
            ),
            "test_a_world_that_stays_ill_is_told_with_its_last_words",
            *(
                "test_ignored_and_excluded_files_and_a_dockerfile_from_elsewhere_are_not_sent",
                "test_the_root_as_working_directory_counts_as_unset",
            ),
            # Shown by the sandbox that has only its loopback, and by the fork bomb.
            "test_a_service_without_a_network_is_there_for_its_own_sandbox_only",
            "test_a_timeout_kills_what_multiplies",
            # As another user as well as for root.
            "test_processes_at_the_same_moment_share_one_execution[as root]",
            "test_a_killed_callers_execution_goes_on_and_is_found_again[as root]",
            "test_a_timeout_kills_the_command_and_all_it_started[nobody]",
            "test_a_timeout_kills_what_root_started_as_another_user",
            *("test_a_timeout_leaves_everything_else_alone", "test_a_command_that_ends_in_time_keeps_what_it_left"),
            "test_what_ended_in_time_is_not_timed_out_for_a_late_caller",
            # Shown by children that are one moment of their parent, and apart.
            *(
                "test_children_that_are_there_already_are_the_ones_meant_and_outlive_their_parent",
                "test_commands_of_the_parent_run_on_through_a_fork",
            ),
            # Shown by the snapshot that is restored, and by the one that comes back from a store.
            *(
                "test_a_snapshot_of_a_name_that_has_one_is_that_one_until_it_is_removed",
                "test_only_what_the_store_does_not_have_is_sent",
            ),
            # Shown by test_docker_lifecycle.py and test_docker_entrypoint.py.
            *(
                "test_a_command_that_needs_more_memory_than_allowed_is_killed_and_nothing_else",
                "test_an_image_with_nothing_to_run_is_refused",
                "test_an_entrypoint_runs_once_as_the_image_says_and_with_its_secrets[first]",
            ),
            # Shown by starts at the same moment, and by a sandbox that outlives its process.
            *(
                "test_starting_twice_finds_the_first_and_its_ref_says_what_was_asked_for",
                "test_another_provider_attaches_and_gets_the_same",
                "test_each_sandbox_has_files_processes_and_executions_of_its_own",
            ),
            # What such a key, a baseline, a healthcheck or a script is made of is the same for all providers.
            *(
                "test_other_keys_are_other_executions_however_odd",
                "test_each_episode_has_executions_of_its_own",
                "test_without_a_baseline_only_the_sandbox_itself_stays",
                "test_what_runs_under_a_key_can_be_added_to_the_baseline",
                "test_what_a_service_starts_again_and_again_is_left_alone_and_told",
                "test_a_world_is_healthy_as_soon_as_its_command_succeeds",
                "test_setup_commands_run_in_order_as_they_are_written",
                "test_a_script_that_takes_too_long_is_a_result_that_says_so",
            ),
            # Shown by many files, and by two of the four ways to lay a link.
            *("test_a_huge_file_goes_and_comes_back_the_same", "test_reading_a_file_that_is_too_large_is_an_error"),
            *(
                f"test_a_link_leads_to_a_place_inside_however_it_is_laid[{way}]"
                for way in ("../../../../../../../../..{}", "/proc/1/cwd/../../..{}")
            ),
            # Shown by the snapshot that comes back, and by test_docker_entrypoint.py.
            *(
                "test_a_blob_that_is_not_what_it_was_leaves_no_image",
                "test_an_entrypoint_resets_the_command_of_the_image_below",
            ),
            # What is packed and unpacked on this host is the same code for all providers.
            *(
                "test_uploading_what_is_not_there_is_an_error_that_names_it",
                "test_a_link_of_the_host_is_not_followed",
                "test_an_upload_can_leave_out",
                "test_a_download_can_leave_out",
                "test_a_download_replaces_what_is_there",
                "test_a_download_of_nothing_says_so",
                "test_text_is_written_as_utf_8",
            ),
            # Shown by a failing build, and by the equal context.
            *("test_an_image_that_is_not_there_to_build_upon_is_named", "test_a_given_digest_decides"),
        }
    )

    async def test_pid_one_has_the_sandboxs_environment(self, sandbox: Sandbox) -> None:
        async def has_it() -> bool:
            # Seen in the middle of its exec, it has none.
            return (await sandbox.exec(["grep", "-c", "WORLD=one two", "/proc/1/environ"])).stdout == "1\n"

        await until(has_it)
