"""What appends messages as they come is refused by a space with epochs, and nothing is written."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from streamlease.protocol.errors import InvalidInput
from streamlease.spark.placing import Placer
from streamlease.streams.entries.entries import Row, encode_message
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.sealing import close_streams, open_streams
from streamlease.streams.imports.inbox import InboxMover
from streamlease.streams.imports.transfer import Item, Transfer
from streamlease.streams.log.keys import inbox_refused, sink_staged, space_inbox, stream_meta
from streamlease.streams.log.log import Append, AsyncLog
from streamlease.streams.publish.staged.staging import Stager
from streamlease.streams.redis.connection import AsyncRedis, ask, connect, connect_blocking
from streamlease.streams.spaces.spaces import Space, SpaceStore

SAID = "space clicks has epochs, so its messages come from publishers with a name"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def space(redis: AsyncRedis) -> AsyncIterator[Space]:
    """A space with epochs, in which nothing stands after the test."""
    made = await SpaceStore(redis).create("clicks", ["clicks/#"], streams=2, epochs=1)
    yield made
    assert set((await AsyncLog(redis).next_offsets(made.streams())).values()) == {0}
    for stream in made.streams():
        assert await ask(redis, [("EXISTS", keys.staged_log(stream))]) == [0]


async def test_an_append_by_the_script(redis: AsyncRedis, space: Space) -> None:
    """A process of an older version, or of no version at all, knows nothing of epochs."""
    stream = space.streams()[0]
    append = Append(stream, "tower-7", 1, 0, encode_message(Row("clicks/a", b"x")))
    with pytest.raises(InvalidInput, match=r"stream clicks\.0\.0 takes no messages as they come"):
        await AsyncLog(redis).append(append)
    # The scripts of older versions take nothing unless it is open.
    assert await ask(redis, [("HGET", stream_meta(stream), "state")]) == [b"epochs"]


async def test_a_transfer(redis: AsyncRedis, space: Space) -> None:
    transfer = Transfer(redis, "file")
    item = Item((1, 1), "clicks/a", b"x")
    for attempt in (transfer.put([item]), transfer.check(item)):
        with pytest.raises(InvalidInput, match=SAID):
            await attempt


async def test_an_entry_of_an_inbox(redis: AsyncRedis, space: Space) -> None:
    await ask(redis, [("XADD", space_inbox("clicks"), "*", "topic", "clicks/a", "payload", "x")])
    await InboxMover(redis, "host").round()
    (entries,) = await ask(redis, [("XRANGE", inbox_refused("clicks"), "-", "+")])
    ((_, fields),) = entries
    assert SAID.encode() in b" ".join(fields)
    assert await ask(redis, [("XLEN", space_inbox("clicks"))]) == [0]


async def test_the_rows_of_a_sink(redis: AsyncRedis, redis_url: str, space: Space) -> None:
    known = (await SpaceStore(redis).look()).spaces
    with connect_blocking(redis_url) as blocking:
        stager = Stager(blocking, lambda _: "q", 0, "token")
        placer = Placer(known, stager, "clicks/a")
        with pytest.raises(InvalidInput, match=SAID):
            placer.add(pa.RecordBatch.from_pydict({"payload": [b"x"]}))
        placer.finish()
        assert stager.finish() == []
    assert await ask(redis, [("EXISTS", sink_staged("q"))]) == [0]


async def test_a_space_that_an_older_version_made_is_closed(redis: AsyncRedis, space: Space) -> None:
    first, second = space.streams()
    assert await open_streams(redis, space) == []
    await ask(redis, [("HSET", stream_meta(first), "state", "open")])
    assert await close_streams(redis, space) == [first]
    assert await close_streams(redis, space) == []
    for stream in (first, second):
        append = Append(stream, "tower-7", 1, 0, encode_message(Row("clicks/a", b"x")))
        with pytest.raises(InvalidInput, match="takes no messages as they come"):
            await AsyncLog(redis).append(append)
    await AsyncLog(redis).seal_all([second])
    await AsyncLog(redis).open([second], "epochs")
    assert await ask(redis, [("HGET", stream_meta(second), "state")]) == [b"sealed"], "never back"
