"""Groups that read whole epochs, on every kind of server: parts, hand-overs inside an epoch, the frontier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamlease.agent import blocking, fetching
from streamlease.agent.client import Client, connect
from streamlease.agent.epochs import epoch_parts, parts_ahead
from streamlease.agent.epochs.epoch_items import Frontier
from streamlease.agent.epochs.group_reader import EpochGroupReader, EpochPart
from streamlease.protocol.acts import ResetProgress
from streamlease.protocol.errors import GroupConflict, InvalidOption
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.commits import committed
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.keeping import Keeper
from streamlease.streams.log.keys import stream_log
from streamlease.streams.redis.connection import ask
from streamlease.testing.memory.memory_connection import connect as connect_in_memory
from tests.epochs.playing import SECONDS, Hand, hand, kept, replaced, replicated_server, settled

pytestmark = pytest.mark.usefixtures("kept_by_hand")

GROUP = "$shared/g/space/#"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with connect(redis_url) as client:
        await client.create_space("space", ["space/#"], streams=3, epochs=1)
        yield client


@pytest.fixture
async def second(client: Client) -> AsyncIterator[Client]:
    """Another client, as another process would have it."""
    async with connect(client.url) as other:
        yield other


def shown(item: EpochPart | Frontier) -> Any:
    """An item as a test writes it down."""
    if isinstance(item, Frontier):
        return "frontier", [*item.lower]
    assert item.epoch is not None
    return item.epoch[0], item.stream.shard, [one.payload.decode() for one in item.messages]


async def until_frontier(reader: EpochGroupReader, lower: int, *, commit: bool = True) -> list[Any]:
    """What is handed out until the frontier is there, in the order of epochs and streams; all is whole."""
    found: list[Any] = []
    async with asyncio.timeout(SECONDS):
        async for item in reader:
            if isinstance(item, EpochPart):
                assert item.whole
                found.append(shown(item))
                if commit:
                    await item.commit()
            elif item.lower == ((lower,),):
                break
    return sorted(found)


async def played(client: Client, epochs: int = 3) -> tuple[Hand, Keeper]:
    """Some epochs, each with two messages in two streams, each a boundary."""
    made, keeper = await hand(client.redis), await kept(client)
    for epoch in range(epochs):
        await made.send(epoch, f"{epoch}a", f"{epoch}b", shard=0)
        await made.send(epoch, f"{epoch}c", f"{epoch}d", shard=1)
        await made.advance(epoch + 1)
        await settled(keeper)
    return made, keeper


def parts(*epochs: int) -> list[Any]:
    """What `played` comes to."""
    return [
        (epoch, shard, [f"{epoch}{one}" for one in letters])
        for epoch in epochs
        for shard, letters in ((0, "ab"), (1, "cd"))
    ]


async def next_part(reader: EpochGroupReader) -> EpochPart:
    """The next part, whatever is told before it."""
    async with asyncio.timeout(SECONDS):
        async for item in reader:
            if isinstance(item, EpochPart):
                return item
    raise AssertionError("the iteration ended")


async def holding(reader: EpochGroupReader, *counts: int) -> None:
    """Wait until it holds one of so many streams."""
    async with asyncio.timeout(SECONDS):
        while len(reader.streams) not in counts:  # noqa: ASYNC110 (granted by another task)
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_one_consumer_gets_all_parts_and_the_frontier(client: Client) -> None:
    made, keeper = await played(client)
    await made.send(3, "open")
    async with client.subscribe(GROUP, start="earliest", epochs="atomic") as reader:
        assert await until_frontier(reader, 3) == parts(0, 1, 2)
        await made.send(3, "more", shard=2)
        await made.advance(4)
        await settled(keeper)
        assert await until_frontier(reader, 4) == [(3, 0, ["open"]), (3, 2, ["more"])]


@pytest.mark.parametrize("handed", [0, 1, 2, 3, 4])
@pytest.mark.slow
async def test_a_hand_over_inside_an_epoch_repeats_nothing_and_loses_nothing(
    client: Client, second: Client, handed: int
) -> None:
    """The first consumer has had so many parts, and the last of them in hand, when another one comes."""
    await played(client, 2)
    async with client.subscribe(GROUP, start="earliest", epochs="atomic") as one:
        await holding(one, 3)
        got: list[Any] = []
        in_hand: EpochPart | None = None
        for number in range(handed):
            in_hand = await next_part(one)
            got.append(shown(in_hand))
            if number < handed - 1:
                await in_hand.commit()
        async with second.subscribe(GROUP, epochs="atomic") as two:
            taking = asyncio.create_task(until_frontier(two, 2))
            if in_hand is not None:
                await in_hand.commit()
            await holding(two, 1)
            for found in await asyncio.gather(taking, until_frontier(one, 2)):
                got += found
    assert sorted(got) == parts(0, 1)


@pytest.mark.slow
async def test_what_was_not_committed_comes_to_the_next_one_whole(client: Client, second: Client) -> None:
    await played(client, 1)
    async with client.subscribe(GROUP, start="earliest", epochs="atomic") as one:
        first = await next_part(one)
        rest = await next_part(one)
        await first.commit()
    async with second.subscribe(GROUP, epochs="atomic") as two:
        assert await until_frontier(two, 1) == [shown(rest)]


@pytest.mark.slow
async def test_nothing_is_handed_out_before_its_boundary_is_recorded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, keeper = await played(client, 1)
    await made.send(1, "1a")
    await made.advance(2)
    recorded = keeper._record
    moved = asyncio.Event()
    go_on = asyncio.Event()

    async def later(*args: Any) -> Any:
        moved.set()
        await go_on.wait()
        return await recorded(*args)

    monkeypatch.setattr(keeper, "_record", later)
    turning = asyncio.create_task(keeper.turn())
    await moved.wait()
    async with (
        client.subscribe(GROUP, start="earliest", epochs="atomic") as whole,
        client.subscribe("$shared/other/space/#", start="earliest") as off,
    ):
        async with asyncio.timeout(SECONDS):
            seen = 0
            while seen < 5:
                seen += len(await anext(off))
        assert await until_frontier(whole, 1) == parts(0)
        go_on.set()
        await turning
        assert await until_frontier(whole, 2) == [(1, 0, ["1a"])]


@pytest.mark.slow
async def test_what_is_aborted_never_comes(client: Client) -> None:
    good, lost = await hand(client.redis, "good"), await hand(client.redis, "lost")
    keeper = await kept(client)
    for made in (good, lost):
        await made.send(0, f"{made.name}0")
        await made.advance(1)
        await made.send(1, f"{made.name}1")
    await settled(keeper)
    async with client.subscribe(GROUP, start="earliest", epochs="atomic") as reader:
        assert await until_frontier(reader, 1) == [(0, 0, ["good0", "lost0"])]
        await hand(client.redis, "lost")  # it comes back: what it had open is dropped
        await settled(keeper)
        again = await hand(client.redis, "lost")
        await again.advance(2)
        await good.advance(2)
        await settled(keeper)
        assert await until_frontier(reader, 2) == [(1, 0, ["good1"])]


@pytest.mark.slow
async def test_who_comes_late_leaves_out_what_was_active_for_good(client: Client, second: Client) -> None:
    """Active {3, 5}: 6 is the first, also for who comes to the group later."""
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    await a.advance(3)
    await b.advance(3)
    await settled(keeper)
    await a.send(3, "a3")
    await b.send(5, "b5", shard=2)
    async with client.subscribe(GROUP, epochs="atomic") as reader:
        assert await until_frontier(reader, 3) == []
    for epoch in (3, 4, 5, 6):
        await a.send(epoch, f"a{epoch}")
    await b.send(6, "b6", shard=2)
    await a.advance(7)
    await b.advance(7)
    await settled(keeper)
    async with second.subscribe(GROUP, start="earliest", epochs="atomic") as reader:
        assert await until_frontier(reader, 7) == [(6, 0, ["a6"]), (6, 2, ["b6"])]


@pytest.mark.slow
async def test_a_boundary_of_many_epochs_comes_epoch_by_epoch(client: Client) -> None:
    made, keeper = await hand(client.redis), await kept(client)
    for epoch in range(5):
        await made.send(epoch, f"{epoch}", shard=0)
        await made.send(epoch, f"{epoch}", shard=epoch % 2)
    await made.advance(5)
    await settled(keeper)
    async with client.subscribe(GROUP, start="earliest", epochs="atomic") as reader:
        got: list[Any] = []
        for _ in range(3):
            part = await next_part(reader)
            got.append(shown(part))
            await part.commit()
        assert await reader.flush() is None
    async with client.subscribe(GROUP, epochs="atomic") as reader:
        got += await until_frontier(reader, 5)
    assert sorted(got) == [
        (0, 0, ["0", "0"]), (1, 0, ["1"]), (1, 1, ["1"]), (2, 0, ["2", "2"]), (3, 0, ["3"]), (3, 1, ["3"]),
        (4, 0, ["4", "4"]),
    ]  # fmt: skip


@pytest.mark.slow
async def test_a_part_of_many_reads_is_handed_out_whole(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlease.agent.fetching.CHUNK_BYTES", 1)
    monkeypatch.setattr("streamlease.agent.dividing.FIRST_ENTRIES", 1)
    monkeypatch.setattr(epoch_parts, "MOST_BYTES", 0)
    made, keeper = await hand(client.redis), await kept(client)
    expected = []
    for epoch in range(2):
        for shard in range(3):
            texts = [f"{epoch} {shard} {number}" for number in range(30)]
            await made.send(epoch, *texts, shard=shard)
            expected.append((epoch, shard, texts))
    await made.advance(2)
    await settled(keeper)
    async with client.subscribe(GROUP, start="earliest", epochs="atomic") as reader:
        assert await until_frontier(reader, 2) == expected


@pytest.mark.slow
async def test_who_is_far_behind_reads_boundaries_page_by_page(
    client: Client, second: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_ahead, "MOST_PARTS", 4)
    monkeypatch.setattr("streamlease.agent.epochs.boundary_following.AT_ONCE", 3)
    await played(client, 15)
    async with client.subscribe(GROUP, start="earliest", epochs="atomic") as one:
        got = [shown(part := await next_part(one))]
        await part.commit()
        async with second.subscribe(GROUP, epochs="atomic") as two:
            for found in await asyncio.gather(until_frontier(one, 15), until_frontier(two, 15)):
                got += found
    assert sorted(got) == parts(*range(15))


@pytest.mark.slow
async def test_of_an_epoch_only_what_the_filter_matches_comes(client: Client) -> None:
    made, keeper = await hand(client.redis), await kept(client)
    await made.send(0, "other", topic="space/other", shard=0)
    await made.send(0, "mine", shard=0)
    await made.send(0, "other", topic="space/other", shard=1)
    await made.advance(1)
    await settled(keeper)
    async with client.subscribe("$shared/g/space/t", start="earliest", epochs="atomic") as reader:
        assert await until_frontier(reader, 1) == [(0, 0, ["mine"])]
    described = await committed(client.redis, "g/space/t", ["space.0.0", "space.0.1"])
    assert described == {"space.0.0": 2, "space.0.1": 1}, "what is for nobody is passed over"


@pytest.mark.slow
async def test_a_message_that_fails_divides_its_part(client: Client) -> None:
    made, keeper = await hand(client.redis), await kept(client)
    await made.send(0, "a", "bad", "c")
    await made.advance(1)
    await settled(keeper)
    options = GroupOptions(max_failures=2, retry_delay_ms=0)
    async with client.subscribe(GROUP, start="earliest", epochs="atomic", options=options) as reader:
        first = await next_part(reader)
        assert (first.whole, shown(first)) == (True, (0, 0, ["a", "bad", "c"]))
        assert await first.fail(1, "bad") == "retry"
        again = await next_part(reader)
        assert (again.whole, shown(again)) == (False, (0, 0, ["bad", "c"]))
        assert await again.fail(1, "bad") == "passed"
        rest = await next_part(reader)
        assert (rest.whole, shown(rest)) == (False, (0, 0, ["c"]))
        await rest.commit()
        await made.advance(2)
        await settled(keeper)
        assert await until_frontier(reader, 2) == []


@pytest.mark.slow
async def test_a_group_that_is_put_into_an_epoch_gets_the_rest_of_it(client: Client) -> None:
    await played(client, 2)
    shared = SharedSubscription.parse(GROUP)
    async with client.subscribe(GROUP, start="earliest", epochs="atomic") as reader:
        assert await until_frontier(reader, 2) == parts(0, 1)
        await client.act(shared, ResetProgress(offsets={"space.0.0": 1}))
        rest = await next_part(reader)
        assert (rest.whole, shown(rest)) == (False, (0, 0, ["0b"]))
        await rest.commit()
        assert await until_frontier(reader, 2) == [parts(1)[0]]


@pytest.mark.slow
async def test_messages_that_redis_lost_are_missing_and_it_is_said(client: Client) -> None:
    await played(client, 2)
    await ask(client.redis, [("XDEL", stream_log(StreamId("space", 0, 0)), "1-1")])
    found = []
    async with client.subscribe(GROUP, start="earliest", epochs="atomic") as reader:
        for _ in range(4):
            part = await next_part(reader)
            found.append((part.whole, shown(part)))
            await part.commit()
    assert sorted(found) == [
        (False, (0, 0, ["0a"])),
        *[(True, one) for one in [*parts(0)[1:], *parts(1)]],
    ]


@pytest.mark.slow
async def test_lost_boundaries_are_begun_anew(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    made, keeper = await played(client, 3)
    async with client.subscribe(GROUP, start="earliest", epochs="atomic") as reader:
        assert await until_frontier(reader, 3) == parts(0, 1, 2)
        await ask(client.redis, [("HSET", keys.state("space"), "boundary", "2")])
        await ask(client.redis, [("PUBLISH", keys.news("space"), "boundary 2")])
        async with asyncio.timeout(SECONDS):
            while "is not there as it was read" not in caplog.text:  # noqa: ASYNC110 (told by another task)
                await asyncio.sleep(0.01)
        await ask(client.redis, [("HSET", keys.state("space"), "boundary", "3")])
        await made.send(3, "3a")
        await made.advance(4)
        await settled(keeper)
        assert await until_frontier(reader, 4) == [(3, 0, ["3a"])]


async def test_what_came_in_the_place_of_a_lost_boundary_is_not_taken_for_its_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failover comes between a boundary and the reading of what it moved."""
    server = replicated_server()
    async with connect_in_memory(server) as client:
        await client.create_space("space", ["space/#"], streams=1, epochs=1)
        one, keeper = await hand(client.redis, "one"), await kept(client)
        await one.send(1, "before")
        await one.advance(2)
        await settled(keeper)
        async with client.subscribe(GROUP, start="earliest", epochs="atomic") as reader:
            part = await next_part(reader)
            assert [message.payload for message in part.messages] == [b"before"]
            await part.commit()
            await ask(client.redis, [("WAIT", 1, 100)])
            read = fetching.read_each
            is_replaced = asyncio.Event()

            async def late(*of: Any, **more: Any) -> Any:
                if not is_replaced.is_set():
                    is_replaced.set()
                    await replaced(server, client, 2)
                async for found in read(*of, **more):
                    yield found

            monkeypatch.setattr(fetching, "read_each", late)
            await one.send(2, "lost")
            await one.advance(3)
            await settled(keeper)
            part = await next_part(reader)
            assert is_replaced.is_set()
            assert part.epoch == (2,) and part.whole
            assert [message.payload for message in part.messages] == [b"came", b"instead"]


@pytest.mark.slow
async def test_tuples_wait_for_no_other_than_themselves(redis_url: str) -> None:
    async with connect(redis_url) as client:
        await client.create_space("space", ["space/#"], streams=2, epochs=2)
        made, keeper = await hand(client.redis), await kept(client)
        await made.send((0, 1), "01")
        await made.send((1, 0), "10", shard=1)
        await made.send((0, 0), "00")
        await made.advance((0, 1), (2, 0))
        await settled(keeper)
        async with client.subscribe(GROUP, start="earliest", epochs="atomic") as reader:
            found = [await next_part(reader), await next_part(reader)]
            assert sorted((one.epoch, one.messages[0].payload) for one in found if one.epoch) == [
                ((0, 0), b"00"),
                ((1, 0), b"10"),
            ]


@pytest.mark.slow
async def test_an_epoch_of_several_spaces_waits_for_all_of_them(client: Client) -> None:
    await client.create_space("more", ["more/#"], streams=1, epochs=1)
    await played(client, 2)
    others, other = await hand(client.redis, "b", "more"), await kept(client, "more")
    await others.send(0, "more0")
    await others.advance(1)
    await settled(other)
    async with client.subscribe("$shared/g/#", start="earliest", epochs="atomic") as reader:
        assert await until_frontier(reader, 1) == sorted([*parts(0), (0, 0, ["more0"])])
        await others.advance(2)
        await settled(other)
        assert await until_frontier(reader, 2) == parts(1)
        await client.create_space("third", ["third/#"], streams=1)
        with pytest.raises(InvalidOption, match=r"stream third\.0\.0 came to the group, and its space"):
            await until_frontier(reader, 9)


async def test_what_cannot_be_read_by_epochs_is_refused_in_one_line(client: Client) -> None:
    await client.create_space("plain", ["plain/#"], streams=1)
    await client.create_space("pairs", ["pairs/#"], streams=1, epochs=2)
    for subscription, what in (
        ("$shared/g/plain/#", "space plain, which has no epochs"),
        ("$shared/g/+/x", "space plain, which has no epochs"),
    ):
        with pytest.raises(InvalidOption, match=what) as refused:
            await client.subscribe(subscription, epochs="atomic").__aenter__()
        assert "\n" not in str(refused.value)
    with pytest.raises(InvalidOption, match="nothing can be committed"):
        client.subscribe(GROUP, epochs="eager")  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="'exact': use 'atomic' or 'off'"):
        client.subscribe(GROUP, epochs="exact")  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="max_batch is 5, and with epochs 'atomic'"):
        client.subscribe(GROUP, epochs="atomic", max_batch=5)  # type: ignore[call-overload]
    assert await client.groups.list() == []


async def test_the_consumers_of_a_group_read_alike(client: Client) -> None:
    async with client.subscribe(GROUP, epochs="atomic"):
        with pytest.raises(GroupConflict, match="read whole epochs, and this one has epochs 'off'"):
            await client.subscribe(GROUP).__aenter__()
    async with client.subscribe("$shared/off/space/#"):
        with pytest.raises(GroupConflict, match="each stream as it is, and this one has epochs 'atomic'"):
            await client.subscribe("$shared/off/space/#", epochs="atomic").__aenter__()


@pytest.mark.slow
async def test_a_loop_may_commit_by_itself(client: Client) -> None:
    await played(client, 2)
    got: list[Any] = []
    async with client.subscribe(GROUP, start="earliest", epochs="atomic", auto_commit=True) as reader:
        got += await until_frontier(reader, 2, commit=False)
    async with client.subscribe(GROUP, epochs="atomic") as reader:
        assert await until_frontier(reader, 2) == []
    assert got == parts(0, 1)


@pytest.mark.slow
def test_a_blocking_program_reads_whole_epochs(redis_url: str) -> None:
    async def play() -> None:
        async with connect(redis_url) as client:
            await client.create_space("space", ["space/#"], streams=3, epochs=1)
            await played(client, 2)

    asyncio.run(play())
    with blocking.connect(redis_url) as client:
        found = []
        with client.subscribe(GROUP, start="earliest", epochs="atomic") as items:
            while len(found) < 4:
                item = items.poll(SECONDS)
                if isinstance(item, blocking.EpochPart):
                    assert item.epoch is not None
                    found.append((item.epoch[0], item.stream.shard, item.to_arrow()["payload"].to_pylist()))
                    item.commit()
            while not isinstance(item := items.poll(SECONDS), Frontier):
                pass
            assert item.lower == ((2,),)
    assert sorted(found) == [(one, shard, [t.encode() for t in texts]) for one, shard, texts in parts(0, 1)]
