"""A part of the history by epochs, without Java."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from streamlease.protocol.errors import EpochsTruncated, HistoryTruncated, InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.spark.reading.batch_read import batch_reader
from streamlease.spark.schema import readable
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.keeping import Keeper
from streamlease.streams.epochs.stored import read_bounds
from streamlease.streams.redis.connection import ask
from streamlease.streams.spaces.retention import Retention, Trim, trim
from tests.epochs.playing import Hand, hand, kept
from tests.spark.refusals import one_line
from tests.spark.test_batch import rows
from tests.spark.test_epochs_source import ROWS, Play
from tests.spark.world import SPACE, World


@pytest.fixture
def play(make_world: Callable[..., World]) -> Play:
    """Epochs 0 to 7, each of five messages; 3, 4 and 5 completed together, and 8 is open."""
    made = Play(make_world(epochs=1))
    for epoch in range(8):
        made.epoch(keep=epoch not in (3, 4))
    made.epoch(complete=False)
    return made


def epochs(play: Play, **options: Any) -> list[int]:
    """The epochs that are read, each of which must be whole."""
    named = {"redis": play.world.url, "subscribe": "t/#", **{name: str(one) for name, one in options.items()}}
    found = [row["epoch"][0] for row in rows(batch_reader(readable(named), named))]
    assert all(found.count(epoch) == ROWS for epoch in found)
    return sorted({*found})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingEpoch": 0}, range(8)),
        ({"startingEpoch": 2}, range(2, 8)),
        ({"startingEpoch": 4}, range(4, 8)),
        ({"startingEpoch": 8}, ()),
        ({"endingEpoch": 0}, range(1)),
        ({"endingEpoch": 2}, range(3)),
        ({"endingEpoch": 4}, range(5)),
        ({"endingEpoch": 7}, range(8)),
        ({"startingEpoch": 4, "endingEpoch": 4}, (4,)),
        ({"startingEpoch": "[1]", "endingEpoch": "[6]"}, range(1, 7)),
        ({"asOfEpoch": 2}, range(3)),
        ({"asOfEpoch": 4}, range(6)),  # with what completed at the same boundary
        ({"startingEpoch": 3, "asOfEpoch": 6}, range(3, 7)),
    ],
)
def test_just_these_epochs_are_read(play: Play, options: dict[str, Any], expected: Any) -> None:
    assert epochs(play, **options) == [*expected]


def test_what_completes_later_changes_nothing(play: Play) -> None:
    before = epochs(play, asOfEpoch=7)
    play.epoch()
    play.epoch()
    assert epochs(play, asOfEpoch=7) == before == [*range(8)]
    assert epochs(play, startingEpoch=7) == [7, 8, 9, 10]


def test_skipped_epochs_are_completed_too(make_world: Callable[..., World]) -> None:
    play = Play(make_world(epochs=1))
    play.epoch()
    play.next = 7
    play.epoch()
    assert epochs(play, endingEpoch=5) == [0]
    assert epochs(play, startingEpoch=3) == [7]
    assert epochs(play, asOfEpoch=3) == [0, 7], "3 is completed at the boundary that brings 7"


def test_tuples_have_their_snapshots(make_world: Callable[..., World]) -> None:
    world = make_world(epochs=2)
    call, client = world._thread.call, world._client
    made, keeper = call(hand(client.redis, space=SPACE)), call(kept(client, SPACE))

    async def step(epoch: tuple[int, int], *frontier: tuple[int, int]) -> None:
        await made.send(epoch, "x", shard=0, topic="t/x")
        await made.send(epoch, "y", shard=1, topic="t/x")
        await made.advance(*frontier)
        while await keeper.turn():
            pass

    call(step((0, 1), (0, 2), (1, 0)))
    call(step((1, 1), (0, 2), (2, 0)))
    named = {"redis": world.url, "subscribe": "t/#"}

    def read(**options: str) -> list[Any]:
        given = named | options
        return sorted(row["epoch"] for row in rows(batch_reader(readable(given), given)))

    assert read(asOfEpoch="[0, 1]") == [[0, 1]] * 2
    assert read(asOfEpoch="[1, 0]") == [[0, 1]] * 2 + [[1, 1]] * 2
    with pytest.raises(InvalidOption, match=r"not at or above \[0, 2\] or \[2, 0\] is"):
        read(asOfEpoch="[1, 2]")
    with pytest.raises(InvalidOption, match=r"'startingEpoch' needs epochs that are integers.* 2 dimensions"):
        read(startingEpoch="[1, 0]")


@pytest.mark.slow
def test_the_state_as_of_an_epoch_while_writers_go_on(make_world: Callable[..., World]) -> None:
    """Three writers and a keeper at work: each state is that of one boundary in all streams, and stays it."""
    world, sent = make_world(epochs=1), dict[int, Counter[bytes]]()
    call, client, chance = world._thread.call, world._client, random.Random(7)
    begun, over = threading.Event(), threading.Event()

    async def write(writer: Hand, keeper: Keeper) -> None:
        """Some messages of an epoch or of none, then on to a later one; now and then a turn of the keeper."""
        epoch = 0
        while not over.is_set():
            for number in range(chance.randrange(4)):
                text = f"{writer.name} {epoch} {number}"
                sent.setdefault(epoch, Counter())[text.encode()] += 1
                await writer.send(epoch, text, shard=chance.randrange(3), topic="t/x")
            epoch += chance.choice((1, 1, 2))
            await writer.advance(epoch)
            if chance.random() < 0.5:
                async with turns:
                    while await keeper.turn():
                        pass
            if epoch > 4:
                begun.set()
        await writer.leave()

    async def all_write() -> None:
        writers = [await hand(client.redis, name, SPACE) for name in "abc"]
        keeper = await kept(client, SPACE)
        async with asyncio.TaskGroup() as group:
            for one in writers:
                group.create_task(write(one, keeper))

    turns = asyncio.Lock()
    writing = threading.Thread(target=call, args=(all_write(),), daemon=True)
    writing.start()
    assert begun.wait(60)
    states: dict[int, tuple[int, Counter[bytes]]] = {}
    newest, deadline = 0, time.monotonic() + 60
    while len(states) < 12 and time.monotonic() < deadline:
        bounds = call(read_bounds(client.redis, SPACE, 0, 100_000))
        if not bounds or bounds[-1].lower[0][0] <= newest + 1:
            continue
        newest = bounds[-1].lower[0][0] - 1
        asked = chance.choice([newest, chance.randrange(newest + 1)])
        states[asked] = _as_of(world, asked)
    for asked, (end, found) in states.items():
        expected = sum((sent.get(epoch, Counter()) for epoch in range(end)), Counter[bytes]())
        assert found == expected and end > asked, "each epoch whole, up to one boundary"
    assert writing.is_alive(), "they went on all the time"
    over.set()
    writing.join(60)
    assert not writing.is_alive() and len(states) == 12
    assert {asked: _as_of(world, asked) for asked in states} == states, "what came later changes nothing"
    ends = [bound.lower[0][0] for bound in call(read_bounds(client.redis, SPACE, 0, 100_000)) if bound.lower]
    assert {asked: next(end for end in ends if end > asked) for asked in states} == {
        asked: end for asked, (end, _) in states.items()
    }


def _as_of(world: World, epoch: int) -> tuple[int, Counter[bytes]]:
    """What is there as of an epoch, and which epoch is the first that is not."""
    named = {"redis": world.url, "subscribe": "t/#", "asOfEpoch": str(epoch)}
    found = rows(batch_reader(readable(named), named))
    assert all(int(row["payload"].split()[1]) == row["epoch"][0] for row in found)
    bounds = world._thread.call(read_bounds(world._client.redis, SPACE, 0, 100_000))
    end = next(bound.lower[0][0] for bound in bounds if not bound.lower or bound.lower[0][0] > epoch)
    return end, Counter(row["payload"] for row in found)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"asOfEpoch": 8}, "^option 'asOfEpoch' is 8, which is not completed in space s"),
        ({"endingEpoch": 9}, "^option 'endingEpoch' is 9, which is not completed"),
        ({"startingEpoch": "x"}, "^option 'startingEpoch' is 'x': give an epoch"),
        ({"startingEpoch": -1}, "give an epoch, such as 4"),
        ({"startingEpoch": "[1, 2]"}, "2 dimensions, and the space 1"),
        ({"startingEpoch": 3, "endingEpoch": 2}, "^option 'endingEpoch' is below 'startingEpoch' 3"),
        ({"asOfEpoch": 3, "endingEpoch": 2}, "^options 'asOfEpoch' and 'endingEpoch' contradict"),
        ({"startingEpoch": 3, "startingTimestamp": 2}, "'startingTimestamp' contradict"),
    ],
)
def test_what_is_refused(play: Play, options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidOption, match=match) as refused:
        epochs(play, **options)
    one_line(refused.value)


def test_a_space_without_epochs(world: World) -> None:
    named = {"redis": world.url, "subscribe": "t/#", "asOfEpoch": "1"}
    with pytest.raises(InvalidOption, match="space s, which has no epochs") as refused:
        rows(batch_reader(readable(named), named))
    one_line(refused.value)


def test_what_retention_removed_is_told(play: Play) -> None:
    redis, call = play.world._client.redis, play.world._thread.call
    first = StreamId(SPACE, 0, 0)
    call(trim(redis, Trim(first, Retention(messages=1), 100)))
    with pytest.raises(HistoryTruncated):
        epochs(play, startingEpoch=1)
    named = {"redis": play.world.url, "subscribe": "t/#", "startingEpoch": "1", "failOnDataLoss": "false"}
    assert len(rows(batch_reader(readable(named), named))) < 7 * ROWS
    assert call(ask(redis, [("XDEL", keys.bounds(SPACE), "1-0", "2-0")])) == [2]
    with pytest.raises(EpochsTruncated, match="epoch 2 of space s was completed at boundary 3 or before"):
        epochs(play, asOfEpoch=2)
