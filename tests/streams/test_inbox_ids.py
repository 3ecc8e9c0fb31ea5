"""Entries of inboxes that are out of the common: ids that no position can hold, fields by the thousand."""

from __future__ import annotations

import pytest

from streamlease.streams.entries.entries import to_messages
from streamlease.streams.imports.inbox import KEPT_FIELDS, InboxMover
from streamlease.streams.imports.redis_streams import LARGEST
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore

INBOX = "sl:{inbox:flights}"
REFUSED = "sl:{inbox:flights}:refused"
LAST = 2**64 - 1


async def arrived(redis: AsyncRedis) -> list[bytes]:
    """The payloads in the space's only stream."""
    space = await SpaceStore(redis).get("flights")
    return [
        one.payload
        for batch in await AsyncLog(redis).read(space.streams()[0], 0)
        for one in to_messages(batch)
    ]


async def put(redis: AsyncRedis, payload: str, id: str = "*") -> bytes:
    key: bytes = await redis.execute_command("XADD", INBOX, id, "topic", "flights/JFK", "payload", payload)
    return key


@pytest.mark.parametrize(
    "id", [f"{LARGEST + 1}-0", f"1-{LARGEST + 1}", f"{2**63}-5", f"{LAST}-0", f"{LAST}-{LAST}"]
)
@pytest.mark.slow
async def test_an_id_that_no_position_can_hold_holds_up_nothing(redis: AsyncRedis, id: str) -> None:
    await SpaceStore(redis).create("flights", ["flights/#"])
    mover = InboxMover(redis, "host")
    await put(redis, "bad", id)
    assert await mover.round() == 0
    ((_, fields),) = await redis.xrange(REFUSED)
    assert fields[b"refused-id"] == id.encode()
    assert b"has an id above" in fields[b"refused-because"]
    assert await redis.xlen(INBOX) == 0
    await put(redis, "good")  # Redis gives rising ids: without more, all later ones were too large as well
    await put(redis, "better")
    assert await mover.round() == 2
    assert await arrived(redis) == [b"good", b"better"]
    assert await redis.xlen(REFUSED) == 1


async def test_what_came_before_and_right_behind_such_an_id_is_neither_lost_nor_doubled(
    redis: AsyncRedis,
) -> None:
    await SpaceStore(redis).create("flights", ["flights/#"])
    await put(redis, "first", f"{LARGEST - 7}-1")  # a program with a clock of its own, far ahead
    assert await InboxMover(redis, "host").round() == 1
    await put(redis, "second", f"{LARGEST - 7}-2")
    await put(redis, "bad", f"{LARGEST + 1}-0")
    await put(redis, "unlucky")
    assert await InboxMover(redis, "host").round() == 1
    refused = [fields[b"payload"] for _, fields in await redis.xrange(REFUSED)]
    assert refused == [
        b"bad",
        b"unlucky",
    ]  # its id was too large too; it is not lost, but kept with the reason
    await put(redis, "third")
    assert await InboxMover(redis, "another").round() == 1
    assert await arrived(redis) == [b"first", b"second", b"third"]


async def test_an_entry_of_ten_thousand_fields_is_refused_and_kept_as_far_as_it_can_be(
    redis: AsyncRedis,
) -> None:
    await SpaceStore(redis).create("flights", ["flights/#"])
    fields = [word for n in range(10_000) for word in (f"field-{n}", str(n))]
    await redis.execute_command("XADD", INBOX, "*", *fields)  # no topic: it is no message
    await put(redis, "good")
    assert await InboxMover(redis, "host").round() == 1
    ((_, kept),) = await redis.xrange(REFUSED)
    assert kept[b"refused-fields-left-out"] == str(10_000 - KEPT_FIELDS).encode()
    assert kept[b"field-0"] == b"0"
    assert len(kept) == KEPT_FIELDS + 3
    assert await arrived(redis) == [b"good"]


async def test_a_message_of_ten_thousand_headers_goes_through(redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("flights", ["flights/#"])
    fields = [word for n in range(9_000) for word in (f"field-{n}", str(n))]
    await redis.execute_command("XADD", INBOX, "*", "topic", "flights/JFK", "payload", "many", *fields)
    await put(redis, "good")
    assert await InboxMover(redis, "host").round() == 2
    assert await arrived(redis) == [b"many", b"good"]


async def test_values_that_no_message_can_have_hold_up_nothing(redis: AsyncRedis) -> None:
    """Texts that are none, nesting without end, and headers larger than a payload may be."""
    await SpaceStore(redis).create(
        "flights",
        ["flights/#"],
        schema={"columns": [{"name": "x", "type": "string"}, {"name": "l", "type": "list<string>"}]},
    )
    mover = InboxMover(redis, "host")
    nested = "[" * 100_000
    for payload in (
        '{"x": "\\ud800", "l": []}',
        '{"x": "", "l": ["\\ud800"]}',
        '{"x": "", "\\ud800": 1}',
        nested,
        '{"x": "", "l": ' + nested,
        '{"x": "", "l": "' + nested + '"}',
        '{"x": "", "l": ' + nested + "]" * 100_000 + "}",
        '{"x": ' + "9" * 10_000 + ', "l": []}',
    ):
        await put(redis, payload)
    await redis.xadd(
        INBOX, {"topic": "flights/JFK", "payload": '{"x": "", "l": []}', "h": b"x" * (2**24 + 1)}
    )
    await put(redis, '{"x": "good", "l": []}')
    assert await mover.round() == 1
    assert await redis.xlen(INBOX) == 0
    assert await redis.xlen(REFUSED) == 9
    space = await SpaceStore(redis).get("flights")
    (batch,) = await AsyncLog(redis).read(space.streams()[0], 0)
    assert [message.values for message in to_messages(batch)] == [{"x": "good", "l": []}]
