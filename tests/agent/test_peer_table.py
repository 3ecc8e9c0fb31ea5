"""Where each case of the peer's suites is tested here, and that those tests are there and assert something.

The peer is EMQX: its suites of durable shared subscriptions, of their API and configuration, and of the
message queues that follow them. Of the first three every case must be in the table; of the queues those that
mean something for streams that are leased as a whole.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

SUITES: dict[str, tuple[str, ...]] = {
    "emqx_ds_shared_sub_SUITE": (
        "t_lease_initial", "t_declare_triggers_persistence", "t_destroy_queue_live_clients", "t_two_clients",
        "t_client_loss", "t_stream_revoke", "t_graceful_disconnect", "t_leader_state_preserved",
        "t_intensive_reassign", "t_multiple_groups", "t_unsubscribe", "t_quick_resubscribe",
        "t_disconnect_no_double_replay1", "t_disconnect_no_double_replay2", "t_lease_reconnect",
        "t_renew_lease_timeout", "t_cluster_smoke", "t_leader_election",
    ),
    "emqx_ds_shared_sub_api_SUITE": (
        "t_basic_crud", "t_list_queues", "t_duplicate_queue", "t_404_when_disable",
    ),
    "emqx_ds_shared_sub_config_SUITE": ("t_update_config",),
    "emqx_mgmt_api_subscription_SUITE": ("t_list_with_shared_sub", "t_list_with_invalid_match_topic"),
    "emqx_ds_shared_sub_leader_rank_progress": ("add_streams_set_replayed_test",),
}  # fmt: skip
"""Every case that the peer has of these suites."""

CASES = "agent/test_peer_cases.py::test_"
OPERATED = "admin/test_peer_operators.py::test_"

TABLE: dict[str, tuple[str, ...]] = {
    "t_lease_initial": (CASES + "lease_initial",),
    "t_declare_triggers_persistence": (CASES + "declare_triggers_persistence",),
    "t_destroy_queue_live_clients": (CASES + "destroy_queue_live_clients",),
    "t_two_clients": (CASES + "two_clients",),
    "t_client_loss": ("cluster/test_cluster.py::test_a_killed_consumer_loses_its_streams_to_the_other_one",),
    "t_stream_revoke": (CASES + "stream_revoke",),
    "t_graceful_disconnect": (CASES + "graceful_disconnect",),
    "t_leader_state_preserved": (CASES + "leader_state_preserved",),
    "t_intensive_reassign": (CASES + "intensive_reassign",),
    "t_multiple_groups": (CASES + "multiple_groups",),
    "t_unsubscribe": (CASES + "unsubscribe",),
    "t_quick_resubscribe": (CASES + "quick_resubscribe",),
    "t_disconnect_no_double_replay1": (CASES + "disconnect_no_double_replay",),
    "t_disconnect_no_double_replay2": (CASES + "disconnect_no_double_replay",),
    "t_lease_reconnect": (
        CASES + "lease_reconnect",
        "borrower/test_machine.py::test_it_looks_for_its_leader_until_it_is_accepted",
    ),
    "t_renew_lease_timeout": (
        CASES + "renew_lease_timeout",
        "agent/test_subscribe.py::test_after_an_abrupt_end_of_the_leader_another_one_goes_on",
        "borrower/test_machine.py::test_only_answers_to_pings_keep_it_alive",
    ),
    "t_cluster_smoke": (
        CASES + "cluster_smoke",
        "cluster/test_cluster.py::test_a_killed_leading_host_is_followed_by_the_other_one",
    ),
    "t_leader_election": (
        CASES + "leader_election",
        CASES + "two_that_want_a_leader_at_once_get_one",
        "leader/test_host.py::test_two_hosts_that_want_the_same_group_do_not_both_lead",
    ),
    "t_basic_crud": (OPERATED + "basic_crud",),
    "t_list_queues": (OPERATED + "list_queues",),
    "t_duplicate_queue": (
        OPERATED + "duplicate_queue",
        "registry/test_groups.py::test_declaring_again_gives_the_declaration_that_holds",
    ),
    # There is no switch that disables groups. What stands for it: where there are none, lists are empty, and
    # everything that names one says that it is unknown.
    "t_404_when_disable": (OPERATED + "404_when_there_is_no_group",),
    # Nothing is configured for all groups at once; options of a group are changed while it is consumed.
    "t_update_config": (OPERATED + "update_config",),
    "t_list_with_shared_sub": (OPERATED + "list_with_shared_sub",),
    "t_list_with_invalid_match_topic": (OPERATED + "list_with_invalid_match_topic",),
    # Streams that are read to their end stay so when they are listed again.
    "add_streams_set_replayed_test": (
        "leader/test_generations.py::test_a_finished_stream_is_never_granted_again",
    ),
    "t_conflicting_queues": ("registry/test_groups.py::test_queue_and_shared_of_one_name_conflict",),
    "t_auto_shutdown": ("leader/test_end_of_a_leader.py::test_an_idle_leader_stops_and_does_nothing_after",),
    "t_quick_reconnect": (
        "leader/test_end_of_a_leader.py::test_who_connects_just_before_the_idle_stop_keeps_the_leader",
    ),
    "t_ack_from_unknown_subscriber": (
        "leader/test_connecting.py::test_an_unknown_borrower_is_invalidated_not_answered",
    ),
    "t_ack_to_message_from_lost_consumer": (
        "agent/test_subscribe.py::test_a_commit_after_too_long_a_pause_is_refused_soon",
    ),
    "t_ping_consumer": ("borrower/test_machine.py::test_a_silent_leader_ends_it_and_another_one_follows",),
    "t_large_consumer_buffer": (CASES + "large_consumer_buffer",),
    "t_ack_from_finished_generation": (
        "agent/test_generations.py::test_the_number_of_streams_changes_under_load",
    ),
    "t_progress_restoration": (
        "agent/test_subscribe.py::test_messages_come_in_order_and_a_restart_goes_on_behind_the_last_commit",
    ),
}
"""Name of the case there -> the tests here."""


@cache
def functions(path: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a file of tests, methods included."""
    tree = ast.parse((TESTS / path).read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: node for node in found}


def judges(path: str, name: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a function asserts something, by itself or by what it calls in its file."""
    function = functions(path).get(name)
    if function is None or name in seen:
        return False
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "raises":
            return True
        if isinstance(called, ast.Name) and judges(path, called.id, seen | {name}):
            return True
    return False


@pytest.mark.parametrize("case", [case for cases in SUITES.values() for case in cases])
def test_every_case_of_the_suites_is_in_the_table(case: str) -> None:
    assert TABLE.get(case), f"the case {case} is tested nowhere"


@pytest.mark.parametrize("case", sorted(TABLE))
def test_the_tests_are_there_and_assert(case: str) -> None:
    for place in TABLE[case]:
        path, _, name = place.partition("::")
        assert name.startswith("test_")
        assert judges(path, name), f"{path} has no test {name} that asserts anything"


def test_a_name_that_is_not_there_would_be_noticed() -> None:
    assert not judges("agent/test_peer_cases.py", "test_lease_initial_2")
    assert not judges("agent/helpers.py", "publish")
