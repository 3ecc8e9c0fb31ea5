"""The cases that EMQX tests of its durable shared subscriptions, each under its name there.

Every one asserts that nothing is lost *and* that nothing comes twice, also the two in which that
implementation has the second assertion commented out. Each client here stands for a node: it has its own
agent, and the leader is embedded in the one that came first.

The peer runs each case with a queue that was declared before (explicit) and one that its first subscriber
declares (implicit). So do we: ``$queue`` on the embedded server, ``$shared`` on Redis 7. Where each case is
tested, `tests.agent.test_peer_table` says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from streamlease.agent.client import Client, connect
from streamlease.agent.subscription import SharedReader
from streamlease.protocol.acts import parse
from streamlease.protocol.errors import UnknownGroup
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import leadership
from tests.agent.helpers import Consumer, publish, take, until


@pytest.fixture
def sub(request: pytest.FixtureRequest) -> str:
    """The subscription of the test: explicit on one server, implicit on the other."""
    kind = request.node.callspec.params["real_redis_url"]
    return "$queue/g/a/#" if kind == "embedded" else "$shared/g/a/#"


async def space(client: Client, sub: str, streams: int = 4) -> None:
    """A space, and the queue if it is to be declared."""
    await client.create_space("s", ["a/#"], streams=streams)
    if sub.startswith("$queue"):
        await client.groups.declare(SharedSubscription.parse(sub), "earliest")


def once_each(numbers: list[int], count: int) -> None:
    counts = Counter(numbers)
    assert sorted(counts) == list(range(count)), "lost"
    assert max(counts.values()) == 1, "came twice"


async def test_lease_initial(client: Client, sub: str) -> None:
    await space(client, sub)
    async with client.subscribe(sub, start="earliest") as reader:
        await publish(client, range(10))
        first = await take(reader, 10)
        await publish(client, range(10, 20))
        once_each(first + await take(reader, 10), 20)


async def test_declare_triggers_persistence(client: Client) -> None:
    """What is published between declaration and first subscriber is delivered; other topics are not."""
    await client.create_space("s", ["a/#"], streams=4)
    await client.create_space("other", ["b/#"])
    queue = "$queue/g/a/#"
    await client.groups.declare(SharedSubscription.parse(queue), "latest")
    await publish(client, range(20))
    await publish(client, range(20), root="b")
    async with client.subscribe(queue) as reader:
        got = await take(reader, 20)
    once_each(got, 20)


@pytest.mark.slow
async def test_two_clients(client: Client, second: Client, sub: str) -> None:
    await space(client, sub)
    async with client.subscribe(sub, start="earliest") as one, second.subscribe(sub) as other:
        consumers = [Consumer(one).start(), Consumer(other).start()]
        await until(lambda: len(one.streams) == len(other.streams) == 2)
        await publish(client, range(4), topics=2)
        await until(lambda: sum(len(c.got) for c in consumers) >= 4)
        for consumer in consumers:
            await consumer.stop()
    once_each([n for consumer in consumers for n in consumer.got], 4)


async def test_stream_revoke(client: Client, second: Client, sub: str) -> None:
    """A second one joins and takes streams over; later messages arrive at both, each once."""
    await space(client, sub)
    async with client.subscribe(sub, start="earliest") as one:
        first = Consumer(one).start()
        await publish(client, range(50))
        await until(lambda: len(first.got) >= 50)
        async with second.subscribe(sub) as other:
            late = Consumer(other).start()
            await until(lambda: len(one.streams) == len(other.streams) == 2)
            await publish(client, range(50, 100))
            await until(lambda: len(first.got) + len(late.got) >= 100)
            await late.stop()
        await first.stop()
    assert late.got
    once_each(first.got + late.got, 100)


@pytest.mark.slow
async def test_graceful_disconnect(client: Client, second: Client, sub: str) -> None:
    await space(client, sub)
    async with client.subscribe(sub, start="earliest") as one:
        async with second.subscribe(sub) as other:
            await until(lambda: len(one.streams) == len(other.streams) == 2)
        await until(lambda: len(one.streams) == 4)  # far within the session timeout, or the test ends
        await publish(client, range(20))
        once_each(await take(one, 20), 20)


async def test_leader_state_preserved(client: Client, second: Client, sub: str) -> None:
    """All leave and the leader with them; who comes next gets what was published meanwhile, and only that."""
    await space(client, sub)
    await publish(client, range(20))
    async with client.subscribe(sub, start="earliest") as reader:
        got = await take(reader, 20)
    await client.close()
    await publish(second, range(20, 40))
    async with second.subscribe(sub) as reader:
        once_each(got + await take(reader, 20), 40)


@pytest.mark.slow
async def test_multiple_groups(embedded_redis_url: str) -> None:
    """50 queues, 1000 publishes unevenly: every queue gets what is its own, once.

    The peer has 20 subscribers of each queue. Here the busiest queue has 20, of which 16 wait, and the others
    have two: with 1000 subscribers and 50 leaders in one process and one event loop, the test took 32 s, of
    which nearly all was connecting those that never get a stream.
    """
    queues, count = 50, 1000
    owner = [int(queues * (number / count) ** 2) for number in range(count)]  # the first ones get most
    expected = {queue: [n for n in range(count) if owner[n] == queue] for queue in range(queues)}
    async with connect(embedded_redis_url) as client, AsyncExitStack() as stack:
        await client.create_space("s", ["a/#"], streams=4)
        consumers: dict[int, list[Consumer]] = {}
        for queue in range(queues):
            name = f"$queue/g{queue}/a/{queue}/#"
            await client.groups.declare(SharedSubscription.parse(name), "earliest")
            subs = [client.subscribe(name) for _ in range(2 if queue else 20)]
            readers = [await stack.enter_async_context(one) for one in subs]
            consumers[queue] = [Consumer(reader).start() for reader in readers]
        async with client.publisher() as publisher:
            for number in range(count):
                await publisher.submit(f"a/{owner[number]}/{number % 7}", str(number))
        for queue, wanted in expected.items():
            await until(lambda q=queue, w=wanted: len(got_by(consumers[q])) >= len(w))  # type: ignore[misc]
        for of_queue in consumers.values():
            for consumer in of_queue:
                await consumer.stop()
        for queue, wanted in expected.items():
            assert sorted(got_by(consumers[queue])) == wanted
    assert len(expected[0]) > 5 * len(expected[queues - 1]) > 0, "unevenly"


def got_by(consumers: list[Consumer]) -> list[int]:
    return [number for consumer in consumers for number in consumer.got]


@pytest.mark.slow
async def test_unsubscribe(client: Client, second: Client, sub: str) -> None:
    """One leaves in the middle of the stream of messages."""
    await space(client, sub)
    async with client.subscribe(sub, start="earliest", max_batch=5) as one:
        staying = Consumer(one).start()
        async with second.subscribe(sub, max_batch=5) as other:
            await until(lambda: len(one.streams) == len(other.streams) == 2)
            publishing = asyncio.create_task(publish(client, range(600)))
            left = await take(other, 50)
        await publishing
        await until(lambda: len(staying.got) + len(left) >= 600)
        await staying.stop()
    once_each(staying.got + left, 600)


@pytest.mark.slow
async def test_quick_resubscribe(client: Client, second: Client, sub: str) -> None:
    """Ten times unsubscribe and subscribe again, at once."""
    await space(client, sub)
    got: list[int] = []
    async with client.subscribe(sub, start="earliest", max_batch=5) as one:
        staying = Consumer(one).start()
        publishing = asyncio.create_task(publish(client, range(500)))
        for _ in range(10):
            async with second.subscribe(sub, max_batch=5) as quick:
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
async def test_disconnect_no_double_replay(
    client: Client, second: Client, sub: str, acknowledged: int
) -> None:
    """One leaves in the middle of a batch of which it committed a part: only the rest comes again."""
    await space(client, sub, streams=1)
    await publish(client, range(10), topics=1)
    async with client.subscribe(sub, start="earliest") as one:
        batch = await anext(one)
        await batch.commit(batch.messages[acknowledged].offset)
        done = [int(message.payload) for message in batch.messages[:acknowledged]]
    async with second.subscribe(sub) as other:
        rest = await take(other, 10 - acknowledged)
    once_each(done + rest, 10)
    assert rest == list(range(acknowledged, 10))


async def test_intensive_reassign(client: Client, second: Client, sub: str) -> None:
    """Two join in the middle of 20,000 messages; none is lost and none comes twice."""
    await space(client, sub, streams=8)
    count = 20_000
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(client.subscribe(sub, start="earliest", max_batch=50))]
        consumers = [Consumer(readers[0]).start()]
        publishing = asyncio.create_task(publish(client, range(count), topics=64))
        await until(lambda: len(consumers[0].got) >= 100)
        for _ in range(2):
            readers.append(await stack.enter_async_context(second.subscribe(sub, max_batch=50)))
            consumers.append(Consumer(readers[-1]).start())
        await until(lambda: sorted(len(reader.streams) for reader in readers) == [2, 3, 3])
        await publishing
        await until(lambda: len(got_by(consumers)) >= count)
        for consumer in consumers:
            await consumer.stop()
    once_each(got_by(consumers), count)


@pytest.mark.slow
async def test_destroy_queue_live_clients(client: Client, second: Client, sub: str) -> None:
    """Deleted under two live clients: each gets one clear error, and nothing that is published later."""
    shared = SharedSubscription.parse(sub)
    await space(client, sub)
    async with client.subscribe(sub, start="earliest") as one, second.subscribe(sub) as other:
        consumers = [Consumer(one).start(), Consumer(other).start()]
        await until(lambda: len(one.streams) == len(other.streams) == 2)
        await publish(client, range(20))
        await until(lambda: len(got_by(consumers)) >= 20)
        await second.act(shared, parse("delete", force=True))
        await publish(client, range(20, 40))
        await until(lambda: all(consumer.error is not None for consumer in consumers))
        for consumer in consumers:
            assert isinstance(consumer.error, UnknownGroup)
            assert f"group {sub} was deleted" in str(consumer.error)
        once_each(got_by(consumers), 20)
        assert not one.streams
        assert not other.streams
    with pytest.raises(UnknownGroup):
        await client.groups.get(shared)
    assert await client.groups.list() == []
    assert [key async for key in client.redis.scan_iter("sl:{g:*")] == []


async def kill_leader(client: Client) -> None:
    """End the leader that is embedded in `client` as if its process had been killed: without a word."""
    agent = await client.agent()
    host = agent.leaders._host
    assert host is not None
    assert host.leaders == ["g/a/#"]
    for task in (*host._tasks, *host._leading.values()):
        task.cancel()
    host._runners.clear()
    agent.leaders._host = None


async def leading(*clients: Client) -> list[str]:
    """The hosts, of those embedded in `clients`, that lead the group."""
    hosts = [(await client.agent()).leaders._host for client in clients]
    return [host.id for host in hosts if host is not None and host.leaders]


@pytest.mark.slow
async def test_lease_reconnect(client: Client, sub: str) -> None:
    """No leader can be found or made; then there is one, and the client that kept looking finds it."""
    await space(client, sub)
    async with connect(client.url, embedded=False) as alone:
        await publish(client, range(10))
        async with alone.subscribe(sub, start="earliest") as reader:
            consumer = Consumer(reader).start()
            agent = await alone.agent()
            searches: list[str] = []
            find = agent.leaders.find
            agent.leaders.find = lambda group, found: (searches.append(group), find(group, found))[1]  # type: ignore[method-assign]
            await until(lambda: len(searches) >= 2)
            assert (reader.streams, consumer.got) == ([], [])
            # Another node, which can lead, looks for the leader as well, without consuming.
            (await client.agent()).leaders.find("g/a/#", lambda mailbox, term: None)
            await until(lambda: len(consumer.got) >= 10)
            await publish(client, range(10, 20))
            await until(lambda: len(consumer.got) >= 20)
            await consumer.stop()
    once_each(consumer.got, 20)


@pytest.mark.slow
async def test_renew_lease_timeout(client: Client, second: Client, sub: str) -> None:
    """The leader is killed: its borrowers hear nothing, look for another one, and go on under it."""
    await space(client, sub)
    async with client.subscribe(sub, start="earliest"), second.subscribe(sub) as reader:
        await until(lambda: len(reader.streams) == 2)
        before = await leadership.read(client.redis, "g/a/#")
        await kill_leader(client)
        session = reader._settling.session
        assert session is not None
        await until(lambda: session.connected and session.term > before.term)
        after = await leadership.read(client.redis, "g/a/#")
    assert after.term > before.term
    assert after.host != before.host


async def test_cluster_smoke(client: Client, second: Client, sub: str) -> None:
    """Three nodes: the leader is on the first, the borrowers on the two others; both consume."""
    await space(client, sub)
    await client.groups.declare(SharedSubscription.parse(sub), "earliest")
    async with connect(client.url) as third:
        (await client.agent()).leaders.find("g/a/#", lambda mailbox, term: None)
        while not await leading(client):  # noqa: ASYNC110 - the test's own timeout ends it
            await asyncio.sleep(0.01)
        async with second.subscribe(sub, start="earliest") as one, third.subscribe(sub) as other:
            consumers = [Consumer(one).start(), Consumer(other).start()]
            await until(lambda: len(one.streams) == len(other.streams) == 2)
            await publish(client, range(200), topics=64)
            await until(lambda: len(got_by(consumers)) >= 200)
            for consumer in consumers:
                await consumer.stop()
            assert await leading(second, third) == []
    assert all(consumer.got for consumer in consumers)
    once_each(got_by(consumers), 200)


@pytest.mark.slow
async def test_leader_election(client: Client, second: Client, sub: str) -> None:
    """The first subscriber's node leads; others do not; there is another leader only when that node dies."""
    await space(client, sub)
    async with connect(client.url) as third, AsyncExitStack() as stack:
        first = await stack.enter_async_context(client.subscribe(sub, start="earliest"))
        await until(lambda: len(first.streams) == 4)
        assert len(await leading(client)) == 1
        term = (await leadership.read(client.redis, "g/a/#")).term
        async with second.subscribe(sub) as passing:  # who comes and goes changes nothing of that
            await until(lambda: len(passing.streams) == 2)
        rest = [await stack.enter_async_context(one.subscribe(sub)) for one in (second, third)]
        await until(lambda: sorted(len(reader.streams) for reader in (first, *rest)) == [1, 1, 2])
        assert await leading(second, third) == []
        assert (await leadership.read(client.redis, "g/a/#")).term == term
        await kill_leader(client)
        sessions = [reader._settling.session for reader in (first, *rest)]
        await until(lambda: all(one is not None and one.connected and one.term > term for one in sessions))
        assert len(await leading(client, second, third)) == 1, "contention gives one leader"
        assert len({one.term for one in sessions if one is not None}) == 1


@pytest.mark.slow
async def test_two_that_want_a_leader_at_once_get_one(client: Client, second: Client, sub: str) -> None:
    """The contended half of the election."""
    await space(client, sub)
    async with AsyncExitStack() as stack:
        one, other = await asyncio.gather(
            stack.enter_async_context(client.subscribe(sub, start="earliest")),
            stack.enter_async_context(second.subscribe(sub, start="earliest")),
        )
        await until(lambda: len(one.streams) == len(other.streams) == 2)
        assert len(await leading(client, second)) == 1


async def test_large_consumer_buffer(client: Client, sub: str) -> None:
    """Who joins a big backlog and is slow fetches no more ahead than it was told to, and gets all of it."""
    await space(client, sub)
    count, entry, largest, ahead = 5000, 100, 50, 4
    for first in range(0, count, entry):
        await publish(client, range(first, first + entry))
    got: list[int] = []
    waiting: list[int] = []
    async with client.subscribe(sub, start="earliest", max_batch=largest, buffered_batches=ahead) as reader:
        while len(got) < count:
            async with asyncio.timeout(60):
                batch = await anext(reader)
            waiting.append(reader._fetching.waiting.messages)
            assert len(batch.messages) <= largest
            await batch.commit()
            got += [int(message.payload) for message in batch.messages]
    # A fetch takes whole entries, and what was published together is an entry of each stream at most.
    assert max(waiting) <= ahead * largest + entry
    once_each(got, count)
