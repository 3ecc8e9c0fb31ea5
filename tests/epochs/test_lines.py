"""The contract of lines: one order, each once, and none of an incarnation that is not there any more."""

from __future__ import annotations

import pytest

from streamlease.protocol.errors import Fenced, InvalidInput, Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.lines import (
    AdvanceLine,
    EnterLine,
    LeaveLine,
    Line,
    LoseLine,
    SealLine,
    StagedPart,
    dump_line,
    parse_line,
)
from streamlease.streams.epochs.stored import lines_command, parse_lines, read_fold
from streamlease.streams.epochs.writing import SHORTEST_LEAP, LinesLost, LineWriter, lose
from streamlease.streams.redis.connection import AsyncRedis, ask
from tests.epochs.staging import SPACE

PART = StagedPart((4,), StreamId(SPACE, 0, 2), ((0, 3), (5, 9)))


async def all_lines(redis: AsyncRedis) -> list[Line]:
    (reply,) = await ask(redis, [lines_command(SPACE, 0)])
    numbered = parse_lines(SPACE, reply)
    assert [one.number for one in numbered] == list(range(1, len(numbered) + 1))
    return [one.line for one in numbered]


async def entered(redis: AsyncRedis, name: str = "a") -> LineWriter:
    writer = LineWriter(redis, SPACE, name)
    await writer.enter()
    return writer


@pytest.mark.parametrize(
    "line",
    [
        EnterLine("a", 3, 'host "1"'),
        AdvanceLine("a", 3, ((5,),), (PART,)),
        AdvanceLine("a", 3, ((0, 5), (2, 1))),
        LeaveLine("a", 3, ((4,),), (PART,)),
        LoseLine("a", 3, "operator"),
        SealLine(),
    ],
)
def test_a_line_is_read_as_it_was_written(line: Line) -> None:
    assert parse_line(dump_line(line)) == line


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[1]", b'{"k":"other"}', b'{"k":"enter"}', b'{"k":"advance","name":"a"}', b"\xff"]
)
def test_a_damaged_line_is_told(text: bytes) -> None:
    with pytest.raises(Unsupported, match=r"a line of epochs cannot be read: .*same version"):
        parse_line(text)


async def test_lines_have_one_order(redis: AsyncRedis) -> None:
    a, b = await entered(redis, "a"), await entered(redis, "b")
    assert (a.entered_at, b.entered_at) == (1, 2)
    assert await b.advance(((7,),), []) == 3
    assert await a.advance(((5,),), [PART]) == 4
    assert await a.leave(((4,),), []) == 5
    assert await all_lines(redis) == [
        EnterLine("a", 1),
        EnterLine("b", 1),
        AdvanceLine("b", 1, ((7,),)),
        AdvanceLine("a", 1, ((5,),), (PART,)),
        LeaveLine("a", 1, ((4,),)),
    ]


async def test_a_repeated_call_writes_nothing_twice(redis: AsyncRedis) -> None:
    a = await entered(redis)
    assert await a.enter() == a.entered_at
    first = await a.advance(((5,),), [])
    assert await a.advance(((5,),), []) == first
    last = await a.leave((), [])
    assert await a.leave((), []) == last
    assert len(await all_lines(redis)) == 3


async def test_the_older_of_two_processes_is_fenced(redis: AsyncRedis) -> None:
    old = await entered(redis)
    new = await entered(redis)
    assert (old.inc, new.inc) == (1, 2)
    with pytest.raises(Fenced, match=r"publisher a .* of incarnation 1 was replaced by incarnation 2"):
        await old.advance(((5,),), [])
    with pytest.raises(Fenced, match="replaced by incarnation 2"):
        await old.touch()
    await new.touch()
    await new.advance(((5,),), [])
    assert len(await all_lines(redis)) == 3


async def test_what_was_given_up_is_fenced(redis: AsyncRedis) -> None:
    a = await entered(redis)
    assert await lose(redis, SPACE, "a", a.inc, "operator")
    assert await lose(redis, SPACE, "a", a.inc, "operator"), "a repetition says so too"
    with pytest.raises(Fenced, match="was given up"):
        await a.advance(((5,),), [])
    assert await all_lines(redis) == [EnterLine("a", 1), LoseLine("a", 1, "operator")]
    assert (await entered(redis)).inc == 2


async def test_who_has_shown_that_it_lives_is_not_given_up(redis: AsyncRedis) -> None:
    a = await entered(redis)
    (record,) = await ask(redis, [("HGET", keys.writers(SPACE), "a")])
    seen = record.split()[4].decode()
    await ask(redis, [("HSET", keys.writers(SPACE), "a", record.replace(seen.encode(), b"99"))])
    assert not await lose(redis, SPACE, "a", a.inc, "silent", seen)
    assert await lose(redis, SPACE, "a", a.inc, "silent", "99")
    assert not await lose(redis, SPACE, "b", 1, "silent", "1")


async def test_lines_that_redis_lost_are_written_again(redis: AsyncRedis) -> None:
    a = await entered(redis)
    before = await ask(redis, [("HGETALL", keys.writers(SPACE))])
    await a.advance(((5,),), [PART])
    await a.advance(((6,),), [])
    # The tail is gone, as after a failover.
    await ask(
        redis,
        [
            ("XDEL", keys.lines(SPACE), "2-0", "3-0"),
            ("DEL", keys.lines(SPACE)),
            ("XADD", keys.lines(SPACE), "1-0", "l", dump_line(EnterLine("a", 1))),
            ("DEL", keys.writers(SPACE)),
            ("HSET", keys.writers(SPACE), *before[0]),
        ],
    )
    await a.advance(((8,),), [])
    assert await all_lines(redis) == [
        EnterLine("a", 1),
        AdvanceLine("a", 1, ((5,),), (PART,)),
        AdvanceLine("a", 1, ((6,),)),
        AdvanceLine("a", 1, ((8,),)),
    ]
    await ask(redis, [("DEL", keys.writers(SPACE), keys.lines(SPACE))])
    with pytest.raises(LinesLost, match=r"open the publisher again"):
        await a.touch()


async def test_an_incarnation_is_not_issued_below_one_that_was_seen(redis: AsyncRedis) -> None:
    writer = LineWriter(redis, SPACE, "a")
    await writer.enter(above=7)
    assert writer.inc > 7 + SHORTEST_LEAP, "whoever had it may have been followed by others"


def test_a_name_is_checked(redis_url: str) -> None:
    from streamlease.streams.redis.connection import connect_blocking

    client = connect_blocking(redis_url)
    for name in ("", "a b", "-a", "!epochs", "a" * 64):
        with pytest.raises(InvalidInput, match=r"publisher .* is not a name"):
            LineWriter(client, SPACE, name)
    client.close()


async def test_who_enters_knows_what_it_holds(redis: AsyncRedis) -> None:
    a = await entered(redis, "a")
    assert (await read_fold(redis, SPACE, 1, a.entered_at)).frontier_of("a") == ((0,),)
    await a.advance(((5,),), [])
    b = await entered(redis, "b")
    fold = await read_fold(redis, SPACE, 1, b.entered_at)
    assert fold.frontier_of("b") == ((5,),)
    again = await entered(redis, "a")
    assert (await read_fold(redis, SPACE, 1, again.entered_at)).frontier_of("a") == ((5,),)
