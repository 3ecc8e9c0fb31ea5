"""``client.subscribe`` from end to end, on real servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import AsyncExitStack

import pytest

from streamlease.admin.facts.group import describe
from streamlease.agent import blocking
from streamlease.agent.client import Client, connect
from streamlease.agent.subscription import Batch, SharedReader
from streamlease.protocol.errors import Fenced, InvalidOption, InvalidTopic, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from tests.agent.helpers import SUB, Consumer, in_order, publish, take, until
from tests.awake import within
from tests.conftest import MakeServer


async def lag(client: Client, subscription: str = SUB) -> int | None:
    return (await describe(client, SharedSubscription.parse(subscription))).lag


async def moves(client: Client) -> int:
    return (await describe(client, SharedSubscription.parse(SUB))).moves


async def test_a_group_that_is_deleted_before_its_subscriber_connects_is_declared_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    await publish(client, range(20))
    shared = SharedSubscription.parse(SUB)
    arrive = client.groups.arrive

    async def arrive_and_delete(subscription: SharedSubscription) -> int:
        number = await arrive(subscription)
        await client.groups.forget(subscription)
        return number

    monkeypatch.setattr(client.groups, "arrive", arrive_and_delete)
    async with client.subscribe(SUB, start="earliest") as reader:
        assert sorted(await take(reader, 20)) == list(range(20))
    assert (await client.groups.get(shared)).start == "earliest"
    assert await arrive(shared) == 2


async def test_a_group_whose_space_is_gone_is_still_wanted(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    async with client.subscribe(SUB, start="earliest") as reader:
        await until(lambda: reader.streams != [])
        await client.spaces.delete("s")
        ((wanted, declare),) = (await client.agent()).leaders._wishes[SharedSubscription.parse(SUB).id]
        assert wanted()
        await declare()
    assert not wanted()


async def test_wishes_of_subscriptions_that_ended_are_forgotten(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    for _ in range(3):
        async with client.subscribe(SUB) as reader:
            await until(lambda reader=reader: reader.streams != [])  # type: ignore[misc]
    assert (await client.agent()).leaders._wishes == {}


LATE_IMPORTS = """
import asyncio, sys, threading
from streamlease.agent.client import connect

class Importers:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            print("in the main thread:", threading.current_thread() is threading.main_thread())

async def main():
    async with connect(sys.argv[1]) as client:
        async with client.subscribe("$shared/g/a/#", start="earliest") as reader:
            left = 29
            while left:
                batch = await anext(reader)
                left -= len(batch.to_arrow())
                assert all(message.topic and message.headers is not None for message in batch.messages)
                await batch.commit()
            async with client.publisher() as publisher:
                await publisher.send("a/0", b"alone")
                print("publishing")
                await publisher.submit_many("a/0", [b"1", b"2"])
                await publisher.flush()

sys.meta_path.insert(0, Importers())
asyncio.run(main())
"""


@pytest.mark.slow
async def test_pandas_is_not_imported_by_a_loop_that_has_leases(embedded_redis_url: str) -> None:
    """pyarrow does, with its first array of Python values; on a busy machine longer than a session lasts."""
    async with connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        await publish(client, range(20))
        async with client.publisher() as publisher:
            for headers in ({}, {"name": "value"}, {"name": b"value"}):
                await publisher.send("a/0", b"alone", headers=headers)
            for other in "bcd":  # neighbours that are read together, with topics of their own
                await publisher.send_many(["a/0", f"a/0/{other}"], [b"1", b"2"])
        run = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", LATE_IMPORTS, embedded_redis_url],
            capture_output=True,
            text=True,
            timeout=90,
        )
    expected = ["publishing", "in the main thread: False"]
    assert (run.returncode, run.stdout.splitlines()) == (0, expected), run.stderr


# -- one consumer --------------------------------------------------------------------------------------------


async def test_messages_come_in_order_and_a_restart_goes_on_behind_the_last_commit(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    await publish(client, range(2000))
    async with client.subscribe(SUB, start="earliest", max_batch=50) as reader:
        first = await take(reader, 900)
        lost = await take(reader, 100, commit=False)
    async with client.subscribe(SUB, start="earliest", max_batch=50) as reader:
        second = await take(reader, 2000 - len(first))
    assert in_order(first)
    assert in_order(second)
    assert sorted(first + second) == list(range(2000))
    assert set(lost) <= set(second)
    assert await lag(client) == 0


async def test_a_commit_may_end_inside_a_batch(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(10), topics=1)
    async with client.subscribe(SUB, start="earliest") as reader:
        batch = await anext(reader)
        with pytest.raises(InvalidOption, match="offsets 0 to"):
            await batch.commit(batch.end + 1)
        await batch.commit(batch.messages[3].offset)
    async with client.subscribe(SUB) as reader:
        assert await take(reader, 7) == list(range(3, 10))


async def test_latest_begins_at_the_declaration_and_earliest_at_the_oldest(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    await publish(client, range(10))
    async with client.subscribe(SUB) as late, client.subscribe("$shared/h/a/#", start="earliest") as early:
        await publish(client, range(10, 20))
        assert sorted(await take(late, 10)) == list(range(10, 20))
        assert sorted(await take(early, 20)) == list(range(20))


async def test_what_the_filter_skips_is_no_lag(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    subscription = "$shared/g/a/+/yes"
    async with client.subscribe(subscription, start="earliest") as reader, client.publisher() as publisher:
        for number in range(300):
            await publisher.submit(f"a/x/{'yes' if number % 3 == 0 else 'no'}", str(number))
        for number in range(300, 400):
            await publisher.submit("a/x/no", str(number))
        await publisher.flush()
        assert await take(reader, 100) == list(range(0, 300, 3))
        async with within(10):
            while await lag(client, subscription):  # noqa: ASYNC110 (a condition in Redis)
                await asyncio.sleep(0.05)


async def test_headers_keys_and_arrow_come_through(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    async with client.publisher() as publisher:
        await publisher.send("a/b", b"\xff", key="k", headers={"h": b"1"}, timestamp=1_700_000_000_000_000)
    async with client.subscribe(SUB, start="earliest") as reader:
        batch = await anext(reader)
        (message,) = batch.messages
        assert (message.topic, message.payload, message.key) == ("a/b", b"\xff", b"k")
        assert message.headers == (("h", b"1"),)
        assert message.timestamp.timestamp() == 1_700_000_000
        assert batch.to_arrow().num_rows == len(batch) == 1
        await batch.commit()


async def test_bad_subscriptions_are_refused_at_once(client: Client) -> None:
    for text in ("a/#", "$shared//x", "$shared/g", "$shared/g/a/#/b"):
        with pytest.raises(InvalidTopic):
            client.subscribe(text)
    with pytest.raises(InvalidOption, match="session_timeout"):
        client.subscribe(SUB, session_timeout=0.5)
    with pytest.raises(InvalidOption, match=r"session_timeout is 'long': give 0\.1 to 86400 seconds"):
        client.subscribe(SUB, session_timeout="long")  # type: ignore[arg-type]
    for bad in (0, "x", 1.5, True):
        with pytest.raises(
            InvalidOption, match=f"^max_batch '{bad}' is out of range: give a whole number from 1 up"
        ):
            client.subscribe(SUB, max_batch=bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match=f"^buffered_batches '{bad}' is out of range: give a whole"):
            client.subscribe(SUB, buffered_batches=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="auto_commit is 'no': give True or False"):
        client.subscribe(SUB, auto_commit="no")  # type: ignore[arg-type]


async def test_an_unknown_space_is_said_when_entered_and_nothing_is_written(client: Client) -> None:
    before = await client.redis.dbsize()
    with pytest.raises(UnknownSpace, match="streamlease space create"):
        async with client.subscribe("$shared/g/nowhere/#"):
            pass
    assert await client.redis.dbsize() == before


# -- several consumers ---------------------------------------------------------------------------------------


async def test_two_subscribers_share_and_hand_over_without_loss_or_repetition(
    client: Client, second: Client
) -> None:
    await client.create_space("s", ["a/#"], streams=8)
    async with AsyncExitStack() as stack:
        one = Consumer(await stack.enter_async_context(client.subscribe(SUB, start="earliest"))).start()
        await until(lambda: len(one.reader.streams) == 8)
        await publish(client, range(1000))
        async with second.subscribe(SUB) as reader:
            other = Consumer(reader).start()
            publishing = asyncio.create_task(publish(client, range(1000, 4000)))
            await until(lambda: len(one.reader.streams) == len(reader.streams) == 4)
            await publishing
            await until(lambda: len(one.got) + len(other.got) >= 4000)
            await publish(client, range(4000, 5000))
            await until(lambda: len(one.got) + len(other.got) >= 5000)
        await publish(client, range(5000, 6000))
        await until(lambda: len(one.got) + len(other.got) >= 6000)
        await until(lambda: len(one.reader.streams) == 8)
        await one.stop()
    assert sorted(one.got + other.got) == list(range(6000))
    assert in_order(one.got)
    assert in_order(other.got)
    assert other.got
    assert await lag(client) == 0
    assert await moves(client) == 8


@pytest.mark.slow
async def test_a_hand_over_waits_for_what_was_delivered(client: Client, second: Client) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    async with client.subscribe(SUB, start="earliest") as one:
        await until(lambda: len(one.streams) == 2)
        await publish(client, range(2), topics=2)
        batches = [await anext(one)]
        while sum(map(len, batches)) < 2:
            batches.append(await anext(one))
        async with second.subscribe(SUB) as other:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await anext(other)
            for batch in batches:
                await batch.commit()
            await until(lambda: len(other.streams) == 1)
            await publish(client, range(2, 4), topics=2)
            got = await asyncio.gather(take(one, 1), take(other, 1))
            assert sorted(got[0] + got[1]) == [2, 3]


async def test_a_static_name_takes_over_at_once_and_the_old_one_is_fenced(
    client: Client, second: Client
) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    await publish(client, range(100))
    async with client.subscribe(SUB, start="earliest", name="worker-1", max_batch=10) as old:
        first = await take(old, 20)
        stale = await anext(old)
        async with second.subscribe(SUB, name="worker-1") as new:
            await until(lambda: len(new.streams) == 4, seconds=3)
            second_half = await take(new, 100 - len(first))
            with pytest.raises(Fenced):
                await stale.commit()
            with pytest.raises(Fenced, match="worker-1"):
                async for _ in old:
                    pass
            assert sorted(first + second_half) == list(range(100))
            assert await lag(second) == 0


@pytest.mark.slow
async def test_many_subscribers_each_get_a_share(real_redis_url: str) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(real_redis_url)) for _ in range(4)]
        await clients[0].create_space("s", ["a/#"], streams=10)
        readers: list[SharedReader] = [
            await stack.enter_async_context(client.subscribe(SUB, start="earliest")) for client in clients
        ]
        await until(lambda: sorted(len(reader.streams) for reader in readers) == [2, 2, 3, 3])
        consumers = [Consumer(reader).start() for reader in readers]
        await publish(clients[0], range(500), topics=100)
        await until(lambda: sum(len(consumer.got) for consumer in consumers) >= 500)
        for consumer in consumers:
            await consumer.stop()
        assert sorted(n for consumer in consumers for n in consumer.got) == list(range(500))


# -- faults --------------------------------------------------------------------------------------------------


async def test_after_an_abrupt_end_of_the_leader_another_one_goes_on(client: Client, second: Client) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    async with client.subscribe(SUB, start="earliest") as leading:
        await until(lambda: len(leading.streams) == 4)
        async with second.subscribe(SUB) as reader:
            await until(lambda: len(reader.streams) == 2)
            one, other = Consumer(leading).start(), Consumer(reader).start()
            agent = await client.agent()
            host = agent.leaders._host
            assert host is not None
            assert host.leaders == ["g/a/#"]
            # As if the process that led had been killed: no resignation, no further word of the host.
            for task in (*host._tasks, *host._leading.values()):
                task.cancel()
            host._runners.clear()
            agent.leaders._host = None
            await publish(client, range(1000))
            await until(lambda: len(one.got) + len(other.got) >= 1000, seconds=15)
            await one.stop()
            await other.stop()
            assert sorted(one.got + other.got) == list(range(1000))
    assert await lag(client) == 0


@pytest.mark.slow
async def test_a_commit_after_too_long_a_pause_is_refused_soon(client: Client, real_redis_url: str) -> None:
    """Also if the stream does not come back: its new owner holds on to it, because it delivered messages."""
    await client.create_space("s", ["a/#"], streams=4)

    def hold_on_to_all() -> None:
        """Another consumer, which commits nothing, in a thread: it lives on while this loop stands still."""
        with blocking.connect(real_redis_url) as other, other.subscribe(SUB, start="earliest") as reader:
            joined.set()
            while not done.is_set():
                batch = reader.poll(0.05)
                if batch is not None:
                    others.add(batch.stream)
                if stale and stale[0].stream in others:
                    taken.set()

    stale: list[Batch] = []
    others: set[StreamId] = set()
    joined, taken, done = threading.Event(), threading.Event(), threading.Event()
    other = asyncio.create_task(asyncio.to_thread(hold_on_to_all))
    try:
        await until(joined.is_set)
        async with client.subscribe(SUB, start="earliest", session_timeout=2.5) as reader:
            await until(lambda: len(reader.streams) == 2)
            await publish(client, range(40), topics=40)
            stale.append(await anext(reader))
            assert taken.wait(40)  # stands still, as if the process had been stopped
            async with asyncio.timeout(25):
                with pytest.raises(Fenced, match="taken away"):
                    await stale[0].commit()
            assert str(stale[0].stream) not in reader.streams
    finally:
        done.set()
        await other


@pytest.mark.parametrize("downtime", ["restart", "pause"])
@pytest.mark.slow
async def test_a_redis_that_comes_back_with_its_data_is_gone_on_with(
    make_redis_server: MakeServer, downtime: str
) -> None:
    server = make_redis_server(persistent=True)
    async with connect(server.url) as client:
        await client.create_space("s", ["a/#"], streams=4)
        await publish(client, range(500))
        async with client.subscribe(SUB, start="earliest", max_batch=20) as reader:
            consumer = Consumer(reader).start()
            await until(lambda: len(consumer.got) >= 100)
            if downtime == "restart":
                server.restart()
            else:
                server.pause()
                await asyncio.sleep(1.0)  # the downtime itself
                server.resume()
            await publish(client, range(500, 1000))
            await until(lambda: set(consumer.got) == set(range(1000)), seconds=30)
            await consumer.stop()
            assert consumer.error is None
            assert sorted(consumer.got) == list(range(1000))
        assert await lag(client) == 0


@pytest.mark.slow
async def test_closing_while_redis_is_away_ends(make_redis_server: MakeServer) -> None:
    """It would fail at its two timeouts."""
    server = make_redis_server()
    async with connect(server.url) as client:
        await client.create_space("s", ["a/#"], streams=2)
        async with client.subscribe(SUB, start="earliest") as reader:
            await until(lambda: len(reader.streams) == 2)
            server.kill()
            async with within(15):
                await reader.close()
        async with asyncio.timeout(30):
            await client.close()
