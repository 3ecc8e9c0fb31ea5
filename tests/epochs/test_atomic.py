"""Atomic subscriptions on every kind of server: whole epochs, then the frontier; nothing in silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streamlease.agent.client import Client, connect
from streamlease.agent.epochs.epoch_items import EpochBatch, Frontier
from streamlease.protocol.errors import EpochsTruncated, HistoryTruncated, InvalidOption, InvalidTopic
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import beginning, keys, reading_ahead, stretch_reading
from streamlease.streams.epochs.boundary_reading import EpochsLost, PartsLost
from streamlease.streams.epochs.keeping import Keeper
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import ask
from streamlease.streams.spaces.retention import Retention, Trim, trim
from streamlease.testing.memory.memory_connection import connect as connect_in_memory
from tests.epochs.playing import (
    SECONDS,
    Hand,
    epochs_of,
    everything,
    hand,
    kept,
    replaced,
    replicated_server,
    settled,
    shown,
    some,
)

ALL = "space/#"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with connect(redis_url, embedded=False) as client:
        await client.create_space("space", ["space/#"], streams=3, epochs=1)
        yield client


async def played(client: Client, epochs: int = 4) -> tuple[Hand, Keeper]:
    """A publisher that sent two messages in two streams at each of some epochs, each a boundary."""
    made, keeper = await hand(client.redis), await kept(client)
    for epoch in range(epochs):
        await made.send(epoch, f"{epoch}x", shard=0)
        await made.send(epoch, f"{epoch}y", shard=1)
        await made.advance(epoch + 1)
        await settled(keeper)
    return made, keeper


def item(epoch: int) -> list[Any]:
    """What `played` comes to."""
    return [
        ((epoch,), [f"{epoch}x", f"{epoch}y"]),
        ("frontier", [(epoch + 1,)], {(epoch,): -1, (epoch + 1,): 1}),
    ]


def items(*epochs: int) -> list[Any]:
    return [one for epoch in epochs for one in item(epoch)]


@pytest.mark.slow
async def test_history_is_all_epochs_up_to_the_newest_boundary(client: Client) -> None:
    made, _keeper = await played(client)
    await made.send(4, "open")
    assert await everything(client.history(ALL, epochs="atomic")) == items(0, 1, 2, 3)
    since = {"space.0.0": 1, "space.0.1": 1}
    assert await everything(client.history(ALL, since=since, epochs="atomic")) == [
        ("snapshot", [(2,)], [(1,)]),
        *items(2, 3),
    ]


async def test_streams_come_together_in_order_and_only_what_the_filter_matches(client: Client) -> None:
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    await b.send(0, "b2", shard=2)
    await b.send(0, "b0", shard=0)
    await a.send(0, "a1", shard=1)
    await a.send(0, "other", shard=0, topic="space/other")
    await a.send(0, "a0", shard=0)
    await a.send(1, "other", topic="space/other")
    await a.advance(2)
    await b.advance(2)
    await settled(keeper)
    (whole, _) = await everything(client.history("space/t", epochs="atomic"))
    assert whole == ((0,), ["a0", "b0", "a1", "b2"])


@pytest.mark.slow
async def test_listening_is_told_as_boundaries_come(client: Client) -> None:
    made, keeper = await played(client, 1)
    async with (
        client.listen(ALL, start="earliest", epochs="atomic") as earliest,
        client.listen(ALL, epochs="atomic") as latest,
    ):
        assert await some(earliest, 2) == items(0)
        assert await some(latest, 1) == [("snapshot", [(1,)], [(0,)])]
        following = asyncio.create_task(some(earliest, 2))
        await made.send(1, "1x")
        await made.send(1, "1y", shard=1)
        await made.advance(2)
        await settled(keeper)
        assert await following == items(1)
        assert await some(latest, 2) == items(1)


async def test_an_epoch_without_messages_completes(client: Client) -> None:
    made, keeper = await hand(client.redis), await kept(client)
    await made.advance(7)
    await settled(keeper)
    assert await everything(client.history(ALL, epochs="atomic")) == [
        ("frontier", [(7,)], {(0,): -1, (7,): 1})
    ]


async def test_who_comes_late_sees_nothing_of_what_was_active(client: Client) -> None:
    """E4: active {3, 5} when it joins: 4 and 5 are left out too, 6 is the first."""
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    await a.advance(3)
    await b.advance(3)
    await settled(keeper)
    await a.send(3, "a3")
    await b.send(5, "b5", shard=2)
    async with client.listen(ALL, epochs="atomic") as latest:
        assert await some(latest, 1) == [("snapshot", [(3,)], [(5,)])]
        for epoch in (4, 5, 6):
            await a.send(epoch, f"a{epoch}")
        await b.send(6, "b6", shard=2)
        await a.advance(8)
        await b.advance(7)
        await settled(keeper)
        assert await some(latest, 2) == [
            ((6,), ["a6", "b6"]),
            ("frontier", [(7,)], {(3,): -1, (7,): 1}),
        ]
    assert [*epochs_of(await everything(client.history(ALL, epochs="atomic")))] == [(3,), (4,), (5,), (6,)]


async def test_what_was_given_up_and_not_moved_is_active_too(client: Client) -> None:
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    await a.send(2, "a2")
    await a.advance(3)
    await settled(keeper)
    async with client.listen(ALL, epochs="atomic") as latest:
        assert await some(latest, 1) == [("snapshot", [(0,)], [(2,)])]
        await a.send(3, "a3")
        await a.advance(4)
        await b.advance(4)
        await settled(keeper)
        assert await some(latest, 2) == [((3,), ["a3"]), ("frontier", [(4,)], {(0,): -1, (4,): 1})]


@pytest.mark.slow
async def test_a_moment_begins_at_the_boundary_before_it(client: Client) -> None:
    _made, _keeper = await played(client, 2)
    (_, _, second, _) = await everything(client.history(ALL, epochs="atomic"))
    assert second[0] == (1,)
    async with client.history(ALL, epochs="atomic") as found:
        batches = [one async for one in found if isinstance(one, EpochBatch)]
    moment = min(message.append_timestamp for message in batches[1].messages)
    async with client.listen(ALL, start=moment, epochs="atomic") as timed:
        assert await some(timed, 3) == [("snapshot", [(1,)], [(0,)]), *items(1)]
    async with client.listen(ALL, start=datetime.now(UTC) + timedelta(hours=1), epochs="atomic") as future:
        assert await some(future, 1) == [("snapshot", [(2,)], [(1,)])]


@pytest.mark.slow
async def test_positions_are_where_another_one_goes_on(client: Client) -> None:
    _made, _keeper = await played(client)
    async with client.listen(ALL, start="earliest", epochs="atomic") as one:
        assert await some(one, 4) == items(0, 1)
        positions = one.positions
    assert positions == {"space.0.0": 2, "space.0.1": 2, "space.0.2": 0}
    async with client.listen(ALL, start=positions, epochs="atomic") as two:
        assert await some(two, 5) == [("snapshot", [(2,)], [(1,)]), *items(2, 3)]


async def test_a_boundary_is_handed_out_epoch_by_epoch_and_then_counts(client: Client) -> None:
    made, keeper = await hand(client.redis), await kept(client)
    for epoch in range(3):
        await made.send(epoch, f"{epoch}", shard=epoch)
    await made.advance(3)
    await settled(keeper)
    async with client.listen(ALL, start="earliest", epochs="atomic") as one:
        assert await some(one, 2) == [((0,), ["0"]), ((1,), ["1"])]
        assert set(one.positions.values()) == {0}, "the middle of a boundary is no place to begin at"
        assert (await some(one, 1))[0] == ((2,), ["2"])
        assert one.positions == {f"space.0.{shard}": 1 for shard in range(3)}


@pytest.mark.slow
async def test_readers_begin_anywhere(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning, "FEW", 2)
    await played(client, 9)
    for first in range(9):
        start = {"space.0.0": first, "space.0.1": first}
        async with client.listen(ALL, start=start, epochs="atomic") as one:
            (_, lower, _), *rest = await some(one, 1 + 2 * (9 - first))
            assert (lower, rest) == ([(first,)], items(*range(first, 9)))
    async with client.listen(ALL, start={"space.0.0": 9, "space.0.1": 4}, epochs="atomic") as one:
        assert (await some(one, 2))[1] == items(4)[0]
    async with client.listen(ALL, start=3, epochs="atomic") as one:
        assert (await some(one, 2))[1] == items(3)[0]


@pytest.mark.slow
async def test_two_readers_agree_whenever_they_look(client: Client) -> None:
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    async with client.listen(ALL, start="earliest", epochs="atomic") as early:
        following = asyncio.create_task(some(early, 12))
        for epoch in range(6):
            await a.send(epoch, f"a{epoch}", shard=epoch % 3)
            await b.send(epoch + 1, f"b{epoch + 1}", shard=1)
            await a.advance(epoch + 1)
            await b.advance(epoch + 1)
            await settled(keeper)
        assert await following == await everything(client.history(ALL, epochs="atomic"))


async def test_tuples_complete_in_a_linear_order(client: Client) -> None:
    await client.create_space("grid", ["grid/#"], streams=2, epochs=2)
    a = await hand(client.redis, "a", "grid")
    keeper = await kept(client, "grid")
    for epoch in ((1, 0), (0, 1), (0, 0), (1, 1)):
        await a.send(epoch, str(epoch))
    await a.advance((0, 2), (2, 0))
    await settled(keeper)
    *found, frontier = await everything(client.history("grid/#", epochs="atomic"))
    assert [one[0] for one in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert frontier == ("frontier", [(0, 2), (2, 0)], {(0, 0): -1, (0, 2): 1, (2, 0): 1})


@pytest.mark.slow
async def test_an_epoch_of_two_spaces_is_one(client: Client) -> None:
    await client.create_space("other", ["other/#"], streams=1, epochs=1)
    a, b = await hand(client.redis, "a"), await hand(client.redis, "b", "other")
    one, two = await kept(client), await kept(client, "other")
    await a.send(0, "a0")
    await a.send(1, "a1")
    await a.advance(2)
    await settled(one)
    async with client.listen("#", start="earliest", epochs="atomic") as both:
        following = asyncio.create_task(some(both, 2))
        await b.send(0, "b0")
        await b.advance(1)
        await settled(two)
        assert await following == [((0,), ["b0", "a0"]), ("frontier", [(1,)], {(0,): -1, (1,): 1})]
        positions = both.positions
        assert positions == {"space.0.0": 0, "space.0.1": 0, "space.0.2": 0, "other.0.0": 1}
        await b.send(1, "b1")
        await b.advance(4)
        await settled(two)
        rest = [((1,), ["b1", "a1"]), ("frontier", [(2,)], {(1,): -1, (2,): 1})]
        assert await some(both, 2) == rest
    # A restart repeats the rest of the boundary of the one, and no epoch without the part of the other.
    async with client.listen("#", start=positions, epochs="atomic") as again:
        assert await some(again, 4) == [
            ("snapshot", [(0,)], [(0,)]),
            ("frontier", [(1,)], {(0,): -1, (1,): 1}),
            *rest,
        ]


async def test_what_one_space_has_completed_is_left_out_of_the_other(client: Client) -> None:
    await client.create_space("other", ["other/#"], streams=1, epochs=1)
    a, b = await hand(client.redis, "a"), await hand(client.redis, "b", "other")
    one, two = await kept(client), await kept(client, "other")
    await a.send(0, "a0")
    await a.advance(1)
    await settled(one)
    async with client.listen("#", epochs="atomic") as latest:
        assert await some(latest, 1) == [("snapshot", [(0,)], [(0,)])]
        await b.send(0, "b0")
        await b.send(1, "b1")
        await b.advance(2)
        await settled(two)
        await a.send(1, "a1")
        await a.advance(2)
        await settled(one)
        found = await some(latest, 3)
        assert epochs_of(found) == {(1,): ["a1", "b1"]}


async def test_spaces_that_cannot_be_read_together_are_refused(client: Client) -> None:
    await client.create_space("grid", ["grid/#"], epochs=2)
    with pytest.raises(
        InvalidOption, match=r"of space grid with epochs of 2 dim.*, and of space space with 1"
    ):
        async with client.listen("#", epochs="atomic"):
            pass
    await client.create_space("plain", ["plain/#"])
    with pytest.raises(InvalidOption, match="space plain, which has no epochs"):
        await everything(client.history("#", epochs="atomic"))
    with pytest.raises(InvalidOption, match="epochs is 'none': use"):
        client.listen("#", epochs="none")  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="names a group"):
        client.listen("$shared/g/#", epochs="atomic")
    with pytest.raises(InvalidTopic):
        client.listen("a/#/b", epochs="atomic")
    with pytest.raises(InvalidOption, match="use 'earliest'"):
        client.listen("#", start="oldest", epochs="atomic")  # type: ignore[call-overload]


async def test_off_is_the_stream_as_it_is(client: Client) -> None:
    made, _ = await played(client, 2)
    await made.send(2, "open")
    async with client.history(ALL) as batches:
        found = [message async for batch in batches for message in batch.messages]
    assert sorted((message.payload, message.epoch) for message in found) == [
        (b"0x", (0,)), (b"0y", (0,)), (b"1x", (1,)), (b"1y", (1,)),
    ]  # fmt: skip


async def test_arrow_has_all_messages_of_the_epoch(client: Client) -> None:
    await played(client, 1)
    async with client.history(ALL, epochs="atomic") as found:
        first = await anext(found)
    assert isinstance(first, EpochBatch)
    assert len(first) == 2
    assert first.to_arrow().select(["payload", "epoch", "stream"]).to_pylist() == [
        {"payload": b"0x", "epoch": [0], "stream": "space.0.0"},
        {"payload": b"0y", "epoch": [0], "stream": "space.0.1"},
    ]


# -- what is lost --------------------------------------------------------------------------------


async def test_what_was_lost_while_it_was_staged_is_told_and_reading_goes_on(client: Client) -> None:
    made, keeper = await hand(client.redis), await kept(client)
    await made.send(0, "x", "y", "z")
    await ask(client.redis, [("XDEL", keys.staged_log(StreamId("space", 0, 0)), "1-1")])
    await made.advance(1)
    await settled(keeper)
    async with client.listen(ALL, start="earliest", epochs="atomic") as one:
        with pytest.raises(PartsLost, match=r"epoch 0 of publisher a lacks 1 of 3 messages"):
            await some(one, 1)
        assert (await some(one, 1)) == [((0,), ["x", "z"])]


async def test_what_a_stream_lost_is_told_and_reading_goes_on(client: Client) -> None:
    await played(client, 2)
    stream = StreamId("space", 0, 1)
    await ask(client.redis, [("XDEL", stream_log(stream), "0-1")])
    async with client.listen(ALL, start="earliest", epochs="atomic") as one:
        with pytest.raises(MissingOffsets, match=r"nothing at offsets 0 to 0"):
            await some(one, 1)
        assert await some(one, 4) == [((0,), ["0x"]), *items(0)[1:], *items(1)]


@pytest.mark.slow
async def test_what_stands_before_a_hole_is_handed_out_too(client: Client) -> None:
    made, keeper = await hand(client.redis), await kept(client)
    await made.send(0, "v", "w", "x", "y", "z")
    await made.advance(1)
    await settled(keeper)
    await ask(client.redis, [("XDEL", stream_log(StreamId("space", 0, 0)), "1-1", "3-1")])
    async with client.listen(ALL, start="earliest", epochs="atomic") as one:
        for offset in (1, 3):
            with pytest.raises(MissingOffsets, match=f"nothing at offsets {offset} to {offset}"):
                await some(one, 1)
        assert (await some(one, 1)) == [((0,), ["v", "x", "z"])]


async def test_other_messages_than_a_boundary_says_are_not_handed_out(client: Client) -> None:
    await played(client, 2)
    stream = StreamId("space", 0, 0)
    ((first, second),) = await ask(client.redis, [("XRANGE", stream_log(stream), "-", "+")])
    await ask(
        client.redis,
        [
            ("DEL", stream_log(stream)),
            ("XADD", stream_log(stream), "0-1", *second[1]),
            ("XADD", stream_log(stream), "1-1", *first[1]),
        ],
    )
    with pytest.raises(EpochsLost, match="other messages at offsets 0 to 0"):
        await everything(client.history(ALL, epochs="atomic"))


async def test_a_boundary_that_redis_lost_is_noticed(client: Client) -> None:
    made, keeper = await played(client, 2)
    (before,) = await ask(client.redis, [("DUMP", keys.state("space"))])
    (bounds,) = await ask(client.redis, [("DUMP", keys.bounds("space"))])
    await made.advance(5)
    await settled(keeper)
    async with client.listen(ALL, epochs="atomic") as one:
        assert await some(one, 1) == [("snapshot", [(5,)], [(1,)])]
        await ask(
            client.redis,
            [
                ("RESTORE", keys.state("space"), 0, before, "REPLACE"),
                ("RESTORE", keys.bounds("space"), 0, bounds, "REPLACE"),
            ],
        )
        with pytest.raises(EpochsLost, match="boundary 3 of space space is not there as it was read"):
            await some(one, 1)


async def test_a_boundary_that_was_made_again_otherwise_is_noticed(client: Client) -> None:
    _made, _keeper = await played(client, 2)
    async with client.listen(ALL, epochs="atomic") as one:
        await some(one, 1)
        (((id, (_, text, *_)),),) = await ask(client.redis, [("XRANGE", keys.bounds("space"), "2-0", "2-0")])
        await ask(client.redis, [("DEL", keys.bounds("space"))])
        other = text.replace(b'"lower":[[2]]', b'"lower":[[3]]')
        assert other != text
        await ask(client.redis, [("XADD", keys.bounds("space"), id, "b", other)])
        with pytest.raises(EpochsLost, match="boundary 2"):
            await some(one, 1)


@pytest.mark.slow
async def test_what_retention_took_is_told_and_the_earliest_is_behind_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_ahead, "MOST_ROWS", 1)  # what was read already would be handed out
    await played(client, 4)
    stream = StreamId("space", 0, 0)
    async with client.listen(ALL, start="earliest", epochs="atomic") as slow:
        assert await some(slow, 2) == items(0)
        await trim(client.redis, Trim(stream, Retention(messages=1), 10))
        with pytest.raises(HistoryTruncated) as error:
            await some(slow, 1)
        assert (error.value.stream, error.value.asked, error.value.oldest) == (str(stream), 1, 3)
    with pytest.raises(HistoryTruncated):
        async with client.listen(ALL, start={"space.0.1": 1}, epochs="atomic"):
            pass
    assert await everything(client.history(ALL, epochs="atomic")) == [
        ("frontier", [(3,)], {(0,): -1, (3,): 1}),
        *items(3),
    ]


@pytest.mark.slow
async def test_the_earliest_moves_with_retention_until_something_was_handed_out(client: Client) -> None:
    await played(client, 4)
    async with client.listen(ALL, start="earliest", epochs="atomic") as slow:
        await trim(client.redis, Trim(StreamId("space", 0, 1), Retention(messages=2), 10))
        assert await some(slow, 5) == [("frontier", [(2,)], {(0,): -1, (2,): 1}), *items(2, 3)]


@pytest.mark.slow
async def test_what_is_behind_is_read_at_once_and_cut_into_its_epochs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await played(client, 9)
    expected = await everything(client.history(ALL, epochs="atomic"))
    for rows in (1, 3, 7):
        monkeypatch.setattr(reading_ahead, "MOST_ROWS", rows)
        assert await everything(client.history(ALL, epochs="atomic")) == expected


@pytest.mark.slow
async def test_boundaries_that_are_not_there_any_more_are_told(client: Client) -> None:
    await played(client, 4)
    async with client.listen(ALL, start={"space.0.0": 1}, epochs="atomic") as slow:
        await some(slow, 1)
        await ask(client.redis, [("XDEL", keys.bounds("space"), "1-0", "2-0")])
        with pytest.raises(EpochsTruncated, match="boundary 2 of space space is not there any more"):
            await some(slow, 1)
    with pytest.raises(EpochsTruncated, match="read from the earliest"):
        async with client.listen(ALL, start={"space.0.0": 1}, epochs="atomic"):
            pass
    assert (await everything(client.history(ALL, epochs="atomic")))[1:] == items(3)


@pytest.mark.parametrize("act", ["_decide", "_move", "_drop", "_record"])
@pytest.mark.slow
async def test_a_reader_goes_on_when_a_keeper_ends_in_the_middle(
    client: Client, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    made, keeper = await played(client, 1)
    async with client.listen(ALL, start="earliest", epochs="atomic") as one:
        assert await some(one, 2) == items(0)
        following = asyncio.create_task(some(one, 2))
        await made.send(1, "1x")
        await made.send(1, "1y", shard=1)
        await made.advance(2)
        real = getattr(Keeper, act)

        async def ended(self: Keeper, *args: Any) -> None:
            await real(self, *args)
            raise KeyboardInterrupt  # no error of the house: nothing is done about it

        monkeypatch.setattr(Keeper, act, ended)
        with pytest.raises(KeyboardInterrupt):
            await keeper.turn()
        monkeypatch.undo()
        await settled(await kept(client, term=2))
        assert await following == items(1)


@pytest.mark.slow
async def test_silence_is_waited_out_without_news(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling is the truth: with a channel on which nothing comes, boundaries are read all the same."""
    made, keeper = await played(client, 1)
    monkeypatch.setattr(keys, "news", lambda space: "elsewhere")
    async with client.listen(ALL, epochs="atomic") as one:
        await some(one, 1)
        following = asyncio.create_task(some(one, 1))
        monkeypatch.undo()
        await made.advance(3)
        await settled(keeper)
        assert await following == [("frontier", [(3,)], {(1,): -1, (3,): 1})]


async def test_the_blocking_client_reads_the_same(client: Client) -> None:
    from streamlease.agent import blocking

    await played(client, 2)

    def read() -> list[Any]:
        with (
            blocking.connect(client.url, embedded=False) as twin,
            twin.history(ALL, epochs="atomic") as found,
        ):
            assert [shown(one) for one in found] == items(0, 1)
            with twin.listen(ALL, start=found.positions, epochs="atomic") as more:
                return [shown(next(iter(more)))]

    async with asyncio.timeout(SECONDS):
        assert await asyncio.to_thread(read) == [("snapshot", [(2,)], [(1,)])]


async def test_deleted_keys_of_a_stream_are_told(client: Client) -> None:
    await played(client, 2)
    await ask(client.redis, [("DEL", stream_meta(StreamId("space", 0, 0)))])
    with pytest.raises(Exception, match=r"space\.0\.0"):
        await everything(client.history(ALL, since={"space.0.1": 0}, epochs="atomic"))


@pytest.mark.parametrize("behind", [1, 3], ids=["one boundary", "several at once"])
async def test_what_came_in_the_place_of_a_lost_boundary_is_not_taken_for_its_epoch(
    monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """Else the reader is handed out half of the epoch that stands there, and is told afterwards."""
    server = replicated_server()
    async with connect_in_memory(server, embedded=False) as client:
        await client.create_space("space", [ALL], streams=1, epochs=1)
        one, keeper = await hand(client.redis, "one"), await kept(client)
        await settled(keeper)
        await ask(client.redis, [("WAIT", 1, 100)])
        for epoch in range(2, 2 + behind):
            await one.send(epoch, "lost")
            await one.advance(epoch + 1)
            assert await keeper.turn()

        read = stretch_reading.read_all
        ahead = reading_ahead.read_all

        async def late(*of: Any) -> Any:
            monkeypatch.setattr(stretch_reading, "read_all", read)
            monkeypatch.setattr(reading_ahead, "read_all", ahead)
            await replaced(server, client, *range(2, 2 + behind))
            return await read(*of)

        monkeypatch.setattr(stretch_reading, "read_all", late)
        monkeypatch.setattr(reading_ahead, "read_all", late)
        async with client.listen(ALL, start="earliest", epochs="atomic") as atomic:
            with pytest.raises(EpochsLost):
                while True:
                    assert isinstance(await anext(atomic), Frontier), "something of an epoch"
