"""Every promise of P3Sub and of Ray's pubsub has a test here: this fails if one of them vanishes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
SINCE = "gateway/test_since.py"
EVENTS = "gateway/test_event_streams.py"
HOOKS = "gateway/webhooks/test_webhooks.py"
MACHINE = "http_client/test_follow_machine.py"
FOLLOWING = "http_client/test_following.py"
PUSHED = "http_client/test_webhook_following.py"
PUBLISHER = "gateway/channels/test_ray_publisher.py"
SUBSCRIBER = "gateway/channels/test_ray_subscriber.py"
COMMAND = "gateway/channels/test_channels.py"
SECURITY = "gateway/channels/test_channel_security.py"

PROMISES = {
    "P1: events name their predecessor": (EVENTS, "test_each_event_names_the_one_before_it"),
    "P2: a window of history": (SINCE, "test_what_retention_took_is_said_with_the_oldest_cursor_left"),
    "P3: since excludes its point": (SINCE, "test_all_after_a_cursor_and_the_cursor_itself_excluded"),
    "P4: all after it first, then live": (HOOKS, "test_what_was_there_comes_first_and_then_what_comes"),
    "P5: old ids are rejected": (PUSHED, "test_callbacks_for_an_old_subscription_are_refused"),
    "P6: only the direct successor": (
        MACHINE,
        "test_every_message_once_and_in_order_whatever_the_network_does",
    ),
    "P7: the quiet timer": (MACHINE, "test_the_quiet_timer_follows_the_pace_of_pushes"),
    "P8: an empty answer": (MACHINE, "test_an_empty_answer_changes_nothing_and_the_timer_grows"),
    "P9: the same without pushes": (FOLLOWING, "test_the_same_messages_whatever_becomes_of_pushes"),
    "P10: the client has the cursor": (
        SINCE,
        "test_a_cursor_holds_at_another_gateway_and_after_a_restart_of_all",
    ),
    "R1: one poll for all keys": (SUBSCRIBER, "test_many_keys_have_one_poll"),
    "R2: one batch in flight": (SUBSCRIBER, "test_one_batch_is_in_flight"),
    "R3: keys and whole channels": (SUBSCRIBER, "test_a_filter_with_wildcards_is_a_whole_channel"),
    "R4: bounded answers": (PUBLISHER, "test_answers_are_split_by_size"),
    "R5: kept until acknowledged": (PUBLISHER, "test_acknowledged_messages_go_and_only_by_their_gateway"),
    "R6: sequences": (SUBSCRIBER, "test_another_gateway_begins_a_sequence_anew"),
    "R7: lossy or critical": (PUBLISHER, "test_the_oldest_of_a_lossy_key_goes_and_a_large_message_passes"),
    "R8: a poll that fails": (SUBSCRIBER, "test_a_poll_that_fails_loses_nothing"),
    "R9: failure per key": (SUBSCRIBER, "test_a_failure_is_told_of_its_key_only"),
    "R10: dead clients": (PUBLISHER, "test_a_client_without_a_poll_is_dead"),
    "R11: what is under way is discarded": (
        SUBSCRIBER,
        "test_a_late_answer_for_an_unsubscribed_key_is_left_out",
    ),
    "R12: statistics": (COMMAND, "test_what_channels_count"),
    "R12: tokens": (SECURITY, "test_rights_of_tokens"),
}


def test_no_promise_is_left_out() -> None:
    known = {one.partition(":")[0] for one in PROMISES}
    assert known == {f"P{n}" for n in range(1, 11)} | {f"R{n}" for n in range(1, 13)}


@pytest.mark.parametrize("promise", PROMISES)
def test_every_promise_has_its_test(promise: str) -> None:
    file, name = PROMISES[promise]
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {node.name for node in tree.body if isinstance(node, functions)}
