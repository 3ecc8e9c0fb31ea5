"""Where readers begin: the right place among many boundaries, found without reading them all."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

import streamlease
from streamlease.protocol.errors import EpochsTruncated, HistoryTruncated
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import beginning, keys
from streamlease.streams.epochs.beginning import begin_at, begin_before, begin_earliest
from streamlease.streams.epochs.completed import completed
from streamlease.streams.epochs.core.boundaries import Boundary, MovedPart
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.redis.connection import AsyncRedis, Command, ask
from streamlease.streams.spaces.spaces import Space

Ends = dict[StreamId, int]


class Past:
    """Boundaries as a keeper would have recorded them, and where the streams ended at each."""

    def __init__(self, space: Space, count: int, random: Random) -> None:
        self.space = space
        self.ends: list[Ends] = [dict.fromkeys(space.streams(), 0)]
        self.bounds: list[Boundary] = []
        often = {stream: random.choice((0.9, 0.5, 0.02, 0.0)) for stream in space.streams()}
        for number in range(1, count + 1):
            ends, moved = dict(self.ends[-1]), []
            for stream in space.streams():
                if random.random() < often[stream]:
                    rows = random.randint(1, 3)
                    ends[stream] += rows
                    moved.append(MovedPart((number,), "p", 1, stream, rows))
            changed = {one.stream: ends[one.stream] for one in moved}
            bound = Boundary(number, number, 1, ((number + 1,),), ((number,),), changed, tuple(moved))
            self.bounds.append(bound)
            self.ends.append(ends)

    async def write(self, redis: AsyncRedis, *, forgotten: int, floors: Ends) -> None:
        """Have it in Redis, without the oldest boundaries, and with streams that were trimmed."""
        commands: list[Command] = [("DEL", keys.bounds(self.space.name))]
        for bound in self.bounds[forgotten:]:
            id = f"{bound.number}-0"
            commands.append(("XADD", keys.bounds(self.space.name), id, "b", bound.dump(), "t", 1))
        commands.append(("HSET", keys.state(self.space.name), "boundary", len(self.bounds)))
        for stream, end in self.ends[-1].items():
            commands.append(("HSET", keys.ends(self.space.name), str(stream), end))
            commands.append(("HSET", stream_meta(stream), "next", end, "floor", floors.get(stream, 0)))
        await ask(redis, commands)

    def places(self, forgotten: int) -> range:
        """Those at which somebody may begin."""
        return range(forgotten + 1 if forgotten else 0, len(self.ends))

    def is_whole(self, number: int, floors: Ends) -> bool:
        """Whether all behind that boundary is still there."""
        ends, newest = self.ends[number], self.ends[-1]
        return all(ends[one] >= min(floors.get(one, 0), newest[one]) for one in ends)

    def within(self, number: int, wanted: Ends) -> bool:
        """Whether no stream ends behind `wanted` there."""
        return all(self.ends[number][stream] <= end for stream, end in wanted.items())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
async def test_places_are_those_that_a_walk_over_all_boundaries_finds(
    embedded_redis_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "PAGE", 16)
    random = Random(seed)
    seen: Counter[str] = Counter()
    async with streamlease.connect(embedded_redis_url, embedded=False) as client:
        space = await client.create_space("space", topics=["t/#"], streams=4, epochs=1)
        past = Past(space, random.choice((1, 40, 300)), random)
        for forgotten in (0, len(past.bounds) // 3):
            trimmed = past.ends[forgotten + random.randrange(len(past.bounds) // 8 + 1)]
            floors = {one: end for one, end in trimmed.items() if random.random() < 0.7}
            await past.write(client.redis, forgotten=forgotten, floors=floors)
            began = await begin_earliest(client.redis, space)
            expected = next(one for one in past.places(forgotten) if past.is_whole(one, floors))
            assert (began.number, began.ends) == (expected, past.ends[expected])
            for _ in range(25):
                at = past.ends[random.randrange(len(past.ends))]
                wanted = {
                    stream: max(0, end + random.randint(-2, 2))
                    for stream, end in at.items()
                    if random.random() < 0.8
                }
                seen[await _check_at(client.redis, past, wanted, forgotten, floors)] += 1
                fits = [one for one in range(forgotten, len(past.ends)) if past.within(one, wanted)]
                before = await begin_before(client.redis, space, wanted)
                number = fits[-1] if fits else forgotten
                assert (before.number, before.ends) == (number, past.ends[number])
                assert (before.bound is None) == (number <= forgotten)
                epoch = random.randint(1, len(past.bounds))
                if epoch <= forgotten + bool(forgotten):
                    with pytest.raises(EpochsTruncated):
                        await completed(client.redis, space, (epoch,))
                else:
                    done = await completed(client.redis, space, (epoch,))
                    assert done is not None
                    assert (done.before, done.ends) == (past.ends[epoch - 1], past.ends[epoch])
    assert seen["found"], seen


async def _check_at(redis: AsyncRedis, past: Past, wanted: Ends, forgotten: int, floors: Ends) -> str:
    """Begin at offsets; what came of it."""
    fits = [one for one in past.places(forgotten) if past.within(one, wanted)]
    number = fits[-1] if fits else past.places(forgotten)[0]
    if not past.is_whole(number, floors):
        with pytest.raises(HistoryTruncated):
            await begin_at(redis, past.space, wanted)
        return "truncated"
    if not fits:
        with pytest.raises(EpochsTruncated):
            await begin_at(redis, past.space, wanted)
        return "forgotten"
    began = await begin_at(redis, past.space, wanted)
    assert (began.number, began.ends) == (number, past.ends[number])
    return "found"


async def test_an_old_place_is_found_without_reading_all_that_came_behind(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    real = beginning.parse_bounds

    def counted(space: str, reply: list[object]) -> list[Boundary]:
        nonlocal read
        read += len(reply)
        return real(space, reply)  # type: ignore[arg-type]

    async with streamlease.connect(embedded_redis_url, embedded=False) as client:
        space = await client.create_space("space", topics=["t/#"], streams=4, epochs=1)
        past = Past(space, 3000, Random(1))
        await past.write(client.redis, forgotten=0, floors={})
        monkeypatch.setattr(beginning, "parse_bounds", counted)
        for number in (1, 700, 1500, 2999):
            assert (await begin_at(client.redis, space, past.ends[number])).ends == past.ends[number]
        assert (await begin_earliest(client.redis, space)).number == 0
    assert read < 2000, read
