"""Every case of Ray's two suites has a test here: this fails if one of either vanishes.

Left the case as Ray calls it, right ours; where ours promises more, the test says so.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PUBLISHER = {
    "SubscriptionIndexSingeNodeSingleObject": "test_index_of_one_client_and_one_key",
    "SubscriptionIndexMultiNodeSingleObject": "test_index_of_many_clients_and_one_key",
    "SubscriptionIndexErase": "test_index_forgets_a_key_that_nobody_wants",
    "SubscriptionIndexEraseMultiSubscribers": "test_index_takes_a_second_erasure",
    "SubscriptionIndexEraseSubscriber": "test_index_forgets_a_client_under_all_keys",
    "SubscriptionIndexIdempotency": "test_index_has_a_client_once_under_a_key",
    "Subscriber": "test_acknowledged_messages_go_and_only_by_their_gateway",
    "SubscriberBatchSize": "test_an_answer_has_so_many_messages",
    "SubscriberActiveTimeout": "test_a_request_says_that_the_client_lives",
    "SubscriberDisconnected": "test_a_client_without_a_poll_is_dead",
    "SubscriberTimeoutComplicated": "test_a_client_lives_that_polls_just_in_time",
    "BasicSingleSubscriber": "test_a_message_answers_a_parked_poll",
    "NoConnectionWhenRegistered": "test_without_a_poll_a_message_waits",
    "MultiObjectsFromSingleNode": "test_many_keys_of_one_client_come_in_order",
    "MultiObjectsFromMultiNodes": "test_keys_of_many_clients_are_apart",
    "MultiSubscribers": "test_many_clients_get_a_message_of_one_key",
    "Batch": "test_messages_are_gathered_in_order",
    "NodeFailureWhenConnectionExisted": "test_a_client_that_dies_with_its_poll_is_forgotten",
    "NodeFailureWhenConnectionDoesntExist": "test_a_client_that_never_polled_is_forgotten",
    "UnregisterSubscription": "test_unsubscribing_leaves_the_poll_open",
    "UnregisterSubscriber": "test_a_client_that_leaves_gets_its_poll_answered",
    "RegistrationIdempotency": "test_registering_twice_gives_one_copy",
    "SubscriberLostAPublish": "test_a_lost_answer_is_sent_again_with_what_came",
    "PublishFailure": "test_a_failure_of_a_key_arrives_as_one",
    "MaxBufferSizePerEntity": "test_the_oldest_of_a_lossy_key_goes_and_a_large_message_passes",
    "MaxBufferSizeAllEntities": "test_the_mailbox_is_bounded_over_all_keys",
    "RegisterSubscriptionInvalidChannelType": "test_an_unknown_kind_of_subscription_is_refused",
    "MaxMessageSize": "test_an_answer_has_so_many_bytes",
}
SUBSCRIBER = {
    "BasicSubscription": "test_subscribe_receive_twice_unsubscribe",
    "IgnoreOutofOrderMessage": "test_a_message_below_the_last_one_is_left_out",
    "PublisherFailsOver": "test_another_gateway_begins_a_sequence_anew",
    "SingleLongPollingWithMultipleSubscriptions": "test_many_keys_have_one_poll",
    "MultiLongPollingWithTheSameSubscription": "test_a_key_is_polled_again_and_again",
    "CallbackNotInvokedForNonSubscribedObject": "test_a_foreign_key_is_left_out",
    "SubscribeAllEntities": "test_a_filter_with_wildcards_is_a_whole_channel",
    "IgnoreBatchAfterUnsubscription": "test_a_late_answer_for_an_unsubscribed_key_is_left_out",
    "IgnoreBatchAfterUnsubscribeFromAll": "test_a_late_answer_for_an_unsubscribed_whole_is_left_out",
    "LongPollingFailure": "test_a_poll_that_fails_loses_nothing",
    "UnsubscribeInSubscriptionCallback": "test_unsubscribing_while_messages_are_handled",
    "SubUnsubCommandBatchSingleEntry": "test_one_command_makes_one_batch",
    "SubUnsubCommandBatchMultiEntries": "test_commands_that_come_meanwhile_make_the_next_batch",
    "SubUnsubCommandBatchMultiBatch": "test_a_batch_has_so_many_commands",
    "OnlyOneInFlightCommandBatch": "test_one_batch_is_in_flight",
    "CommandsCleanedUponPublishFailure": "test_a_refused_batch_costs_only_the_refused_key",
    "FailureMessagePublished": "test_a_failure_is_told_of_its_key_only",
    "IsSubscribed": "test_what_is_subscribed_to_follows_the_last_command",
    "CommandBatchInvalidArgumentStatusCausesCheck": "test_an_invalid_command_ends_its_key_alone",
}


@pytest.mark.parametrize(
    ("file", "table", "cases"),
    [("test_ray_publisher.py", PUBLISHER, 28), ("test_ray_subscriber.py", SUBSCRIBER, 19)],
)
def test_every_case_of_ray_has_its_test(file: str, table: dict[str, str], cases: int) -> None:
    tree = ast.parse(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    tests = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    assert len(table) == cases == len(set(table.values()))
    assert set(table.values()) - tests == set()
