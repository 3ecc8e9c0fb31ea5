"""An argument of another kind, such as the text of an environment variable, is told in one line."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamlease import blocking
from streamlease.agent.client import Client, connect
from streamlease.protocol.errors import InvalidInput, InvalidOption, StreamleaseError, UnknownGroup
from streamlease.registry import keys
from tests.agent.helpers import SUB, publish, take

CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "listen": (lambda client: client.listen("a/#", max_batch="100"), "max_batch '100' is out of range: give"),
    "history": (lambda client: client.history("a/#", max_batch=None), "max_batch 'None' is out of range"),
    "timeout": (lambda client: client.publisher(delivery_timeout="10"), "delivery_timeout is '10': it must"),
    "buffer": (lambda client: client.publisher(max_buffer_bytes=True), "max_buffer_bytes is True: it must"),
    "linger": (lambda client: client.publisher(linger_ms="5"), "linger_ms is '5': give 0 to "),
    "nobody": (lambda client: client.subscribe(None), "None names no group: share it as '$shared/GROUP/"),
    "bytes": (lambda client: client.subscribe(b"$shared/g/#"), "b'$shared/g/#' names no group: share"),
    "since": (lambda client: client.history("a/#", since={"s.0.0": 1.5}), "since of s.0.0 is 1.5: give a"),
    "far": (lambda client: client.listen("a/#", start=2**60), "start has the offset 1152921504606846976: "),
}


@pytest.mark.parametrize("call", CALLS)
async def test_an_argument_of_another_kind_is_refused(client: Client, call: str) -> None:
    made, said = CALLS[call]
    with pytest.raises(StreamleaseError, match=f"^{re.escape(said)}"):
        made(client)


async def test_a_wait_of_another_kind_is_refused(client: Client) -> None:
    anything: Any = "3"
    with pytest.raises(InvalidOption, match=r"^wait is '3': give seconds, 0 or more"):
        await client.lookup("a/b", wait=anything)


def test_an_address_of_another_kind_is_refused() -> None:
    anything: Any = b"redis://secret@127.0.0.1"
    with pytest.raises(InvalidOption, match=r"^the URL of Redis is a bytes: give a string such as redis://"):
        connect(anything)


NO_OFFSETS = (1.5, 2.0, float("nan"), "1", True, b"1", [1])


async def progress(client: Client) -> dict[bytes, bytes]:
    """What is written of the streams of `SUB`."""
    written = await client.redis.hgetall(keys.progress("g/a/#"))
    return {name: value for name, value in written.items() if not name.startswith(b"@")}


async def test_what_is_committed_is_a_whole_number(client: Client) -> None:
    """``1.5`` was written, and nobody could read the progress of the group afterwards."""
    await client.create_space("s", ["a/#"], streams=1)
    await publish(client, range(5), topics=1)
    async with client.subscribe(SUB, start="earliest") as reader:
        batch = await anext(reader)
        await batch.commit(0)
        for end in (*NO_OFFSETS, batch.messages[0]):
            said = rf"^end is {re.escape(ascii(end)[:40])}.*: give a whole number$"
            with pytest.raises(InvalidOption, match=said):
                await batch.commit(end)  # type: ignore[arg-type]
            with pytest.raises(InvalidOption, match=said):
                batch.commit_soon(end)  # type: ignore[arg-type]
        for offset in (*NO_OFFSETS, None, batch.messages[0]):
            with pytest.raises(InvalidOption, match=r"^offset is .*: give a whole number$"):
                await batch.fail(offset, "no price")  # type: ignore[arg-type]
        await reader.flush()
        assert await progress(client) == {b"s.0.0": b"0"}
        await batch.commit(np.int64(2))
        assert await progress(client) == {b"s.0.0": b"2"}
        batch.commit_soon(np.int32(3))
        await reader.flush()
        assert await progress(client) == {b"s.0.0": b"3"}
    async with client.subscribe(SUB) as reader:
        assert await take(reader, 2) == [3, 4]


def test_what_is_committed_is_a_whole_number_for_blocking_programs(real_redis_url: str) -> None:
    end: Any = 1.5
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"], streams=1)
        with client.publisher() as publisher:
            publisher.send("a/b", b"x")
        with client.subscribe(SUB, start="earliest") as reader:
            batch = next(iter(reader))
            for commit in (batch.commit, batch.commit_soon):
                with pytest.raises(InvalidOption, match=r"^end is 1.5: give a whole number$"):
                    commit(end)
            batch.commit_soon(np.int64(1))
            reader.flush()


NO_LISTS = (None, 7, "hello", b"hello", {"a": 1}, {b"a"}, deque([b"a"]))


async def test_many_messages_are_lists(client: Client) -> None:
    """A text is not taken for a list of its letters."""
    await client.create_space("s", ["a/#"], streams=1)
    async with client.publisher() as publisher:
        for given in NO_LISTS:
            said = r"^payloads is .*: give a list, with one for each payload$"
            for many in (publisher.send_many, publisher.submit_many):
                with pytest.raises(InvalidInput, match=said):
                    await many("a/b", given)  # type: ignore[operator]
        with pytest.raises(InvalidInput, match=r"^keys is 'xy': give a list"):
            await publisher.send_many("a/b", [b"1", b"2"], keys="xy")
        for batch in (None, pa.table({"payload": [b"1"]}), [b"1"]):
            with pytest.raises(InvalidInput, match=r"^the batch is .*: give a pyarrow.RecordBatch$"):
                await publisher.send_batch("a/b", batch)
        for topic in ([], {}, None):
            with pytest.raises(StreamleaseError):
                await publisher.submit(topic, b"1")  # type: ignore[arg-type]
        await publisher.send_many("a/b", np.array([b"1", b"2"]))
        await publisher.send_many("a/b", pa.array([b"3"]))
        wild = pa.record_batch({"payload": [b"4"], "to #": ["a/b"]})
        await publisher.send_batch("to #", wild)  # the name of a column may be any
    assert await client.next_offsets(["s.0.0"]) == {("s", 0, 0): 4}


async def test_groups_are_named_by_texts(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    await client.groups.declare(SUB, "earliest")
    assert (await client.groups.get(SUB)).start == "earliest"
    altered = await client.groups.alter(SUB, lambda group: group.model_copy(update={"expiry_ms": 5000}))
    assert altered.expiry_ms == 5000
    await client.groups.forget(SUB)
    with pytest.raises(UnknownGroup):
        await client.groups.get(SUB)
    anything: Any = 7
    for call in (client.groups.declare, client.groups.get, client.groups.forget):
        with pytest.raises(InvalidInput, match="shared subscription"):
            await call(anything)


async def test_streams_and_spaces_of_another_kind_are_refused(client: Client) -> None:
    anything: Any
    for anything in ("s.0.0", 7, None):
        with pytest.raises(InvalidInput, match=r"^streams is .*: give a list, such as \['flights.0.3'\]"):
            await client.next_offsets(anything)
    for anything in (7, "s", ("s", 0, 0)):
        with pytest.raises(InvalidInput, match=r"is not a stream: write SPACE.GENERATION.SHARD"):
            await client.next_offsets([anything])
    for anything in (None, 7, b"s", ["s"]):
        with pytest.raises(InvalidInput, match="is not a name"):
            await client.spaces.delete(anything)
