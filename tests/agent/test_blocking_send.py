"""Single messages of the blocking client: a hand-over to the loop or none, and what is told to who waits."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Any

import pytest

from streamlease.agent import blocking, handover
from streamlease.agent.handover import Publisher
from streamlease.agent.loop import LoopThread
from streamlease.protocol.errors import Indefinite, InvalidInput, StreamSealed
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import to_messages
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import connect, connect_blocking, run_blocking
from streamlease.streams.spaces.spaces import SpaceStore
from tests.conftest import MakeServer
from tests.streams.helpers import Proxy, has_line

STREAM = StreamId("s", 0, 0)


@pytest.fixture(params=[True, False], ids=["lent", "on a line"], autouse=True)
def lent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether threads are lent the sending of single messages."""
    is_lent: bool = request.param
    if not is_lent:
        monkeypatch.setattr(handover, "AFTER", 1 << 60)
    return is_lent


def warm(publisher: Publisher) -> None:
    """Send messages until one went on a line, or until sending is lent to this thread."""
    for _ in range(1000):
        publisher.send("a/x", b"")
        if handover.AFTER < 1000:
            ready = publisher._lent._loan > 0
        else:
            ready = asked(publisher, lambda: has_line(publisher._inner, STREAM))
        if ready:
            return
    raise AssertionError("no line was opened, or nothing was lent")


@contextmanager
def warmed(url: str) -> Iterator[tuple[Publisher, int]]:
    """A publisher that is warm, and the offset of its last message in `STREAM`."""
    with blocking.connect(url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            warm(publisher)
            yield publisher, publisher.send("a/x", b"")[1]


def asked(publisher: Publisher, question: Callable[[], bool]) -> bool:
    """What `question` says on the loop."""

    def answer(found: Future[bool]) -> None:
        found.set_result(question())

    return publisher._loop.told(answer)


def test_a_message_takes_one_hand_over(real_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with warmed(real_redis_url) as (publisher, last), monkeypatch.context() as patched:
        patched.setattr(Publisher, "_send", lambda *_: 1 // 0)
        places = [publisher.send("a/x", b"%d" % n, b"k", timestamp=n) for n in range(50)]
    assert places == [(STREAM, last + 1 + n) for n in range(50)]


def test_a_message_takes_no_hand_over_once_sending_is_lent(
    real_redis_url: str, monkeypatch: pytest.MonkeyPatch, lent: bool
) -> None:
    with warmed(real_redis_url) as (publisher, last), monkeypatch.context() as patched:
        patched.setattr(LoopThread, "told", lambda *_: 1 // 0)
        if lent:
            places = [publisher.send("a/x", b"%d" % n, b"k", timestamp=n) for n in range(50)]
            assert places == [(STREAM, last + 1 + n) for n in range(50)]
        else:
            with pytest.raises(ZeroDivisionError):
                publisher.send("a/x", b"")


def test_a_loan_ends_with_all_that_is_done_otherwise_and_order_stays(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            expected = 0
            for round in range(40):
                for _ in range(20):
                    assert publisher.send("a/x", b"")[1] == expected
                    expected += 1
                for _ in range(round % 5):
                    publisher.submit("a/x", b"submitted")
                    expected += 1
                if round % 3 == 0:
                    ((_, offsets),) = publisher.send_many("a/x", [b"1", b"2"])
                    assert offsets.start == expected
                    expected += 2
                if round % 4 == 0:
                    publisher.flush()
                    assert not publisher._lent._loan
            assert publisher.send("a/x", b"")[1] == expected


def test_what_is_to_be_sent_on_the_loop_takes_the_loan_back(real_redis_url: str, lent: bool) -> None:
    with warmed(real_redis_url) as (publisher, last):
        assert (publisher._lent._loan > 0) == lent
        _, offset = publisher._loop.call(publisher._inner.send("a/x", b"from another coroutine"), 20)
        assert offset == last + 1
        assert not publisher._lent._loan
        assert publisher.send("a/x", b"")[1] == last + 2


def test_threads_that_do_everything_side_by_side(real_redis_url: str) -> None:
    with warmed(real_redis_url) as (publisher, last):
        sent: list[list[int]] = [[] for _ in range(3)]
        rounds = 12

        def send(mine: list[int]) -> None:
            for _ in range(rounds):
                mine.extend(publisher.send("a/x", b"")[1] for _ in range(25))
                publisher.submit("a/x", b"")
                mine.extend(publisher.send("a/x", b"")[1] for _ in range(3))

        def flush() -> None:
            for _ in range(rounds):
                publisher.flush()

        threads = [threading.Thread(target=send, args=(mine,)) for mine in sent]
        threads.append(threading.Thread(target=flush))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        publisher.flush()
        _, end = publisher.send("a/x", b"")
    assert all(mine == sorted(mine) for mine in sent)
    assert len({*itertools.chain(*sent)}) == 3 * rounds * 28
    assert end == last + 1 + 3 * rounds * 29


async def test_a_lost_answer_adds_nothing_twice(real_redis_url: str) -> None:
    async with Proxy(int(real_redis_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])) as proxy:

        def work() -> list[int]:
            places = []
            with blocking.connect(proxy.url) as client:
                client.create_space("s", ["a/#"])
                with client.publisher() as publisher:
                    for _ in range(3):
                        warm(publisher)
                        proxy.lose(b"EVALSHA", times=1)
                        places.append(publisher.send("a/x", b"lost")[1])
                    publisher.send("a/x", b"")
            return places

        places = await asyncio.to_thread(work)
        assert proxy.lost == 3
    redis = connect(real_redis_url)
    batches = await AsyncLog(redis).read(STREAM, 0)
    found = [message for batch in batches for message in to_messages(batch)]
    assert [one.offset for one in found if one.payload == b"lost"] == places
    await redis.aclose()


async def rotate(url: str) -> None:
    redis = connect(url)
    await SpaceStore(redis).generations.alter("s", rotate=True)
    await redis.aclose()


def test_a_new_generation_is_followed(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            warm(publisher)
            asyncio.run(rotate(real_redis_url))
            stream, offset = publisher.send("a/x", b"")
            assert (stream.generation, offset) == (1, 0)
            assert [publisher.send("a/x", b"")[1] for _ in range(30)] == [*range(1, 31)]


def test_it_stays_behind_what_was_submitted(real_redis_url: str) -> None:
    with warmed(real_redis_url) as (publisher, last):
        expected = last + 1
        for round in range(30):
            for _ in range(round):
                publisher.submit("a/x", b"submitted")
            _, offset = publisher.send("a/x", b"sent")
            expected += round
            assert offset == expected
            expected += 1


def test_threads_that_send_side_by_side(real_redis_url: str) -> None:
    with warmed(real_redis_url) as (publisher, last):
        places: list[list[int]] = [[] for _ in range(4)]

        def work(mine: list[int]) -> None:
            mine.extend(publisher.send("a/x", b"")[1] for _ in range(100))

        threads = [threading.Thread(target=work, args=(mine,)) for mine in places]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(mine == sorted(mine) for mine in places)
    assert sorted(itertools.chain(*places)) == [*range(last + 1, last + 401)]


def test_its_errors_come_out(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            warm(publisher)
            redis = connect_blocking(real_redis_url)
            run_blocking(AsyncLog(redis).seal(STREAM))
            redis.close()
            with pytest.raises(StreamSealed):
                publisher.send("a/x", b"")


@pytest.mark.slow
def test_a_client_that_is_closed_leaves_nobody_waiting(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    ended: Future[BaseException | None] = Future()

    def send() -> None:
        try:
            publisher.send("a/x", b"")
        except BaseException as error:
            ended.set_result(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=send)
    with blocking.connect(server.url) as client:
        client.create_space("s", ["a/#"])
        publisher = client.publisher()
        warm(publisher)
        server.pause()
        thread.start()
        while asked(publisher, lambda: publisher._inner.singles.can_write("a/x")):
            pass
    assert isinstance(ended.result(30), CancelledError | Indefinite | InvalidInput)
    thread.join()
    server.resume()


def test_what_a_loop_is_given_to_tell() -> None:
    loop = LoopThread("test")
    tell: Callable[[Future[int]], object] = lambda found: found.set_result(3)  # noqa: E731
    assert loop.told(tell) == 3

    def fails(_: Future[int]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop.told(fails)
    begun = threading.Event()
    ended: Future[Any] = Future()

    def wait() -> None:
        try:
            loop.told(lambda _: begun.set())
        except BaseException as error:
            ended.set_result(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(30)
    loop.stop()
    assert isinstance(ended.result(30), CancelledError)
    thread.join()
    with pytest.raises(InvalidInput, match="connect again"):
        loop.told(tell)
