"""Mailboxes keep order, are bounded, and are never made by those who only send."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from streamlease.protocol.errors import StoreRefused, StoreUnavailable
from streamlease.protocol.messages import Ping, encode
from streamlease.registry import keys
from streamlease.registry.mail import mailbox
from streamlease.registry.mail.mailbox import Letter, Mailbox
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from tests.servers import RedisServer


def ping(n: int) -> Ping:
    return Ping(group="g/a", borrower=f"b{n}", term=n)


async def opened(redis: AsyncRedis, owner: str = "me") -> Mailbox:
    box = Mailbox(redis, owner)
    await box.open()
    return box


async def received(box: Mailbox, count: int) -> list[Letter]:
    """Read until `count` letters are there."""
    letters: list[Letter] = []
    while len(letters) < count:
        letters += await box.receive()
    return letters


async def test_letters_arrive_in_order_with_their_sender(redis: AsyncRedis) -> None:
    box = await opened(redis)
    assert await mailbox.send(redis, "you", [("me", ping(n)) for n in range(1, 4)]) == set()
    await mailbox.send(redis, "she", [("me", ping(4))])
    letters = await received(box, 4)
    assert letters == [Letter("you", ping(n)) for n in (1, 2, 3)] + [Letter("she", ping(4))]


async def test_one_sending_serves_several_receivers(redis: AsyncRedis) -> None:
    one, two = await opened(redis, "one"), await opened(redis, "two")
    await mailbox.send(redis, "you", [("one", ping(1)), ("two", ping(2)), ("one", ping(3))])
    assert [letter.message for letter in await received(one, 2)] == [ping(1), ping(3)]
    assert [letter.message for letter in await received(two, 1)] == [ping(2)]


async def test_a_receiver_that_is_gone_is_reported_and_no_key_is_made(redis: AsyncRedis) -> None:
    box = await opened(redis)
    assert await mailbox.send(redis, "you", [("gone", ping(1)), ("me", ping(2))]) == {"gone"}
    assert [letter.message for letter in await received(box, 1)] == [ping(2)]
    (names,) = await ask(redis, [("KEYS", "*")])
    assert names == [keys.mailbox("me").encode()]


async def test_sending_nothing_is_nothing(redis: AsyncRedis) -> None:
    assert await mailbox.send(redis, "you", []) == set()


async def test_a_closed_mailbox_is_gone(redis: AsyncRedis) -> None:
    box = await opened(redis)
    await box.close()
    assert await mailbox.send(redis, "you", [("me", ping(1))]) == {"me"}
    assert (await ask(redis, [("EXISTS", keys.mailbox("me"))])) == [0]


async def test_what_does_not_parse_is_dropped_and_counted(redis: AsyncRedis) -> None:
    box = await opened(redis)
    good = encode([ping(1)])
    for fields in (
        ("f", "you", "m", b"\xff\x00"),
        ("f", "you", "m", b'[{"type": "nonsense"}, 7]'),
        ("x", "y"),
        ("f", b"\xff", "m", good),
    ):
        await ask(redis, [("XADD", keys.mailbox("me"), "*", *fields)])
    (letter,) = await received(box, 1)
    assert letter == Letter("\ufffd", ping(1))
    assert box.dropped == 4


async def test_what_was_read_is_removed_when_nothing_more_comes(redis: AsyncRedis) -> None:
    box = Mailbox(redis, "me", block_ms=1)
    await box.open()
    for n in range(1, 6):
        await mailbox.send(redis, "you", [("me", ping(n))])
    await received(box, 5)
    await mailbox.send(redis, "you", [("me", ping(6))])
    assert [letter.message for letter in await received(box, 1)] == [ping(6)]
    assert await box.receive() == await box.receive() == []
    assert await ask(redis, [("XLEN", keys.mailbox("me"))]) == [0]


async def test_what_was_read_is_removed_though_more_comes_all_the_time(redis: AsyncRedis) -> None:
    box = await opened(redis)
    longest = 0
    for n in range(3 * mailbox.MOST_READ):
        await mailbox.send(redis, "you", [("me", ping(n + 1))])
        assert [letter.message for letter in await received(box, 1)] == [ping(n + 1)]
        (length,) = await ask(redis, [("XLEN", keys.mailbox("me"))])
        longest = max(longest, length)
    assert longest <= mailbox.MOST_READ + 1
    assert length < mailbox.MOST_READ


async def test_a_mailbox_outlives_its_owner_only_for_a_while(redis: AsyncRedis) -> None:
    box = await opened(redis)
    (left,) = await ask(redis, [("PTTL", keys.mailbox("me"))])
    assert 0 < left <= mailbox.LIFETIME_MS
    await ask(redis, [("PEXPIRE", keys.mailbox("me"), 1000)])
    await mailbox.send(redis, "you", [("me", ping(1))])
    (left,) = await ask(redis, [("PTTL", keys.mailbox("me"))])
    assert 0 < left <= 1000  # sending does not keep a dead owner's mailbox alive
    await box.open()
    (left,) = await ask(redis, [("PTTL", keys.mailbox("me"))])
    assert left > 1000
    assert [letter.message for letter in await received(box, 1)] == [ping(1)]


async def test_prolonging_a_mailbox_delivers_nothing(redis: AsyncRedis) -> None:
    box = await opened(redis)
    for _ in range(3):
        await box.open()
    await mailbox.send(redis, "you", [("me", ping(1))])
    assert await received(box, 1) == [Letter("you", ping(1))]
    assert box.dropped == 0


async def test_a_mailbox_that_nobody_reads_is_bounded(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "MAX_ENTRIES", 200)
    box = await opened(redis)
    for n in range(1, 1001):
        await mailbox.send(redis, "you", [("me", ping(n))])
    (length,) = await ask(redis, [("XLEN", keys.mailbox("me"))])
    assert 200 <= length < 400  # Redis trims whole nodes of 100 entries
    letters = await received(box, length)
    assert letters[-1].message == ping(1000)
    terms = [letter.message.term for letter in letters if isinstance(letter.message, Ping)]
    assert terms == sorted(terms)


async def test_an_owner_hears_again_when_the_clock_of_redis_went_back(redis: AsyncRedis) -> None:
    """A mailbox that expired, or was lost with a failover, is made anew, and its ids begin below those read.

    The simulation sets the clock back by seconds; here it goes back by centuries.
    """
    box = Mailbox(redis, "me", block_ms=20)
    await box.open()
    future = 2**44  # the clock was far ahead
    await ask(redis, [("XADD", keys.mailbox("me"), f"{future}-0", "f", "you", "m", encode([ping(1)]))])
    assert [letter.message for letter in await received(box, 1)] == [ping(1)]
    await ask(redis, [("DEL", keys.mailbox("me"))])
    await box.open()
    heard: list[Letter] = []
    for number in range(2, 6):  # the first of them is lost
        await mailbox.send(redis, "you", [("me", ping(number))])
        heard += await box.receive()
    assert heard
    await mailbox.send(redis, "you", [("me", ping(100))])
    assert [letter.message for letter in await received(box, 1)][-1] == ping(100)


async def test_a_mailbox_that_a_failover_took_is_there_with_the_next_read(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then nobody can leave letters, and its owner, cut off by the failover, is the first to know."""
    box = await opened(redis)
    box.block_ms = 20
    assert await box.receive() == []

    async def cut_off(*_: object) -> None:
        await ask(redis, [("DEL", keys.mailbox("me"))])
        raise StoreUnavailable("Redis fails over")

    with monkeypatch.context() as patch:
        patch.setattr(mailbox, "ask", cut_off)
        with pytest.raises(StoreUnavailable):
            await box.receive()
    assert await mailbox.send(redis, "you", [("me", ping(1))]) == {"me"}
    assert await box.receive() == []
    assert await mailbox.send(redis, "you", [("me", ping(2))]) == set()
    assert [letter.message for letter in await received(box, 1)] == [ping(2)]


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_a_mailbox_that_takes_no_letters_is_made_anew(
    make_redis_server: Callable[..., RedisServer], kind: str
) -> None:
    """By a stranger: something else stands under its name, or its last id is the last there is."""
    redis = connect(make_redis_server(kind).url)
    box = Mailbox(redis, "me", block_ms=20)
    name = keys.mailbox("me")
    await box.open()
    for spoil, refused in (
        ([("DEL", name), ("SET", name, "no stream")], True),
        ([("XADD", name, "18446744073709551615-18446744073709551615", "f", "", "m", "[]")], False),
        ([("DEL", name), ("XADD", name, "1-18446744073709551615", "f", "", "m", "[]")], False),
    ):
        await ask(redis, spoil)
        with pytest.raises(StoreRefused) if refused else nullcontext():
            assert await box.receive() == []
        await box.open()
        await mailbox.send(redis, "you", [("me", ping(1))])
        assert [letter.message for letter in await received(box, 1)] == [ping(1)]
    await redis.aclose()
