"""Lists for many streams go message by message; what is told of them is made when somebody looks."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from streamlease.protocol.errors import StoreUnavailable, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import to_messages
from streamlease.streams.entries.message_rows import LAST_TIME
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.buffer import ROW_BYTES, Buffer
from streamlease.streams.publish.gate import Gate
from streamlease.streams.publish.lanes import Lane, Lanes
from streamlease.streams.publish.parts import Part
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.publish.receipts import Receipts
from streamlease.streams.publish.spread import FEW, FEW_BYTES, Spread
from streamlease.streams.publish.turns import Turn, Turns
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore

MOST_BYTES = 50_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Room:
    """A `Spread` with two lanes, and what was offered to its sender."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.offered: list[Lane] = []
        self.buffer = Buffer(limit)
        lanes = Lanes(
            self.offered.append,
            lambda: 1.0,
            max_messages=3,
            max_bytes=MOST_BYTES,
            codec="none",
            lingers=False,
            wanted=lambda: None,
        )
        self.lanes = {name: Lane(StreamId("s", 0, place), 1) for place, name in enumerate("ab")}
        self.turns = Turns()
        gate = Gate(self.buffer, cast("Any", None), cast("Any", None))
        self.spread = Spread(gate, lanes, self.lanes, self.turns.queues)

    def take(self, topics: list[str], **columns: Any) -> list[tuple[Part, int, int]] | None:
        payloads = columns.get("payloads", [b"x"] * len(topics))
        return self.spread.take(topics, payloads, columns.get("keys"), columns.get("timestamps"), False)

    def waits(self, name: str) -> list[list[Any]]:
        """The rows of each part of a lane."""
        return [part.rows for part in self.lanes[name].queue]


async def test_each_message_joins_what_waits_for_its_stream() -> None:
    room = Room()
    first = room.take(["a", "b", "a"], payloads=[b"1", b"2", b"3"], keys=[b"k", None, None])
    second = room.take(["a", "a"], payloads=[b"4", b"5"], timestamps=[None, 7])
    assert first is not None
    assert second is not None
    assert room.waits("a") == [
        ["a", b"1", b"k", None, "a", b"3", None, None, "a", b"4", None, None],
        ["a", b"5", None, 7],
    ]
    assert room.waits("b") == [["b", b"2", None, None]]
    assert [(place, count) for _, place, count in first] == [(0, 2), (0, 1)]
    # A part is full with three messages, so the second call has a piece in each of two.
    assert [(place, count) for _, place, count in second] == [(2, 1), (0, 1)]
    assert room.buffer.held == 5 * (ROW_BYTES + 1) + 1
    assert [part.size for part in room.lanes["a"].queue] == [3 * ROW_BYTES + 4, ROW_BYTES + 1]
    assert room.offered == [room.lanes[name] for name in "aba"]


@pytest.mark.parametrize(
    ("topics", "columns"),
    [
        pytest.param([], {}, id="nothing"),
        pytest.param(["a", "unknown"], {}, id="a topic to look up"),
        pytest.param(["a", "b"], {"payloads": [b"x", "text"]}, id="a text"),
        pytest.param(["a", "b"], {"payloads": [b"x", 2]}, id="a payload that is none"),
        pytest.param(["a", "b"], {"keys": [None, "text"]}, id="a key of text"),
        pytest.param(["a", "b"], {"timestamps": [1, True]}, id="a time that is none"),
        pytest.param(["a", "b"], {"timestamps": [None, LAST_TIME]}, id="a time beyond the last one"),
        pytest.param(["a", "b"], {"payloads": [b"x", b"y" * MOST_BYTES]}, id="a large message"),
        pytest.param(["a"] * (FEW + 1), {}, id="many for one stream"),
        pytest.param(["a"] * 2, {"payloads": [b"x" * (FEW_BYTES // 2)] * 2}, id="many bytes for one stream"),
    ],
)
async def test_of_what_is_to_become_columns_nothing_is_taken(topics: list[str], columns: Any) -> None:
    room = Room()
    assert room.take(topics, **columns) is None
    assert (room.buffer.held, room.offered, room.waits("a")) == (0, [], [])


async def test_nothing_overtakes_a_call_about_the_same_topic() -> None:
    room = Room()
    with room.turns.draw(["b"]):
        assert room.take(["a", "b"]) is None
        assert room.take(["a"]) is not None
    assert room.take(["a", "b"]) is not None
    left: dict[str, deque[Turn]] = room.turns.queues
    assert not left


async def test_where_there_is_no_room_for_all_none_is_taken() -> None:
    room = Room(limit=1000)
    assert room.take(["a"]) is not None
    assert room.take(["a", "b"] * 4) is None
    assert len(room.waits("a")) == 1
    assert not room.waits("b")


async def test_pieces_are_a_sequence_of_futures_made_when_somebody_looks() -> None:
    one, other = Part(0.0), Part(0.0)
    for part in (one, other):
        part.add_rows(["t", b"x", None, None] * 3, 3, 300, watched=False)
    pieces = Receipts([(one, 0, 1), (one, 1, 2), (other, 0, 3)])
    assert len(pieces) == 3
    assert not one.is_awaited
    stream = StreamId("s", 0, 1)
    early = pieces[1]
    assert one.is_awaited
    assert pieces[1] is early
    assert pieces[-2] is early
    one.succeed(stream, 40)
    assert [(str(where), *offsets) for where, offsets in await early] == [(str(stream), 41, 43)]
    assert [tuple(offsets) for _, offsets in pieces[0].result()] == [(40, 41)]
    other.fail(StoreUnavailable("gone"))
    first, second, third = pieces
    assert pieces[1:] == [second, third]
    assert pieces + pieces[:1] == [first, second, third, first]
    assert first.done()
    with pytest.raises(StoreUnavailable, match="gone"):
        third.result()
    with pytest.raises(IndexError):
        pieces[3]


async def test_a_list_for_known_topics_is_read_as_it_was_given(redis: AsyncRedis) -> None:
    space = await SpaceStore(redis).create("s", ["s/#"], streams=20)
    topics = [f"s/{n % 40}" for n in range(200)]
    async with Publisher(redis) as publisher:
        await publisher.send_many(topics, [b"first"] * 200)  # these become columns: nothing is known yet
        before = publisher.buffered_bytes
        places = await publisher.send_many(
            topics,
            [b"%d" % n for n in range(200)],
            keys=[b"k" if n % 3 else None for n in range(200)],
            timestamps=[n if n % 2 else None for n in range(200)],
        )
        assert publisher.buffered_bytes == before == 0
    told = sorted((str(stream), at) for stream, offsets in places for at in range(*offsets))
    found = []
    for stream in space.streams():
        batches = await AsyncLog(redis).read(stream, 0, max_bytes=None)
        found += [(str(stream), one) for batch in batches for one in to_messages(batch)]
    second = [(stream, one) for stream, one in found if one.payload != b"first"]
    assert sorted((stream, one.offset) for stream, one in second) == told
    assert sorted(int(one.payload) for _, one in second) == list(range(200))
    last: dict[str, int] = {}
    for _, one in second:
        number = int(one.payload)
        assert last.get(one.topic, -1) < number
        last[one.topic] = number
        assert one.topic == topics[number]
        assert one.key == (b"k" if number % 3 else None)
        assert (one.timestamp == EPOCH + timedelta(microseconds=number)) == bool(number % 2)


async def test_an_error_of_a_list_comes_out_of_flush_and_of_its_pieces(redis: AsyncRedis) -> None:
    store = SpaceStore(redis)
    await store.create("s", ["s/#"], streams=2)
    topics = [f"s/{n}" for n in range(8)]
    async with Publisher(redis) as publisher:
        await publisher.send_many(topics, [b"x"] * 8)
        await store.delete("s")
        pieces = await publisher.submit_many(topics, [b"y"] * 8)
        with pytest.raises(UnknownSpace, match="there is no stream"):
            await publisher.flush()
        assert [type(piece.exception()) for piece in pieces] == [UnknownSpace] * len(pieces)
        assert publisher.buffered_bytes == 0
