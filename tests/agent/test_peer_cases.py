"""The cases that EMQX tests of its durable shared subscriptions, each under its name there.

Every one asserts that nothing is lost *and* that nothing comes twice, also the two in which that
implementation has the second assertion commented out. Each client here stands for a process: it has its own
agent, and the leader is embedded in the one that came first. Cases of its suites that other rooms of ours
test are listed in `ELSEWHERE`, and it is checked that those tests are there.
"""

from __future__ import annotations

import ast
import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from streamlease.agent.client import Client
from streamlease.agent.subscription import SharedReader
from streamlease.protocol.topics import SharedSubscription
from tests.agent.helpers import SUB, Consumer, publish, take, until

TESTS = Path(__file__).parent.parent

ELSEWHERE = {
    "t_lease_reconnect": "borrower/test_machine.py::test_it_looks_for_its_leader_until_it_is_accepted",
    "t_renew_lease_timeout": "agent/test_subscribe.py::"
    "test_after_an_abrupt_end_of_the_leader_another_one_goes_on",
    "t_client_loss": "cluster/test_cluster.py::test_a_killed_consumer_loses_its_streams_to_the_other_one",
    "t_cluster_smoke": "cluster/test_cluster.py::test_a_killed_leading_host_is_followed_by_the_other_one",
    "t_leader_election": "leader/test_host.py::test_two_hosts_that_want_the_same_group_do_not_both_lead",
    "t_intensive_reassign": "agent/test_subscribe.py::"
    "test_two_subscribers_share_and_hand_over_without_loss_or_repetition",
    "t_duplicate_queue": "registry/test_groups.py::test_declaring_again_gives_the_declaration_that_holds",
    "t_conflicting_queues": "registry/test_groups.py::test_queue_and_shared_of_one_name_conflict",
    "t_list_queues": "registry/test_groups.py::test_groups_are_listed_by_name",
    "t_auto_shutdown": "leader/test_leases.py::test_an_idle_leader_stops_and_does_nothing_after",
    "t_quick_reconnect": "leader/test_leases.py::"
    "test_who_connects_just_before_the_idle_stop_keeps_the_leader",
    "t_ack_from_unknown_subscriber": "leader/test_leases.py::"
    "test_an_unknown_borrower_is_invalidated_not_answered",
    "t_ack_to_message_from_lost_consumer": "agent/test_subscribe.py::"
    "test_a_commit_after_too_long_a_pause_is_refused_soon",
    "t_ping_consumer": "borrower/test_machine.py::test_a_silent_leader_ends_it_and_another_one_follows",
    "t_large_consumer_buffer": "agent/test_reader.py::",
    "t_ack_from_finished_generation": "agent/test_generations.py::"
    "test_the_number_of_streams_changes_under_load",
    "t_progress_restoration": "agent/test_subscribe.py::"
    "test_messages_come_in_order_and_a_restart_goes_on_behind_the_last_commit",
    "t_update_config": "leader/test_leases.py::test_a_time_that_is_not_positive_is_refused",
}
"""Name of the case there -> where it is tested here; an empty name stands for the whole file."""


@pytest.mark.parametrize("case", sorted(ELSEWHERE))
def test_the_other_cases_are_tested_where_the_table_says(case: str) -> None:
    path, _, name = ELSEWHERE[case].partition("::")
    tree = ast.parse((TESTS / path).read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert not name or name in names


async def space(client: Client, streams: int = 4) -> None:
    await client.create_space("s", ["a/#"], streams=streams)


def once_each(numbers: list[int], count: int) -> None:
    counts = Counter(numbers)
    assert sorted(counts) == list(range(count)), "lost"
    assert max(counts.values()) == 1, "came twice"


async def test_lease_initial(client: Client) -> None:
    await space(client)
    async with client.subscribe(SUB, start="earliest") as reader:
        await publish(client, range(10))
        first = await take(reader, 10)
        await publish(client, range(10, 20))
        once_each(first + await take(reader, 10), 20)


async def test_declare_triggers_persistence(client: Client) -> None:
    """What is published between declaration and first subscriber is delivered; other topics are not."""
    await space(client)
    await client.create_space("other", ["b/#"])
    queue = "$queue/g/a/#"
    await client.groups.declare(SharedSubscription.parse(queue), "latest")
    await publish(client, range(20))
    await publish(client, range(20), root="b")
    async with client.subscribe(queue) as reader:
        got = await take(reader, 20)
    once_each(got, 20)


async def test_two_clients(client: Client, second: Client) -> None:
    await space(client)
    async with client.subscribe(SUB, start="earliest") as one, second.subscribe(SUB) as other:
        consumers = [Consumer(one).start(), Consumer(other).start()]
        await until(lambda: len(one.streams) == len(other.streams) == 2)
        await publish(client, range(4), topics=2)
        await until(lambda: sum(len(c.got) for c in consumers) >= 4)
        for consumer in consumers:
            await consumer.stop()
    once_each([n for consumer in consumers for n in consumer.got], 4)


async def test_stream_revoke(client: Client, second: Client) -> None:
    """A second one joins and takes streams over; later messages arrive at both, each once."""
    await space(client)
    async with client.subscribe(SUB, start="earliest") as one:
        first = Consumer(one).start()
        await publish(client, range(50))
        await until(lambda: len(first.got) >= 50)
        async with second.subscribe(SUB) as other:
            late = Consumer(other).start()
            await until(lambda: len(one.streams) == len(other.streams) == 2)
            await publish(client, range(50, 100))
            await until(lambda: len(first.got) + len(late.got) >= 100)
            await late.stop()
        await first.stop()
    assert late.got
    once_each(first.got + late.got, 100)


async def test_graceful_disconnect(client: Client, second: Client) -> None:
    await space(client)
    async with client.subscribe(SUB, start="earliest") as one:
        async with second.subscribe(SUB) as other:
            await until(lambda: len(one.streams) == len(other.streams) == 2)
        await until(lambda: len(one.streams) == 4)  # far within the session timeout, or the test ends
        await publish(client, range(20))
        once_each(await take(one, 20), 20)


async def test_leader_state_preserved(client: Client, second: Client) -> None:
    """All leave and the leader with them; who comes next gets what was published meanwhile, and only that."""
    await space(client)
    await publish(client, range(20))
    async with client.subscribe(SUB, start="earliest") as reader:
        got = await take(reader, 20)
    await client.close()
    await publish(second, range(20, 40))
    async with second.subscribe(SUB) as reader:
        once_each(got + await take(reader, 20), 40)


async def test_multiple_groups(client: Client) -> None:
    """Many groups with several subscribers each: every group gets everything, each message once."""
    await space(client)
    groups, members = 5, 3
    async with AsyncExitStack() as stack:
        consumers: dict[int, list[Consumer]] = {}
        for group in range(groups):
            subs = [client.subscribe(f"$shared/g{group}/a/#", start="earliest") for _ in range(members)]
            readers = [await stack.enter_async_context(sub) for sub in subs]
            consumers[group] = [Consumer(reader).start() for reader in readers]
        await publish(client, range(200))
        for members_of in consumers.values():
            await until(lambda members_of=members_of: sum(len(c.got) for c in members_of) >= 200)  # type: ignore[misc]
        for members_of in consumers.values():
            for consumer in members_of:
                await consumer.stop()
            once_each([n for consumer in members_of for n in consumer.got], 200)


async def test_unsubscribe(client: Client, second: Client) -> None:
    """One leaves in the middle of the stream of messages."""
    await space(client)
    async with client.subscribe(SUB, start="earliest", max_batch=5) as one:
        staying = Consumer(one).start()
        async with second.subscribe(SUB, max_batch=5) as other:
            await until(lambda: len(one.streams) == len(other.streams) == 2)
            publishing = asyncio.create_task(publish(client, range(600)))
            left = await take(other, 50)
        await publishing
        await until(lambda: len(staying.got) + len(left) >= 600)
        await staying.stop()
    once_each(staying.got + left, 600)


async def test_quick_resubscribe(client: Client, second: Client) -> None:
    """Ten times unsubscribe and subscribe again, at once."""
    await space(client)
    got: list[int] = []
    async with client.subscribe(SUB, start="earliest", max_batch=5) as one:
        staying = Consumer(one).start()
        publishing = asyncio.create_task(publish(client, range(500)))
        for _ in range(10):
            async with second.subscribe(SUB, max_batch=5) as quick:
                got += await at_most_one_batch(quick)
        await publishing
        await until(lambda: len(staying.got) + len(got) >= 500)
        await staying.stop()
    once_each(staying.got + got, 500)


async def at_most_one_batch(reader: SharedReader) -> list[int]:
    """What comes within a moment, committed."""
    try:
        async with asyncio.timeout(0.2):
            batch = await anext(reader)
    except TimeoutError:
        return []
    await batch.commit()
    return [int(message.payload) for message in batch.messages]


@pytest.mark.parametrize("acknowledged", [0, 3], ids=["replay1", "replay2"])
async def test_disconnect_no_double_replay(client: Client, second: Client, acknowledged: int) -> None:
    """One leaves in the middle of a batch of which it committed a part: only the rest comes again."""
    await space(client, streams=1)
    await publish(client, range(10), topics=1)
    async with client.subscribe(SUB, start="earliest") as one:
        batch = await anext(one)
        await batch.commit(batch.messages[acknowledged].offset)
        done = [int(message.payload) for message in batch.messages[:acknowledged]]
    async with second.subscribe(SUB) as other:
        rest = await take(other, 10 - acknowledged)
    once_each(done + rest, 10)
    assert rest == list(range(acknowledged, 10))
