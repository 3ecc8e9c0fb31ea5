"""Offsets that are taken out of use before or while a boundary is moved: all that was moved is found.

A consumer had read there what Redis lost since, as in a failover; it says so between two calls of a keeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from streamlease.agent.client import Client, connect
from streamlease.agent.epochs.epoch_reading import EpochSubscription
from streamlease.agent.epochs.group_reader import EpochPart
from streamlease.protocol.ids import StreamId
from streamlease.registry.starts import Start
from streamlease.streams.epochs import keeping
from streamlease.streams.epochs.completed import completed
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import AsyncRedis
from tests.epochs.playing import SECONDS, hand, kept, settled, shown
from tests.epochs.staging import boundaries

pytestmark = pytest.mark.usefixtures("kept_by_hand")

Hole = tuple[int, int | str]

STREAM = StreamId("space", 0, 0)
FIRST, SECOND = ["a", "b", "c", "d"], ["e", "f"]


@pytest.fixture
async def client(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """Two messages are moved at a time."""
    monkeypatch.setattr(keeping, "PIECE_ROWS", 2)
    monkeypatch.setattr(keeping, "MOVE_ENTRIES", 2)
    async with connect(redis_url) as client:
        await client.create_space("space", ["space/#"], streams=1, epochs=1)
        yield client


async def moved(client: Client, patch: pytest.MonkeyPatch, raises: Sequence[int], *, twice: bool) -> Boundary:
    """Move two epochs of four and two messages as one boundary; behind each call offsets below one of
    `raises` are taken out of use; with `twice` the answer of the last one is lost, and it is repeated."""
    made, keeper = await hand(client.redis), await kept(client)
    await made.send(0, *FIRST)
    await made.send(1, *SECOND)
    await made.advance(2)
    left, run = [*raises], keeping.run_settled

    async def raising(redis: AsyncRedis, calls: Any, wanted: Any) -> Any:
        done = await run(redis, calls, wanted)
        if done[0][0].reply[0] == b"moved" and left:
            await AsyncLog(redis).never_again(STREAM, left.pop(0))
            if twice and not left:
                done = await run(redis, calls, wanted)
        return done

    patch.setattr(keeping, "run_settled", raising)
    await settled(keeper)
    assert left == []
    (bound,) = await boundaries(client.redis)
    return bound


async def all_of(subscription: EpochSubscription, last: int = 2) -> tuple[list[Hole], list[Any]]:
    """The holes and the items, up to the frontier `last`."""
    holes: list[Hole] = []
    items: list[Any] = []
    async with asyncio.timeout(SECONDS), subscription as reader:
        while not items or items[-1][:2] != ("frontier", [(last,)]):
            try:
                items.append(shown(await anext(reader)))
            except MissingOffsets as hole:
                assert isinstance(hole.asked, int)
                holes.append((hole.asked, hole.oldest))
    return holes, items


async def test_a_gap_is_told_and_what_is_around_it_is_whole(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One inside an epoch, one between two."""
    bound = await moved(client, monkeypatch, [5, 10], twice=False)
    assert (bound.ends, bound.gaps) == ({STREAM: 12}, {STREAM: ((2, 5), (7, 10))})
    holes, items = await all_of(client.history("space/#", epochs="atomic"))
    assert holes == [(2, 5), (7, 10)]
    assert items == [((0,), FIRST), ((1,), SECOND), ("frontier", [(2,)], {(0,): -1, (2,): 1})]


async def test_who_reads_what_is_staged_and_comes_late_has_all(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await moved(client, monkeypatch, [5, 10], twice=False)
    holes, items = await all_of(client.listen("space/#", start="earliest", epochs="eager"))
    assert holes == [(2, 5), (7, 10)]
    found: dict[Any, list[str]] = {}
    for item in items:
        if item[1] == "a":
            found.setdefault(item[0], []).extend(item[2])
    assert found == {(0,): FIRST, (1,): SECOND}


async def test_a_group_has_each_epoch_whole(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await moved(client, monkeypatch, [5, 10], twice=False)
    found: list[Any] = []
    async with client.subscribe("$shared/g/space/#", start="earliest", epochs="atomic") as reader:
        async with asyncio.timeout(SECONDS):
            while [(2,)] not in found:
                item = await anext(reader)
                if isinstance(item, EpochPart):
                    await item.commit()
                    texts = [one.payload.decode() for one in item.messages]
                    found.append((item.epoch, item.whole, item.start, item.end, texts))
                else:
                    found.append([*item.lower])
    assert found == [[(0,)], ((0,), True, 0, 7, FIRST), ((1,), True, 10, 12, SECOND), [(2,)]]


async def test_where_an_epoch_stands_is_known(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await moved(client, monkeypatch, [5, 10], twice=False)
    space = (await client.spaces.look()).get("space")
    places = [await completed(client.redis, space, (number,)) for number in (0, 1)]
    assert [one and (one.before, one.behind) for one in places] == [
        ({STREAM: 0}, {STREAM: 7}),
        ({STREAM: 7}, {STREAM: 12}),
    ]


async def test_a_gap_behind_all_is_none_of_the_boundary(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last answer is lost, and offsets are taken out of use before the call is repeated."""
    bound = await moved(client, monkeypatch, [5, 10, 20], twice=True)
    assert (bound.ends, bound.gaps) == ({STREAM: 12}, {STREAM: ((2, 5), (7, 10))})
    holes, items = await all_of(client.history("space/#", epochs="atomic"))
    assert holes == [(2, 5), (7, 10)]
    assert items[:2] == [((0,), FIRST), ((1,), SECOND)]


async def test_who_comes_back_to_a_gap_gets_nothing_a_second_time(client: Client) -> None:
    """Offsets behind a boundary are taken out of use, and the next boundary comes behind them."""
    made, keeper = await hand(client.redis), await kept(client)
    await made.send(0, *FIRST)
    await made.advance(1)
    await settled(keeper)
    await AsyncLog(client.redis).never_again(STREAM, 7)
    await made.send(1, *SECOND)
    await made.advance(2)
    await settled(keeper)
    bounds = await boundaries(client.redis)
    assert [(one.ends, one.gaps) for one in bounds] == [({STREAM: 4}, {}), ({STREAM: 9}, {STREAM: ((4, 7),)})]
    starts: list[tuple[Start, list[list[str]]]] = [
        ({str(STREAM): 4}, [SECOND]),
        ("earliest", [FIRST, SECOND]),
    ]
    for start, texts in starts:
        holes, items = await all_of(client.listen("space/#", start=start, epochs="atomic"))
        assert holes == [(4, 7)]
        assert [item[1] for item in items if isinstance(item[0], tuple)] == texts
    space = (await client.spaces.look()).get("space")
    place = await completed(client.redis, space, (1,))
    assert place is not None
    assert (place.before, place.behind) == ({STREAM: 7}, {STREAM: 9})


async def test_a_stream_that_had_nothing_yet_begins_with_a_gap(client: Client) -> None:
    """All of it was lost before anything was recorded."""
    made, keeper = await hand(client.redis), await kept(client)
    await AsyncLog(client.redis).never_again(STREAM, 21)
    await made.send(0, *FIRST)
    await made.advance(1)
    await settled(keeper)
    (bound,) = await boundaries(client.redis)
    assert (bound.ends, bound.gaps) == ({STREAM: 25}, {STREAM: ((0, 21),)})
    holes, items = await all_of(client.listen("space/#", start="earliest", epochs="atomic"), 1)
    assert holes == [(0, 21)]
    assert items[0] == ((0,), FIRST)
