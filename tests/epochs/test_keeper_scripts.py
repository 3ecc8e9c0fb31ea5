"""What decides and records boundaries, in each state in which a keeper may find a space."""

from __future__ import annotations

from typing import Any

import pytest

from streamlease.protocol.errors import Fenced
from streamlease.streams.epochs import keys
from streamlease.streams.log.keys import stream_log, stream_meta, stream_news, stream_publishers
from streamlease.streams.redis.connection import Argument, AsyncRedis, ask
from streamlease.streams.redis.scripts import load_script
from tests.epochs.staging import SPACE, STREAMS, stage, staged_fields
from tests.epochs.test_lines import entered

STATE, LINES, WRITERS = keys.state(SPACE), keys.lines(SPACE), keys.writers(SPACE)
BOUNDS, ENDS, NEWS = keys.bounds(SPACE), keys.ends(SPACE), keys.news(SPACE)


async def run(redis: AsyncRedis, name: str, wanted: list[str], *args: Argument) -> Any:
    return await load_script("streamlease.streams.epochs", name).run(redis, wanted, args)


async def stamps(redis: AsyncRedis) -> dict[int, bytes]:
    """When each line was written."""
    (lines,) = await ask(redis, [("XRANGE", LINES, "-", "+")])
    return {int(id.partition(b"-")[0]): dict(zip(of[::2], of[1::2], strict=True))[b"h"] for id, of in lines}


async def decide(redis: AsyncRedis, term: int, number: int, upto: int, stamp: bytes = b"") -> Any:
    found = stamp or (await stamps(redis))[upto]
    return await run(redis, "decide", [STATE, LINES], term, number, upto, found)


async def record(redis: AsyncRedis, term: int, number: int, upto: int, stamp: bytes = b"") -> Any:
    found = stamp or (await stamps(redis))[upto]
    about = (term, number, b"{%d}" % number, NEWS, upto, found, "s.0.0", 7)
    return await run(redis, "record", [STATE, BOUNDS, ENDS, LINES], *about)


async def kept(redis: AsyncRedis) -> tuple[Any, ...]:
    """All that they write, but the lineage."""
    state, bounds, ends = await ask(
        redis, [("HMGET", STATE, "term", "boundary", "pending"), ("XLEN", BOUNDS), ("HGET", ENDS, "s.0.0")]
    )
    return (*state, bounds, ends)


async def test_a_boundary_is_decided_and_recorded_once(redis: AsyncRedis) -> None:
    await entered(redis, "a")
    await entered(redis, "b")
    assert await run(redis, "take_over", [STATE], 2) == [b"taken"]
    async with redis.pubsub() as listening:
        await listening.subscribe(NEWS)
        await listening.get_message(timeout=20)
        assert await record(redis, 2, 1, 1) == [b"other", 0], "it was not decided"
        assert await decide(redis, 2, 2, 1) == [b"other", 0], "it is not the next one"
        assert await kept(redis) == (b"2", None, None, 0, None)
        assert await decide(redis, 2, 1, 1) == [b"decided", 1]
        assert await decide(redis, 3, 1, 2) == [b"decided", 1], "what was decided holds, whoever asks"
        assert await kept(redis) == (b"3", None, b"1 1", 0, None)
        assert await record(redis, 3, 1, 2) == [b"other", 0], "it was decided otherwise"
        assert await record(redis, 3, 1, 1) == [b"recorded"]
        assert await record(redis, 3, 1, 1) == [b"recorded"], "again"
        assert await kept(redis) == (b"3", b"1", None, 1, b"7")
        pushed = await listening.get_message(timeout=20)
        assert pushed is not None and pushed["data"] == b"boundary 1"
    assert await decide(redis, 3, 1, 2) == [b"other", 1], "it is over"


@pytest.mark.parametrize("act", ["take_over", "decide", "record", "record again"])
async def test_a_keeper_of_a_lower_term_writes_nothing(redis: AsyncRedis, act: str) -> None:
    await entered(redis, "a")
    await run(redis, "take_over", [STATE], 3)
    if act != "decide":
        await decide(redis, 3, 1, 1)
    if act == "record again":
        await record(redis, 3, 1, 1)
    before = await kept(redis)
    if act == "take_over":
        said = await run(redis, "take_over", [STATE], 2)
    else:
        said = await (decide if act == "decide" else record)(redis, 2, 1, 1)
    assert said == [b"fenced", 3]
    assert await kept(redis) == before


async def test_lines_that_others_took_the_place_of_are_not_folded(redis: AsyncRedis) -> None:
    """A failover lost the line that the keeper has read, and another one has its number."""
    await entered(redis, "a")
    read = (await stamps(redis))[1]
    await run(redis, "take_over", [STATE], 1)
    assert await decide(redis, 1, 1, 1, read + b"0") == [b"other", 0]
    assert await decide(redis, 1, 1, 1, read) == [b"decided", 1]
    assert await record(redis, 1, 1, 1, read + b"0") == [b"other", 0]
    assert await record(redis, 1, 1, 1, read) == [b"recorded"]


async def test_an_incarnation_that_was_issued_twice_writes_with_one_token(redis: AsyncRedis) -> None:
    writer = await entered(redis, "a")
    (held,) = await ask(redis, [("HGET", WRITERS, "a")])
    incarnation, _, *rest = held.split(b" ")
    await ask(redis, [("HSET", WRITERS, "a", b" ".join([incarnation, b"another", *rest]))])
    with pytest.raises(Fenced):
        await writer.advance(((5,),), [])
    assert list(await stamps(redis)) == [1]


STREAM = STREAMS[0]
META, LOG = stream_meta(STREAM), stream_log(STREAM)
PIECES: list[Argument] = ["4 a 1", 0, 2, "4 b 1", 2, 3]
"""Two messages of one publisher, and one of another, all of epoch 4."""


async def move(redis: AsyncRedis, number: int = 1, upto: int = 1, budget: int = 9, here: bool = False) -> Any:
    wanted = [META, stream_publishers(STREAM), LOG, keys.staged_log(STREAM), keys.staged_epochs(STREAM)]
    args = ("!epochs", number, upto, budget, stream_news(STREAM), *PIECES)
    return await run(redis, "move", [*wanted, STATE] if here else wanted, *args)


async def staged(redis: AsyncRedis, state: str = "epochs") -> None:
    await redis.hset(META, "state", state)
    await stage(redis, 0, (4,), ["a1", "a2"], "a")
    await stage(redis, 0, (4,), ["b1"], "b")


async def moved(redis: AsyncRedis) -> list[bytes]:
    return [fields[b"p"] for _, fields in await redis.xrange(LOG)]


@pytest.mark.parametrize("budget", [1, 2, 9])
async def test_what_is_complete_is_moved_once_in_its_order(redis: AsyncRedis, budget: int) -> None:
    await staged(redis)
    async with redis.pubsub() as listening:
        await listening.subscribe(stream_news(STREAM))
        await listening.get_message(timeout=20)
        said = await move(redis, budget=budget)
        if budget < 3:
            assert said == [b"moved", 1, 2]
            said = await move(redis, budget=budget)
        assert said == [b"moved", 2, 2, 1, 3]
        assert await move(redis, budget=budget) == said, "again"
        ends = [await listening.get_message(timeout=20) for _ in range(2 if budget < 3 else 1)]
        assert [(one or {})["data"] for one in ends][-1] == b"3"
    assert await moved(redis) == [b"a1", b"a2", b"b1"]
    entries = await redis.xrange(LOG)
    times = [int(fields[b"a"]) for _, fields in entries]
    assert times == sorted({*times}), "each entry is later than the one before"
    held = sum(len(name) + len(value) for _, fields in entries for name, value in fields.items())
    assert await redis.hmget(META, "next", "bytes") == [b"3", b"%d" % held]
    assert (await redis.xlen(keys.staged_log(STREAM)), await staged_fields(redis, 0)) == (0, {})


async def test_only_what_is_of_both_the_epoch_and_the_publisher_is_moved(redis: AsyncRedis) -> None:
    """Redis lost what was staged, and has others' messages at these offsets."""
    await stage(redis, 0, (4,), ["of another"], "c")
    await stage(redis, 0, (5,), ["of another epoch"], "a")
    await stage(redis, 0, (4,), ["b1"], "b")
    await redis.hset(META, "state", "epochs")
    assert await move(redis) == [b"moved", 2, 0, 1, 1]
    assert await moved(redis) == [b"b1"]
    assert await redis.xlen(keys.staged_log(STREAM)) == 2


@pytest.mark.parametrize("state", ["sealed", "pending", "open"])
async def test_a_stream_that_takes_nothing_from_a_keeper_says_so(redis: AsyncRedis, state: str) -> None:
    await staged(redis, state)
    said = await move(redis)
    assert (said[0], await moved(redis)) == (
        (b"moved", [b"a1", b"a2", b"b1"]) if state == "open" else (state.encode(), [])
    )


async def test_nothing_is_moved_where_somebody_elses_entry_or_no_stream_is(redis: AsyncRedis) -> None:
    await staged(redis)
    await redis.xadd(LOG, {"x": "y"}, id="7-1")
    assert await move(redis) == [b"foreign", b"7-1"]
    await redis.delete(META)
    assert await move(redis) == [b"unknown"]


async def test_a_decision_that_redis_lost_or_has_otherwise_moves_nothing(redis: AsyncRedis) -> None:
    await staged(redis)
    for pending in ("", "1 2", "2 1"):
        await redis.hset(STATE, "pending", pending)
        assert await move(redis, here=True) == [b"undecided"]
    await redis.hset(STATE, "pending", "1 1")
    assert (await move(redis, here=True))[0] == b"moved"
    assert await move(redis, upto=2) == [b"past", 1, 1], "it was decided otherwise"
    assert await move(redis, number=0) == [b"past", 1, 1], "a later one is there"
    assert await moved(redis) == [b"a1", b"a2", b"b1"]


# ---------------------------------------------------------------- what a keeper forgets


async def snapshot(redis: AsyncRedis, term: int, folded: int, boundary: int, stamp: bytes) -> Any:
    return await run(redis, "snapshot", [STATE, LINES], term, folded, f"{{{folded}}}", boundary, stamp)


async def test_a_snapshot_takes_the_place_of_its_lines(redis: AsyncRedis) -> None:
    for name in ("a", "b", "c"):
        await entered(redis, name)
    written = await stamps(redis)
    assert await snapshot(redis, 2, 1, 0, written[2]) == [b"other", 0], "the line is another"
    assert await snapshot(redis, 2, 2, 1, written[2]) == [b"other", 0], "the boundary is another"
    assert (await redis.hget(STATE, "snapshot"), await redis.xlen(LINES)) == (None, 3)
    assert await snapshot(redis, 2, 1, 0, written[1]) == [b"kept"]
    assert [*await stamps(redis)] == [2, 3]
    assert await snapshot(redis, 2, 1, 0, written[1]) == [b"kept"], "again"
    assert await snapshot(redis, 2, 2, 0, written[2]) == [b"kept"]
    late = await redis.hmget(STATE, "term", "folded", "snapshot", "stamp")
    assert late == [b"2", b"2", b"{2}", written[2]]
    assert await snapshot(redis, 3, 1, 0, written[1]) == [b"kept"], "a newer one is there"
    assert await snapshot(redis, 1, 3, 0, written[3]) == [b"fenced", 2]
    assert await redis.hmget(STATE, "term", "folded", "snapshot", "stamp") == late
    assert [*await stamps(redis)] == [3]
    await redis.hset(STATE, "boundary", 4)
    assert await snapshot(redis, 2, 3, 0, written[3]) == [b"other", 4]
    assert await snapshot(redis, 2, 3, 4, written[3] + b"0") == [b"other", 4]
    assert await snapshot(redis, 2, 3, 4, written[3]) == [b"kept"]
    assert await stamps(redis) == {}


async def test_boundaries_are_forgotten_once_with_what_they_leave_behind(redis: AsyncRedis) -> None:
    base = keys.base(SPACE)

    async def forget(term: int, first: int, *ends: Argument) -> Any:
        return await run(redis, "forget", [BOUNDS, base, STATE], term, first, *ends)

    assert await forget(1, 3, "s.0.0", 5) == [b"forgotten", 0], "there is none"
    for number in range(1, 6):
        await redis.xadd(BOUNDS, {"b": "x"}, id=f"{number}-0")
    assert await forget(1, 1, "s.0.0", 5) == [b"forgotten", 0]
    assert await redis.exists(base) == 0
    await redis.hset(STATE, "term", 2)
    assert await forget(1, 3, "s.0.0", 5) == [b"fenced", 2]
    assert (await redis.exists(base), await redis.xlen(BOUNDS)) == (0, 5)
    assert await forget(2, 3, "s.0.0", 5, "s.0.1", 7) == [b"forgotten", 2]
    assert await redis.hgetall(base) == {b"s.0.0": b"5", b"s.0.1": b"7"}
    assert [id for id, _ in await redis.xrange(BOUNDS)] == [b"3-0", b"4-0", b"5-0"]
    assert await forget(3, 3, "s.0.0", 1) == [b"forgotten", 0], "late"
    assert await forget(3, 4, "s.0.0", 9) == [b"forgotten", 1]
    assert await redis.hgetall(base) == {b"s.0.0": b"9", b"s.0.1": b"7"}
