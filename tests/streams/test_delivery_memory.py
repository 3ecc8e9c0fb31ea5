"""What Redis remembers of a source that sends again: notes, incarnations, and who is the newest."""

from __future__ import annotations

import pytest

from streamlease.protocol.errors import Fenced, Unsupported
from streamlease.streams.imports.delivery_memory import DeliveryMemory, Note, SourceStanding
from streamlease.streams.imports.transfer import Item, Transfer
from streamlease.streams.log.keys import source_state
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.installation import installation
from streamlease.streams.spaces.spaces import SpaceStore

SOURCE, SLOTS = "mqtt:here:b", 4
NOTHING = (0, 0)


async def begin(redis: AsyncRedis) -> DeliveryMemory:
    return await DeliveryMemory.begin(redis, SOURCE, SLOTS, NOTHING)


async def test_the_last_notes_are_kept_in_order_and_numbers_go_on(redis: AsyncRedis) -> None:
    first = await begin(redis)
    assert (first.notes, first.counted, first.filters) == ((), (0, 0), None)
    notes = [Note(first.position(), packet, b"%d" % packet) for packet in range(1, 7)]
    await first.note(notes[:3], (3, 3))
    await first.note(notes[3:], (6, 6))
    await first.subscribed(["a/#"])
    second = await begin(redis)
    assert second.notes == tuple(notes[-SLOTS:])
    assert (second.counted, second.filters) == ((6, 6), ("a/#",))
    assert second.incarnation > first.incarnation
    assert second.position() == (second.incarnation, 7)
    assert (await first.is_newest(), await second.is_newest()) == (False, True)


@pytest.mark.parametrize(("field", "junk"), [("noted:0", b"1 2"), ("counted", b"x y"), ("filters", b"7")])
async def test_notes_that_cannot_be_read_are_told(redis: AsyncRedis, field: str, junk: bytes) -> None:
    await begin(redis)
    await redis.hset(source_state(SOURCE), field, junk)
    with pytest.raises(Unsupported, match=f"what is known of {SOURCE} is damaged.*: restore key sl:"):
        await begin(redis)


async def test_incarnations_rise_above_what_stands_in_the_streams(redis: AsyncRedis) -> None:
    memory = await DeliveryMemory.begin(redis, SOURCE, SLOTS, (2**50, 1))
    assert memory.incarnation > 2**50


async def test_what_was_appended_is_seen_until_a_later_process_appends(redis: AsyncRedis) -> None:
    spaces = SpaceStore(redis)
    space = await spaces.create("s", ["s/#"], streams=1)
    await Transfer(redis, SOURCE, spaces=spaces, alone=True).put(
        [Item((7, 1), "s/a", b"1"), Item((7, 2), "s/a", b"2")]
    )
    standing = await SourceStanding.look(redis, SOURCE, [space])
    assert standing.newest == (7, 2)
    assert [standing.has(space, "s/a", (7, n)) for n in (1, 2, 3)] == [True, True, False]
    assert not standing.has(space, "s/a", (6, 1))
    await Transfer(redis, SOURCE, spaces=spaces, alone=True).put([Item((8, 3), "s/a", b"3")])
    later = await SourceStanding.look(redis, SOURCE, [space])
    assert not later.has(space, "s/a", (7, 1))


async def test_a_process_that_was_followed_does_not_take_the_other_place_for_its_own(
    redis: AsyncRedis,
) -> None:
    """It would acknowledge what is nowhere."""
    spaces = SpaceStore(redis)
    await spaces.create("s", ["s/#"], streams=1)
    old = Transfer(redis, SOURCE, spaces=spaces, alone=True)
    await old.put([Item((7, 1), "s/a", b"1")])
    await Transfer(redis, SOURCE, spaces=spaces, alone=True).put([Item((8, 2), "s/a", b"2")])
    with pytest.raises(Fenced, match="was started again elsewhere"):
        await old.put([Item((7, 3), "s/a", b"3")])


async def test_an_installation_keeps_its_name(redis: AsyncRedis) -> None:
    assert await installation(redis) == await installation(redis)
