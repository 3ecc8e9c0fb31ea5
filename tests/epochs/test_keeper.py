"""A keeper's acts on every kind of server, and what the next one makes of a crash at each point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamlease.protocol.errors import EpochsTruncated, Fenced, StoreRefused, StreamleaseError
from streamlease.streams.epochs import keeping, keys, tidying
from streamlease.streams.epochs.beginning import begin_earliest
from streamlease.streams.epochs.keeping import Keeper
from streamlease.streams.epochs.stored import read_base, read_bounds
from streamlease.streams.epochs.writing import LineWriter, lose
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.spaces.retention import Retention, Trim, trim
from streamlease.streams.spaces.spaces import Generation, Space
from streamlease.testing.memory.memory_connection import connect_redis
from streamlease.testing.memory.memory_server import MemoryServer
from tests.epochs.playing import replicated_server
from tests.epochs.staging import (
    SPACE,
    STREAMS,
    boundaries,
    contents,
    keeper_of,
    make_keeper,
    stage,
    staged_fields,
)


async def entered(redis: AsyncRedis, name: str = "a") -> LineWriter:
    writer = LineWriter(redis, SPACE, name)
    await writer.enter()
    return writer


async def test_what_is_complete_is_moved_and_recorded(redis: AsyncRedis) -> None:
    a = await entered(redis)
    keeper = await keeper_of(redis)
    assert not await keeper.turn()
    parts = [await stage(redis, 0, (0,), ["x", "y"]), await stage(redis, 2, (0,), ["z"])]
    assert await contents(redis, 0) == []
    await a.advance(((3,),), parts)
    assert await keeper.turn()
    assert not await keeper.turn()
    assert await contents(redis, 0) == ["x", "y"]
    assert await contents(redis, 2) == ["z"]
    (bound,) = await boundaries(redis)
    assert (bound.number, bound.lower, bound.upper) == (1, ((3,),), ((0,),))
    assert bound.ends == {STREAMS[0]: 2, STREAMS[2]: 1}
    assert [(one.epoch, one.name, one.stream.shard, one.rows, one.lost) for one in bound.moved] == [
        ((0,), "a", 0, 2, 0),
        ((0,), "a", 2, 1, 0),
    ]
    assert await staged_fields(redis, 0) == {}
    (left,) = await ask(redis, [("XLEN", keys.staged_log(STREAMS[0]))])
    assert left == 0


async def test_epochs_stand_in_their_order_then_by_publisher(redis: AsyncRedis) -> None:
    b, a = await entered(redis, "b"), await entered(redis, "a")
    keeper = await keeper_of(redis)
    late = await stage(redis, 0, (1,), ["b1"], "b")
    early = await stage(redis, 0, (0,), ["b0"], "b")
    other = await stage(redis, 0, (0,), ["a0"], "a")
    await b.advance(((2,),), [late, early])
    assert not await keeper.turn()
    await a.advance(((2,),), [other])
    assert await keeper.turn()
    assert await contents(redis, 0) == ["a0", "b0", "b1"]


async def test_a_skipped_epoch_moves_the_frontier_without_data(redis: AsyncRedis) -> None:
    a = await entered(redis)
    keeper = await keeper_of(redis)
    await a.advance(((9,),), [])
    assert await keeper.turn()
    (bound,) = await boundaries(redis)
    assert (bound.lower, bound.ends, bound.moved) == (((9,),), {}, ())


async def test_what_an_incarnation_had_not_given_up_is_dropped(redis: AsyncRedis) -> None:
    old = await entered(redis)
    keeper = await keeper_of(redis)
    kept = await stage(redis, 0, (0,), ["kept"])
    await stage(redis, 0, (1,), ["dropped", "too"])
    await old.advance(((1,),), [kept])
    new = await entered(redis)
    again = await stage(redis, 0, (1,), ["sent again"], inc=new.inc)
    assert await keeper.turn()
    assert await contents(redis, 0) == ["kept"]
    assert await staged_fields(redis, 0) == {b"1 a 2": 1}
    (fence,) = await ask(redis, [("HGET", keys.staged_publishers(STREAMS[1]), "a")])
    assert int(fence.split()[0]) == 2 * keeping.INCARNATIONS - 1, "the older one is fenced everywhere"
    await new.advance(((2,),), [again])
    assert await keeper.turn()
    assert await contents(redis, 0) == ["kept", "sent again"]


async def test_a_silent_publisher_is_given_up_by_both_clocks(redis: AsyncRedis) -> None:
    now = 0
    writer, other = await entered(redis, "a"), await entered(redis, "b")
    keeper = make_keeper(redis, timeout=1000, clock=lambda: now)
    await keeper.begin()
    await stage(redis, 0, (0,), ["never seen"], "a")
    kept = await stage(redis, 0, (0,), ["seen"], "b")
    await other.advance(((1,),), [kept])
    assert await keeper.look() == []
    now = 5000
    assert await keeper.look() == [], "silent by its own clock, and by Redis' clock it just lived"
    (record,) = await ask(redis, [("HGET", keys.writers(SPACE), "a")])
    words = record.split()
    words[4] = b"%d" % (int(words[4]) - 2000)
    await ask(redis, [("HSET", keys.writers(SPACE), "a", b" ".join(words))])
    assert await keeper.look() == [], "a new sign: its own clock begins anew"
    now = 6500
    assert [sign.name for sign in await keeper.look()] == ["a"]
    assert await keeper.turn()
    assert await contents(redis, 0) == ["seen"]
    with pytest.raises(Fenced):
        await writer.advance(((1,),), [])
    (bound,) = await boundaries(redis)
    assert bound.dropped == (("a", 1, ((0,),)),)
    assert bound.lower == ((1,),)


async def test_two_keepers_record_nothing_twice(redis: AsyncRedis) -> None:
    a = await entered(redis)
    old = await keeper_of(redis, 1)
    await a.advance(((1,),), [await stage(redis, 0, (0,), ["x"])])
    new = await keeper_of(redis, 2)
    with pytest.raises(Fenced, match="term 2"):
        await old.turn()
    assert await new.turn()
    with pytest.raises(Fenced):
        await make_keeper(redis, 1).begin()
    assert await contents(redis, 0) == ["x"]
    assert [one.term for one in await boundaries(redis)] == [2]


class Crash(Exception):
    """The process ends here."""


ACTS = ("decide", "move", "drop", "record")


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """`{"before": act}` or `{"after": act}`: a keeper ends there, once."""
    plan: dict[str, str] = {}
    for act in ACTS:
        real = getattr(Keeper, f"_{act}")

        async def acted(self: Keeper, *args: Any, act: str = act, real: Any = real) -> Any:
            if plan.get("before") == act:
                plan.clear()
                raise Crash
            done = await real(self, *args)
            if plan.get("after") == act:
                plan.clear()
                raise Crash
            return done

        monkeypatch.setattr(Keeper, f"_{act}", acted)
    yield plan


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.slow
async def test_the_next_keeper_goes_on_wherever_one_ends(
    redis: AsyncRedis, crash: dict[str, str], act: str, when: str
) -> None:
    a, b = await entered(redis, "a"), await entered(redis, "b")
    keeper = await keeper_of(redis, 1)
    await a.advance(((1,),), [await stage(redis, 0, (0,), ["a0"]), await stage(redis, 1, (0,), ["a0"])])
    await stage(redis, 0, (1,), ["dropped"], "a")
    await b.advance(
        ((2,),), [await stage(redis, 0, (0,), ["b0"], "b"), await stage(redis, 0, (1,), ["b1"], "b")]
    )
    await entered(redis, "a")
    crash[when] = act
    with pytest.raises(Crash):
        await keeper.turn()
    # More is written before the next keeper comes: the boundary that was decided stays as it is.
    await b.advance(((4,),), [await stage(redis, 1, (2,), ["b2"], "b")])
    following = await keeper_of(redis, 2)
    while await following.turn():
        pass
    found = await boundaries(redis)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    assert found[-1].lower == ((1,),)
    assert await contents(redis, 0) == ["a0", "b0"]
    assert await contents(redis, 1) == ["a0"]
    assert await staged_fields(redis, 0) == {b"1 b 1": 1}
    ends = {}
    for one in found:
        ends |= one.ends
    assert ends == {STREAMS[0]: 2, STREAMS[1]: 1}
    # A turn that failed is gone on with by the same keeper, too.
    assert sum(one.rows for bound in found for one in bound.moved) == 3


async def test_a_record_that_comes_late_is_the_pending_boundary(
    redis: AsyncRedis, crash: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply was lost, so its keeper begins again; the call is done while that reads what there is."""
    a = await entered(redis)
    keeper = await keeper_of(redis)
    await a.advance(((1,),), [await stage(redis, 0, (0,), ["x"])])
    assert await keeper.turn()
    await a.advance(((2,),), [await stage(redis, 0, (1,), ["y"])])
    crash["before"] = "record"
    with pytest.raises(Crash):
        await keeper.turn()
    again, late = make_keeper(redis, 1), keeper.turn

    async def read_after_the_late_call(*args: Any) -> Any:
        nonlocal late
        if late is not None:
            done, late = late, None
            assert await done()
        return await read_bounds(*args)

    monkeypatch.setattr(keeping, "read_bounds", read_after_the_late_call)
    await again.begin()
    assert late is None
    assert await again.turn()
    assert not await again.turn()
    await a.advance(((3,),), [await stage(redis, 0, (2,), ["z"])])
    assert await again.turn()
    assert [one.number for one in await boundaries(redis)] == [1, 2, 3]
    assert await contents(redis, 0) == ["x", "y", "z"]


@pytest.mark.slow
async def test_a_large_epoch_is_moved_in_several_calls(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "PIECE_ROWS", 3)
    monkeypatch.setattr(keeping, "MOVE_ENTRIES", 2)
    a = await entered(redis)
    keeper = await keeper_of(redis)
    part = await stage(redis, 0, (0,), [str(number) for number in range(20)])
    await a.advance(((1,),), [part])
    assert await keeper.turn()
    assert await contents(redis, 0) == [str(number) for number in range(20)]
    (bound,) = await boundaries(redis)
    assert bound.moved[0].rows == 20
    assert bound.ends == {STREAMS[0]: 20}


async def test_what_redis_lost_of_an_epoch_is_told(redis: AsyncRedis) -> None:
    a = await entered(redis)
    keeper = await keeper_of(redis)
    part = await stage(redis, 0, (0,), ["x", "y", "z"])
    await ask(redis, [("XDEL", keys.staged_log(STREAMS[0]), "2-1")])
    await a.advance(((1,),), [part])
    assert await keeper.turn()
    (bound,) = await boundaries(redis)
    assert bound.lost == 1
    assert await contents(redis, 0) == ["x", "y"]


async def test_a_snapshot_replaces_lines(redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "SNAPSHOT_LINES", 3)
    a, b = await entered(redis, "a"), await entered(redis, "b")
    keeper = await keeper_of(redis)
    parts = [await stage(redis, 0, (epoch,), [f"a{epoch}"]) for epoch in range(6)]
    for epoch, part in enumerate(parts):
        await a.advance(((epoch + 1,),), [part])
        await keeper.turn()
    (lines,) = await ask(redis, [("XLEN", keys.lines(SPACE))])
    assert lines < 3
    following = await keeper_of(redis, 2)
    await b.advance(((4,),), [])
    assert await following.turn()
    assert await contents(redis, 0) == ["a0", "a1", "a2", "a3"]
    await b.leave((), [])
    assert await following.turn()
    assert await contents(redis, 0) == [f"a{epoch}" for epoch in range(6)]


@pytest.mark.slow
async def test_the_next_keeper_reads_each_line_once(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await entered(redis)
    keeper = await keeper_of(redis)
    for epoch in range(1, 31):
        await a.advance(((epoch,),), [])
        assert await keeper.turn()
    read: list[int] = []
    lines = Keeper._lines

    async def counted(one: Keeper) -> Any:
        found = await lines(one)
        read.append(len(found))
        return found

    monkeypatch.setattr(Keeper, "_lines", counted)
    monkeypatch.setattr(keeping, "LINES_AT_ONCE", 8)
    later = await keeper_of(redis, 2)
    assert (later.boundary, later.fold.lower, read) == (30, ((30,),), [8, 8, 8, 7])


async def test_a_line_that_is_missing_is_no_reason_to_go_on(redis: AsyncRedis) -> None:
    a = await entered(redis)
    keeper = await keeper_of(redis)
    await a.advance(((1,),), [])
    await a.advance(((2,),), [])
    await ask(redis, [("XDEL", keys.lines(SPACE), "2-0")])
    with pytest.raises(StreamleaseError, match=r"line 2 .* is not what its keeper knows"):
        await keeper.turn()
    assert await boundaries(redis) == []


@pytest.mark.slow
async def test_what_was_staged_for_nothing_is_cleared_away(redis: AsyncRedis) -> None:
    a, b = await entered(redis, "a"), await entered(redis, "b")
    keeper = await keeper_of(redis)
    named = await stage(redis, 0, (0,), ["named"])
    await stage(redis, 0, (0,), ["without an answer"])
    await stage(redis, 1, (5,), ["open"])
    await stage(redis, 2, (9,), ["open, of the other"], "b")
    await a.advance(((1,),), [named])
    assert not await keeper.turn()
    await keeper.tidy()
    assert await staged_fields(redis, 0) == {b"0 a 1": 2}, "named, and not complete: nothing of it is touched"
    await b.advance(((1,),), [])
    assert await keeper.turn()
    assert await contents(redis, 0) == ["named"]
    await keeper.tidy()
    assert await staged_fields(redis, 0) == {}
    (left,) = await ask(redis, [("XLEN", keys.staged_log(STREAMS[0]))])
    assert left == 0
    assert await staged_fields(redis, 1) == {b"5 a 1": 1}
    # A newcomer whose line was not folded yet stages already; one that left stages nothing more.
    await b.leave((), [])
    new = await entered(redis, "b")
    await stage(redis, 2, (9,), ["of the newcomer"], "b", new.inc)
    await keeper.tidy()
    assert await staged_fields(redis, 2) == {b"9 b 1": 1, b"9 b 2": 1}
    await keeper.turn()
    await keeper.tidy()
    assert await staged_fields(redis, 2) == {b"9 b 2": 1}


async def test_what_was_staged_by_who_never_entered_is_cleared_away(redis: AsyncRedis) -> None:
    """Redis lost the line with which it had entered, and it went on."""
    a = await entered(redis, "a")
    keeper = await keeper_of(redis)
    await stage(redis, 0, (3,), ["there"])
    await stage(redis, 0, (3,), ["of an incarnation that is lost"], "a", a.inc + 1)
    await stage(redis, 1, (3,), ["of a name that is lost"], "b")
    await keeper.turn()
    await keeper.tidy()
    assert await staged_fields(redis, 0) == {b"3 a 1": 1}
    assert await staged_fields(redis, 1) == {}


def of_epochs() -> Space:
    """The definition of the space."""
    return Space(
        name=SPACE, topics=("space/#",), generations=(Generation(number=0, streams=len(STREAMS)),), epochs=1
    )


@pytest.mark.slow
async def test_boundaries_that_lead_nowhere_are_forgotten(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "SNAPSHOT_LINES", 1)
    a = await entered(redis)
    keeper = await keeper_of(redis)
    for epoch in range(6):
        part = await stage(redis, epoch % 2, (epoch,), [f"e{epoch}"])
        await a.advance(((epoch + 1,),), [part])
        assert await keeper.turn()
    await trim(redis, Trim(STREAMS[0], Retention(messages=1, force=True), None))
    await trim(redis, Trim(STREAMS[1], Retention(messages=2, force=True), None))
    await keeper.tidy()
    assert [one.number for one in await boundaries(redis)] == [1, 2, 3, 4, 5, 6], "too young"
    monkeypatch.setattr(tidying, "KEPT_MS", 0)
    await keeper.tidy()
    # Stream 0 has lost e0 and e2, stream 1 only e1: all before the boundary of e3 is gone, and who begins at
    # the earliest begins at the last one of those.
    assert [one.number for one in await read_bounds(redis, SPACE, 2)] == [3, 4, 5, 6]
    with pytest.raises(EpochsTruncated, match="boundaries 1 to 2 of space space are not there any more"):
        await boundaries(redis)
    assert await read_base(redis, SPACE) == {STREAMS[0]: 1, STREAMS[1]: 1}
    began = await begin_earliest(redis, of_epochs())
    assert (began.number, began.ends) == (3, {STREAMS[0]: 2, STREAMS[1]: 1, STREAMS[2]: 0})
    following = await keeper_of(redis, 2)
    await a.advance(((9,),), [])
    assert await following.turn()
    assert following.boundary == 7


async def test_what_is_behind_empty_boundaries_that_are_forgotten_is_read_from_the_earliest(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "SNAPSHOT_LINES", 1)
    monkeypatch.setattr(tidying, "KEPT_MS", 0)
    a = await entered(redis)
    keeper = await keeper_of(redis)
    for epoch in (1, 2, 3):
        await a.advance(((epoch,),), [])
        assert await keeper.turn()
    part = await stage(redis, 0, (3,), ["e3"])
    await a.advance(((4,),), [part])
    assert await keeper.turn()
    await keeper.tidy()
    assert [one.number for one in await read_bounds(redis, SPACE, 2)] == [3, 4]
    began = await begin_earliest(redis, of_epochs())
    assert (began.number, began.ends) == (3, dict.fromkeys(STREAMS, 0))


async def replicated() -> tuple[MemoryServer, AsyncRedis]:
    """A server with a replica, on which the streams of a space with epochs are open."""
    server = replicated_server()
    redis = connect_redis(server)
    await AsyncLog(redis).open(STREAMS, "epochs")
    return server, redis


async def ahead_of_a_failover() -> tuple[MemoryServer, AsyncRedis, Keeper]:
    """A keeper that has folded and recorded what a failover lost: the line with which `a` gave epoch 0 up."""
    server, redis = await replicated()
    a, keeper = await entered(redis), await keeper_of(redis)
    part = await stage(redis, 0, (0,), ["x"])
    assert not await keeper.turn()
    await ask(redis, [("WAIT", 1, 100)])
    await a.advance(((1,),), [part])
    assert await keeper.turn()
    assert server.fail_over(10_000) > 0
    return server, redis, keeper


async def test_no_snapshot_is_kept_of_a_boundary_that_redis_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next keeper would begin behind it, and never decide another one."""
    _, redis, keeper = await ahead_of_a_failover()
    monkeypatch.setattr(keeping, "SNAPSHOT_LINES", 1)
    with pytest.raises(StoreRefused, match="Redis lost writes"):
        await keeper.turn()
    assert await ask(redis, [("HGET", keys.state(SPACE), "snapshot")]) == [None]


async def test_a_keeper_that_knows_more_than_redis_clears_nothing_away() -> None:
    """It has folded that all of epoch 0 was moved; what is staged of it again is no orphan."""
    server, redis = await replicated()
    a, b, keeper = await entered(redis), await entered(redis, "b"), await keeper_of(redis)
    await a.advance(((1,),), [await stage(redis, 0, (0,), ["x"])])
    assert not await keeper.turn()
    await ask(redis, [("WAIT", 1, 100)])
    await b.advance(((1,),), [])
    assert await keeper.turn()
    assert server.fail_over(10_000) > 0
    assert await staged_fields(redis, 0) == {b"0 a 1": 1}
    for act in (keeper.tidy, keeper.turn):
        with pytest.raises(StoreRefused, match=r"line 4 .* is not what its keeper knows"):
            await act()
    following = await keeper_of(redis, 2)
    await b.advance(((1,),), [])
    assert await following.turn()
    assert await contents(redis, 0) == ["x"]
    (bound,) = await boundaries(redis)
    assert [one.lost for one in bound.moved] == [0]


async def test_a_keeper_does_not_go_on_behind_lines_that_stand_in_the_place_of_lost_ones() -> None:
    _, redis, keeper = await ahead_of_a_failover()
    assert await lose(redis, SPACE, "a", 1, "operator")  # has the number of the line that was lost
    b = await entered(redis, "b")
    with pytest.raises(StoreRefused, match=r"line 2 .* is not what its keeper knows"):
        await keeper.turn()
    following = await keeper_of(redis, 2)
    part = await stage(redis, 1, (0,), ["y"], "b", b.inc)
    await b.advance(((2,),), [part])
    while await following.turn():
        pass
    assert await contents(redis, 0) == []
    assert await contents(redis, 1) == ["y"]
    assert following.fold.lower == ((2,),)


async def test_nothing_is_decided_upon_lines_that_redis_lost() -> None:
    """Others stand there, as many."""
    _, redis, keeper = await ahead_of_a_failover()
    assert await lose(redis, SPACE, "a", 1, "operator")
    newest = await ask(redis, [("HGET", keys.state(SPACE), "boundary")])
    with pytest.raises(StoreRefused):
        await keeper._decide()
    assert await ask(redis, [("HGET", keys.state(SPACE), "boundary")]) == newest


async def test_what_was_decided_and_then_lost_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its stream would have a boundary that is decided otherwise then, and refuse that one for ever."""
    server, redis = await replicated()
    a, keeper = await entered(redis), await keeper_of(redis)
    part = await stage(redis, 0, (0,), ["x"])
    await ask(redis, [("WAIT", 1, 100)])
    await a.advance(((1,),), [part])
    decide = Keeper._decide

    async def lost(keeper: Keeper) -> None:
        await decide(keeper)
        assert server.fail_over(10_000) > 0

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "_decide", lost)
        with pytest.raises(StoreRefused, match=r"the decision .* is not what its keeper knows"):
            await keeper.turn()
    assert await contents(redis, 0) == []
    following, b = await keeper_of(redis, 2), await entered(redis, "b")
    await b.advance(((1,),), [])
    await a.advance(((1,),), [part])
    while await following.turn():
        pass
    assert await contents(redis, 0) == ["x"]
    assert [one.lost for bound in await boundaries(redis) for one in bound.moved] == [0]
