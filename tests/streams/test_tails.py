"""Watching the tails of streams, with push and without, over a restart of the server."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from streamlease.protocol.errors import InvalidOption, StoreUnavailable, StreamleaseError, TaskFailed
from streamlease.protocol.ids import StreamId
from streamlease.streams.log import poll_order
from streamlease.streams.log import tails as tails_module
from streamlease.streams.log.keys import stream_meta, stream_news
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.tails import Tails
from streamlease.streams.redis.cluster import AsyncCluster
from streamlease.streams.redis.cluster_slots import Address
from streamlease.streams.redis.connection import AsyncRedis, connect, exchange
from streamlease.streams.redis.lines import channels
from streamlease.streams.redis.lines.channels import ChannelLine
from streamlease.streams.redis.lines.push_line import PushLine
from tests.awake import within
from tests.conftest import MakeServer
from tests.streams.helpers import append, cluster_of, rows, until

STREAMS = [StreamId("s", 0, shard) for shard in range(3)]


@pytest.mark.parametrize("push", [True, False])
async def test_tails_follow_a_changing_set(redis: AsyncRedis, log: AsyncLog, push: bool) -> None:
    await log.open(STREAMS)
    seen: list[tuple[StreamId, int | None]] = []
    async with Tails(redis, poll_interval=0.02, push=push) as watched:
        tails = watched.watch(lambda stream, next: seen.append((stream, next)))
        tails.set_streams(STREAMS[:2])
        assert tails.next_of(STREAMS[0]) is None
        await until(lambda: [tails.next_of(one) for one in STREAMS] == [0, 0, None])
        await log.append(append(STREAMS[1], 0, rows(0, 5)))
        await until(lambda: tails.next_of(STREAMS[1]) == 5)
        tails.set_streams(STREAMS[1:])
        await until(lambda: [tails.next_of(one) for one in STREAMS] == [None, 5, 0])
        await redis.delete(stream_meta(STREAMS[2]))
        await until(lambda: tails.next_of(STREAMS[2]) is None)
        await log.append(append(STREAMS[1], 1, rows(5, 1)))
        await until(lambda: tails.next_of(STREAMS[1]) == 6)
        tails.set_streams([])
        assert tails.next_of(STREAMS[1]) is None
    assert (STREAMS[1], 5) in seen
    assert (STREAMS[2], None) in seen


async def test_push_needs_no_poll(redis: AsyncRedis, log: AsyncLog) -> None:
    await log.open(STREAMS)
    async with Tails(redis, poll_interval=3600) as watched:
        tails = watched.watch()
        tails.set_streams(STREAMS)
        await until(lambda: tails.next_of(STREAMS[2]) == 0)
        sequence = 0
        async with within(10):
            while not watched.pushes:  # until the subscription stands
                await log.append(append(STREAMS[2], sequence, rows(0, 1)))
                sequence += 1
                await asyncio.sleep(0.01)
        await until(lambda: tails.next_of(STREAMS[2]) == sequence)
        polls = -1
        async with within(10):
            while watched.polls != polls:  # those of the subscription come to an end
                polls = watched.polls
                await log.append(append(STREAMS[2], sequence, rows(0, 1)))
                sequence += 1
                await until(lambda: tails.next_of(STREAMS[2]) == sequence)  # noqa: B023 - awaited at once
        tails.set_streams(STREAMS[:1])
        await until(lambda: tails.next_of(STREAMS[0]) == 0)
        await log.append(append(STREAMS[0], 0, rows(0, 1)))
        await until(lambda: tails.next_of(STREAMS[0]) == 1)


@pytest.mark.slow
async def test_polls_read_a_share_where_news_are_pushed(
    redis: AsyncRedis, log: AsyncLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_order, "POLL_SHARE", 2)
    many = [StreamId("s", 0, shard) for shard in range(9)]
    await log.open(many)
    asked: list[int] = []
    async with Tails(redis, poll_interval=0.02) as watched:
        tails = watched.watch()
        next_offsets = watched._log.next_offsets

        async def count(streams: list[StreamId], *damaged: object) -> dict[StreamId, int]:
            asked.append(len(streams))
            return await next_offsets(streams)

        monkeypatch.setattr(watched._log, "next_offsets", count)
        tails.set_streams(many)
        await until(lambda: all(tails.next_of(one) == 0 for one in many))
        await until(lambda: asked[-20:] == [2] * 20)
        # A change that nobody pushed is found in turn.
        for one in many:
            await redis.hset(stream_meta(one), "next", 7)  # type: ignore[misc]
        await until(lambda: all(tails.next_of(one) == 7 for one in many))
        tails.set_streams(many[1:])
        await until(lambda: len(asked) > 0 and asked[-1] == 2 and tails.next_of(many[0]) is None)
        tails.set_streams(many)
        await until(lambda: tails.next_of(many[0]) == 7)


async def test_many_new_streams_are_read_once_when_they_are_subscribed_to(
    redis: AsyncRedis, log: AsyncLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_order, "MANY_NEW", 5)
    monkeypatch.setattr(poll_order, "COMING_SECONDS", 60)
    many = [StreamId("s", 0, shard) for shard in range(300)]
    await log.open(many)
    asked: Counter[StreamId] = Counter()
    async with Tails(redis) as watched:
        next_offsets = watched._log.next_offsets

        async def count(streams: list[StreamId], *damaged: object) -> dict[StreamId, int]:
            assert watched._pushed
            asked.update(streams)
            return await next_offsets(streams)

        monkeypatch.setattr(watched._log, "next_offsets", count)
        tails = watched.watch()
        tails.set_streams(many)
        await until(lambda: all(tails.next_of(one) == 0 for one in many))
    assert asked.keys() == {*many}


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.slow
async def test_many_new_streams_are_read_though_nothing_is_ever_pushed(
    redis: AsyncRedis, log: AsyncLog, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    monkeypatch.setattr(poll_order, "MANY_NEW", 5)
    if deaf:
        monkeypatch.setattr(PushLine, "data_received", lambda line, data: None)
    else:
        monkeypatch.setattr(channels, "open_push_line", unreachable)
    many = [StreamId("s", 0, shard) for shard in range(9)]
    await log.open(many)
    async with Tails(redis) as watched:
        tails = watched.watch()
        tails.set_streams(many)
        await until(lambda: all(tails.next_of(one) == 0 for one in many))


async def unreachable(*_: object) -> PushLine:
    raise OSError("no push connection")


@pytest.mark.slow
async def test_polls_read_little_as_long_as_the_push_connection_answers(
    redis: AsyncRedis, log: AsyncLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_order, "LEAST_SHARE", 2)
    monkeypatch.setattr(channels, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(channels, "QUIET_SECONDS", 0.5)
    many = [StreamId("s", 0, shard) for shard in range(9)]
    await log.open(many)
    asked: list[int] = []
    async with Tails(redis, poll_interval=0.02) as watched:
        tails = watched.watch()
        next_offsets, data_received = watched._log.next_offsets, PushLine.data_received

        async def count(streams: list[StreamId], *damaged: object) -> dict[StreamId, int]:
            asked.append(len(streams))
            return await next_offsets(streams)

        monkeypatch.setattr(watched._log, "next_offsets", count)
        tails.set_streams(many)
        await until(lambda: asked[-20:] == [2] * 20)  # for longer than it may be silent: it answers
        deaf = asyncio.Event()

        def hear(line: PushLine, data: bytes) -> None:
            if not deaf.is_set():
                data_received(line, data)

        monkeypatch.setattr(PushLine, "data_received", hear)
        deaf.set()
        await until(lambda: asked[-5:] == [9] * 5)
        deaf.clear()
        await until(lambda: asked[-20:] == [2] * 20)


async def test_a_push_connection_that_stays_silent_is_made_anew(
    redis: AsyncRedis, log: AsyncLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(channels, "ASK_SECONDS", 0.02)
    monkeypatch.setattr(channels, "QUIET_SECONDS", 0.1)
    await log.open(STREAMS)

    async with Tails(redis, poll_interval=3600) as watched:
        tails = watched.watch()
        with monkeypatch.context() as patched:
            patched.setattr(PushLine, "data_received", lambda line, data: None)
            tails.set_streams(STREAMS)
            await until(lambda: "nothing was heard" in caplog.text)
        sequence = 0
        async with within(10):
            while not watched.pushes:
                await log.append(append(STREAMS[0], sequence, rows(0, 1)))
                sequence += 1
                await asyncio.sleep(0.01)
        await log.append(append(STREAMS[0], sequence, rows(0, 1)))
        await until(lambda: tails.next_of(STREAMS[0]) == sequence + 1)  # told, for nothing polls here


async def test_of_what_is_pushed_together_only_the_end_is_told(redis: AsyncRedis, log: AsyncLog) -> None:
    await log.open(STREAMS)
    told: list[tuple[StreamId, int | None]] = []
    async with Tails(redis, poll_interval=3600) as watched:
        tails = watched.watch(lambda stream, next: told.append((stream, next)))
        tails.set_streams(STREAMS)
        await until(lambda: all(tails.next_of(one) == 0 for one in STREAMS) and watched._pushed)
        one, other = (stream_news(stream).encode() for stream in STREAMS[:2])
        told.clear()
        watched._take(
            [b"PONG", *([b"message", one, b"%d" % n] for n in (3, 7, 5)), [b"message", other, b"1"]]
        )
        watched._take([[b"pong", b""], [b"message", one, b"6"], [b"message", b"nobody's", b"9"]])
        assert told == [(STREAMS[0], 7), (STREAMS[1], 1)]


@pytest.mark.parametrize("how", ["garbage", "closed", "error reply"])
async def test_a_push_connection_that_ends_is_made_anew(
    redis: AsyncRedis,
    log: AsyncLog,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    await log.open(STREAMS)
    lines: list[PushLine] = []
    subscribe = ChannelLine._subscribe

    async def noted(channel_line: ChannelLine, line: PushLine) -> None:
        lines.append(line)
        await subscribe(channel_line, line)

    monkeypatch.setattr(ChannelLine, "_subscribe", noted)
    async with Tails(redis, poll_interval=3600) as watched:
        tails = watched.watch()
        tails.set_streams(STREAMS)
        await until(lambda: watched._pushed)
        sequence = 0
        async with within(10):
            while not watched.pushes:
                await log.append(append(STREAMS[0], sequence, rows(0, 1)))
                sequence += 1
                await asyncio.sleep(0.01)
        match how:
            case "garbage":
                await exchange(redis, [("PUBLISH", stream_news(STREAMS[0]), "not a number")])
            case "closed":
                lines[0]._transport.write_eof()  # the server answers by closing it
            case _:
                lines[0].send(("SUBSCRIBE",))
        await until(lambda: len(lines) > 1)
        pushes = watched.pushes
        async with within(10):
            while watched.pushes == pushes:
                await log.append(append(STREAMS[0], sequence, rows(0, 1)))
                sequence += 1
                await asyncio.sleep(0.01)
        await until(lambda: tails.next_of(STREAMS[0]) == sequence)
    assert "tails: push" in caplog.text


@pytest.mark.parametrize("push", [True, False])
async def test_tails_outlive_the_server(make_redis_server: MakeServer, push: bool) -> None:
    server = make_redis_server()
    client = connect(server.url)
    log = AsyncLog(client)
    await log.open(STREAMS)
    await log.append(append(STREAMS[0], 0, rows(0, 9)))
    async with Tails(client, poll_interval=0.02, push=push) as watched:
        tails = watched.watch()
        tails.set_streams(STREAMS)
        await until(lambda: tails.next_of(STREAMS[0]) == 9)
        server.kill()
        await until(lambda: tails.error is not None)
        assert isinstance(tails.error, StoreUnavailable)
        assert tails.next_of(STREAMS[0]) == 9
        await asyncio.to_thread(server.start)
        await log.open(STREAMS)
        await until(lambda: tails.error is None and tails.next_of(STREAMS[0]) == 0)  # all was lost
        pushes = watched.pushes
        for sequence in range(1000):
            await log.append(append(STREAMS[0], sequence, rows(0, 1)))
            if watched.pushes > pushes or not push:
                break
            await asyncio.sleep(0.01)
        assert not push or watched.pushes > pushes
        await until(lambda: tails.next_of(STREAMS[0]) == sequence + 1)
    await client.aclose()


async def test_a_callback_that_fails_stops_nothing(
    redis: AsyncRedis, log: AsyncLog, caplog: pytest.LogCaptureFixture
) -> None:
    await log.open(STREAMS)

    def fail(stream: StreamId, next: int | None) -> None:
        raise ZeroDivisionError

    async with Tails(redis, poll_interval=0.02) as watched:
        tails = watched.watch(fail)
        tails.set_streams(STREAMS)
        await until(lambda: tails.next_of(STREAMS[2]) == 0)
        await log.append(append(STREAMS[2], 0, rows(0, 1)))
        await until(lambda: tails.next_of(STREAMS[2]) == 1)
    assert "the callback for s.0.2 failed" in caplog.text


async def test_closing_twice_is_harmless_and_for_good(redis: AsyncRedis) -> None:
    tails = Tails(redis)
    tails.watch().add(STREAMS[0])
    assert len(tails._tasks) == 2
    await tails.close()
    await tails.close()
    tails.watch().add(STREAMS[1])
    assert not tails._tasks
    with pytest.raises(InvalidOption):
        Tails(redis, poll_interval=0)


@pytest.mark.parametrize("broken", ["_subscribe", "_mind"])
async def test_a_defect_of_either_task_of_the_push_connection_ends_both_and_is_shown(
    redis: AsyncRedis, log: AsyncLog, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(tails_module, "LONGEST_WAIT", 0.02)
    await log.open(STREAMS)
    whole, left = getattr(ChannelLine, broken), [ZeroDivisionError("planted"), asyncio.CancelledError()]

    async def breaks(line: ChannelLine, *arguments: object) -> None:
        if left:
            raise left.pop(0)
        await whole(line, *arguments)

    monkeypatch.setattr(ChannelLine, broken, breaks)
    async with Tails(redis, poll_interval=3600) as watched:
        shown: list[StreamleaseError] = []
        monkeypatch.setattr(watched, "_failed", lambda task, error: shown.append(error))
        tails = watched.watch()
        tails.set_streams(STREAMS)
        await until(lambda: len(shown) == 2)
        assert all(isinstance(error, TaskFailed) and "push" in str(error) for error in shown)
        assert "ZeroDivisionError: planted" in str(shown[0])
        sequence = 0
        async with within(10):
            while not watched.pushes:  # the next life of the connection is well
                await log.append(append(STREAMS[0], sequence, rows(0, 1)))
                sequence += 1
                await asyncio.sleep(0.01)


async def test_a_server_of_a_cluster_that_does_not_answer_delays_only_its_own_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost, *others = STREAMS
    ends, asked, answers = dict.fromkeys(STREAMS, 1), [0], asyncio.Event()

    async def next_offsets(streams: list[StreamId], damaged: object) -> dict[StreamId, int]:
        if lost in streams:
            assert streams == [lost]
            asked[0] += 1
            await answers.wait()
            if asked[0] == 1:
                raise StoreUnavailable("it is gone")
        return {stream: ends[stream] for stream in streams}

    async with Tails(cluster_of(lost), push=False, poll_interval=0.01) as tails:
        monkeypatch.setattr(tails._log, "next_offsets", next_offsets)
        whole, healthy = tails.watch(), tails.watch()
        whole.set_streams(STREAMS)
        healthy.set_streams(others)
        for end in (1, 2, 3):
            ends.update(dict.fromkeys(STREAMS, end))
            await until(lambda: all(whole.next_of(one) == ends[one] for one in others))
        assert (whole.next_of(lost), asked) == (None, [1])
        answers.set()
        await until(lambda: isinstance(whole.error, StoreUnavailable) or asked[0] > 1)
        assert healthy.error is None
        await until(lambda: whole.next_of(lost) == 3 and whole.error is None)


def test_a_subscription_in_place_of_a_silent_one_goes_to_another_server() -> None:
    """Else the news of healthy servers stay away for as long again."""

    class Node:
        def __init__(self, address: Address) -> None:
            self.address = address

    cluster = AsyncCluster((), Node, "a cluster")  # type: ignore[arg-type]
    cluster.topology.owners[:3] = [("a", 1), ("b", 1), ("c", 1)]
    subscribed: list[Address] = [cluster.next_node().address for _ in range(7)]  # type: ignore[attr-defined]
    assert {*subscribed[:3]} == {("a", 1), ("b", 1), ("c", 1)}
    assert subscribed[3:] == subscribed[:4]
