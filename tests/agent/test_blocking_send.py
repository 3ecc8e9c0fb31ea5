"""Single messages of the blocking client: one hand-over to the loop each, and what is told to who waits."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from streamlease.agent import blocking
from streamlease.agent.handover import Publisher
from streamlease.agent.loop import LoopThread
from streamlease.protocol.errors import Indefinite, InvalidInput, StreamSealed
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import connect_blocking, run_blocking
from tests.conftest import MakeServer
from tests.streams.helpers import has_line

STREAM = StreamId("s", 0, 0)


def warm(publisher: Publisher) -> None:
    """Send messages until one went on a line."""
    for _ in range(1000):
        publisher.send("a/x", b"")
        if asked(publisher, lambda: has_line(publisher._inner, STREAM)):
            return
    raise AssertionError("no line was opened")


def asked(publisher: Publisher, question: Callable[[], bool]) -> bool:
    """What `question` says on the loop."""

    def answer(found: Future[bool]) -> None:
        found.set_result(question())

    return publisher._loop.told(answer)


def test_a_message_takes_one_hand_over(real_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            warm(publisher)
            _, last = publisher.send("a/x", b"")
            with monkeypatch.context() as patched:
                patched.setattr(Publisher, "_send", lambda *_: 1 // 0)
                places = [publisher.send("a/x", b"%d" % n, b"k", timestamp=n) for n in range(50)]
    assert places == [(STREAM, last + 1 + n) for n in range(50)]


def test_it_stays_behind_what_was_submitted(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            warm(publisher)
            _, last = publisher.send("a/x", b"")
            for round in range(30):
                for _ in range(round):
                    publisher.submit("a/x", b"submitted")
                _, offset = publisher.send("a/x", b"sent")
                assert offset == last + round + 1
                last = offset


def test_threads_that_send_side_by_side(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            warm(publisher)
            _, last = publisher.send("a/x", b"")
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
        while asked(publisher, lambda: publisher._inner._sender.is_idle):
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
