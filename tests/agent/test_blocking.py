"""The blocking twin."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from streamlease.agent import blocking
from streamlease.agent.handover import MOST_BYTES, MOST_MESSAGES
from streamlease.protocol.errors import (
    InvalidInput,
    InvalidOption,
    InvalidTopic,
    StoreUnavailable,
    UnknownSpace,
)
from streamlease.streams.publish.publisher import Publisher
from tests.agent.helpers import SUB


@pytest.mark.slow
def test_messages_go_out_and_come_back(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        assert client.create_space("s", ["a/#"], streams=2).name == "s"
        with client.publisher() as publisher:
            _, offset = publisher.send("a/b", b"0", key=b"k", headers={"h": "1"})
            assert offset == 0
            for number in range(1, 90):
                publisher.submit("a/b", str(number))
            publisher.flush()
            publisher.send_many("a/b", [str(number) for number in range(90, 100)])
            got: list[int] = []
            with client.subscribe(SUB, start="earliest", max_batch=30) as subscription:
                for batch in subscription:
                    got += [int(message.payload) for message in batch.messages]
                    assert batch.to_arrow().num_rows == len(batch)
                    assert batch.end - batch.start == len(batch)
                    batch.commit()
                    if len(got) == 100:
                        break
                assert subscription.streams == ["s.0.0", "s.0.1"]
                assert str(batch.stream) in subscription.streams
                assert subscription.poll(0.05) is None
        assert got == list(range(100))
        with client.subscribe(SUB) as subscription:
            assert subscription.poll(1.0) is None  # all is committed


def test_part_of_a_batch_may_be_committed(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            for number in range(10):
                publisher.submit("a/b", str(number))
        with client.subscribe(SUB, start="earliest") as subscription:
            batch = subscription.poll(10)
            assert batch is not None
            batch.commit(batch.start + 1)
        with client.subscribe(SUB) as subscription:
            batch = subscription.poll(10)
            assert batch is not None
            assert batch.start == 1


def test_errors_are_those_of_the_asynchronous_client(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        with pytest.raises(InvalidTopic):
            client.subscribe("$shared/g")
        with pytest.raises(UnknownSpace), client.subscribe("$shared/g/nowhere/#"):
            pass
        with client.publisher() as publisher, pytest.raises(UnknownSpace):
            publisher.send("nowhere", b"")
        with pytest.raises(InvalidInput, match="with client"):
            client.subscribe(SUB).poll()
    with pytest.raises(InvalidInput, match="connect again"):
        client.create_space("t", ["t"])


def test_a_redis_that_is_not_there_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(StoreUnavailable), blocking.connect("redis://127.0.0.1:1"):
        pass
    assert set(threading.enumerate()) <= before


def test_a_subscription_leaves_no_thread(embedded_redis_url: str) -> None:
    before = set(threading.enumerate())
    with blocking.connect(embedded_redis_url) as client:
        client.create_space("s", ["a/#"], streams=2)
        for _ in range(3):
            with client.subscribe(SUB, start="earliest"):
                pass
    assert set(threading.enumerate()) <= before


def test_a_client_serves_several_threads(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"], streams=2)
        with client.publisher() as publisher:
            threads = [
                threading.Thread(target=lambda: [publisher.send("a/b", b"x") for _ in range(20)])
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert publisher.send("a/b", b"last")[1] == 80


def test_history_and_listening_without_a_group(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            for number in range(5):
                publisher.send("a/b", str(number))
        with client.history("a/#", since=1) as history:
            assert [message.payload for batch in history for message in batch.messages] == [b"2", b"3", b"4"]
            assert history.positions == {"s.0.0": 5}
        with client.listen("a/#", start=4) as listening:
            assert next(iter(listening)).messages[0].payload == b"4"


FOLLOWED: dict[str, Callable[[blocking.Client], Any]] = {
    "listen": lambda client: client.listen("a/#"),
    "epochs": lambda client: client.listen("e/#", epochs="atomic"),
    "collection": lambda client: client.collection("c/#"),
    "catalog": lambda client: client.catalog("spaces"),
}


@pytest.mark.parametrize("kind", FOLLOWED)
def test_without_a_group_too_a_wait_may_be_short_and_nothing_is_lost(real_redis_url: str, kind: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("a", ["a/#"])
        client.create_space("e", ["e/#"], epochs=1)
        client.create_space("c", ["c/#"], collection=True)
        with FOLLOWED[kind](client) as following:
            if kind == "epochs":
                assert following.poll(10) is not None  # where the frontier stands
            for bad in ("soon", float("nan")):
                with pytest.raises(InvalidOption, match=r"^seconds is .*: use a number, or None"):
                    following.poll(bad)
            for _ in range(3):
                assert following.poll(0.01) is None
            if kind == "catalog":
                client.create_space("new", ["new/#"])
                assert following.poll(10).item.space == "new"
            elif kind == "epochs":
                with client.epoch_publisher("e", "p") as publisher:
                    publisher.submit("e/x", b"1", epoch=0)
                    publisher.advance(1)
                assert following.poll(10).to_arrow().column("payload").to_pylist() == [b"1"]
            else:
                with client.publisher() as publisher:
                    publisher.send("c/x" if kind == "collection" else "a/x", b"1")
                found = following.poll(10)
                assert (found.payload if kind == "collection" else found.messages[0].payload) == b"1"
            assert kind == "epochs" or following.poll(0.01) is None


def test_an_interrupted_wait_leaves_what_it_found_for_the_next_one(real_redis_url: str) -> None:
    """Ctrl-C comes whenever it likes, also when the answer is there and the program has not got it yet."""
    with blocking.connect(real_redis_url) as client, client.publisher() as publisher:
        client.create_space("s", ["a/#"])
        with client.listen("a/#") as listening:
            call = listening._loop.call

            def interrupted(work: Any, seconds: float | None = None) -> Any:
                call(work, seconds)
                raise KeyboardInterrupt

            publisher.send("a/b", b"1")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(listening._loop, "call", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    listening.poll()
            publisher.send("a/b", b"2")
            found = [next(iter(listening)).messages[0].payload for _ in range(2)]
            assert found == [b"1", b"2"]


def test_what_is_submitted_keeps_its_order_with_all_else(real_redis_url: str) -> None:
    large = b"0" * (MOST_BYTES + 1)
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher(max_buffer_bytes=16_000) as publisher:
            for number in range(4 * MOST_MESSAGES):
                content = large if number % 1000 == 999 else b""
                publisher.submit(
                    "a/b", content + b"%d" % number, key=None if number % 3 else b"k", timestamp=number
                )
                if number % 1500 == 0:
                    publisher.send_many("a/b", [b"many"])
            assert publisher.send("a/b", b"last")[1] == 4 * MOST_MESSAGES + 3
        with client.history("a/#") as history:
            read = [message for batch in history for message in batch.messages if message.payload != b"many"]
    assert [int(message.payload) for message in read[:-1]] == list(range(4 * MOST_MESSAGES))
    assert [message.key for message in read[:4]] == [b"k", None, None, b"k"]
    assert [message.timestamp.microsecond for message in read[:-1]] == list(range(4 * MOST_MESSAGES))


def test_several_threads_submit_each_in_its_order(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])

        def submit(name: int) -> None:
            for number in range(500):
                publisher.submit("a/b", b"%d %d" % (name, number))

        with client.publisher() as publisher:
            threads = [threading.Thread(target=submit, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with client.history("a/#") as history:
            read = [message.payload.split() for batch in history for message in batch.messages]
    for name in range(4):
        assert [int(number) for one, number in read if int(one) == name] == list(range(500))


def test_what_cannot_be_published_is_told_at_once_or_by_flush(
    real_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            with pytest.raises(UnknownSpace):
                publisher.submit("b/c", b"x")
            publisher.submit("a/b", b"x")
            with pytest.raises(InvalidInput):
                publisher.submit("a/b", 7)  # type: ignore[arg-type]
            publisher.flush()

            async def refuse(*message: object) -> None:
                raise UnknownSpace("the space was deleted meanwhile")

            with monkeypatch.context() as patched:
                patched.setattr(Publisher, "submit", refuse)
                publisher.submit("a/b", b"y")
                with pytest.raises(UnknownSpace, match="meanwhile"):
                    publisher.flush()
                # Whoever never flushes hears of it too, by a later message, which is not taken.
                deadline = time.monotonic() + 60
                with pytest.raises(UnknownSpace, match="meanwhile"):
                    while time.monotonic() < deadline:
                        publisher.submit("a/b", b"lost")
                with suppress(UnknownSpace):  # of those that were in the queue by then
                    publisher.flush()
            publisher.submit("a/b", b"z")
            publisher.flush()
        with pytest.raises(InvalidInput):
            publisher.submit("a/b", b"x")
        with client.history("a/#") as history:
            assert [message.payload for batch in history for message in batch.messages] == [b"x", b"z"]


def test_what_is_handed_out_says_what_it_is_in_one_line(embedded_redis_url: str) -> None:
    """In a notebook or a log, however many messages it has."""
    with blocking.connect(embedded_redis_url) as client:
        client.create_space("s", ["a/#"], streams=1)
        client.create_space("e", ["e/#"], streams=1, epochs=1)
        with client.publisher() as publisher, client.epoch_publisher("e", "p") as stamped:
            publisher.send_many("a/b", [b"0"] * 3)
            stamped.send("e/x", b"1", epoch=0)
            stamped.advance(1)
        with client.subscribe(SUB, start="earliest") as subscription:
            assert repr(subscription.poll(30)) == "Batch(stream=s.0.0, start=0, end=3, messages=3)"
        with client.listen("a/#", start="earliest") as plain:
            assert repr(plain.poll(30)) == "PlainBatch(stream=s.0.0, start=0, end=3, messages=3)"
        with client.listen("e/#", start="earliest", epochs="atomic") as whole:
            assert repr(whole.poll(30)) == "EpochBatch(epoch=(0,), messages=1)"
        with client.listen("e/#", start="earliest", epochs="eager") as early:
            found = [repr(early.poll(30)) for _ in range(2)]
            assert "EpochBatch(epoch=(0,), publisher='p', incarnation=1, messages=1)" in found
        with client.subscribe("$shared/g/e/#", start="earliest", epochs="atomic") as parts:
            found = [repr(parts.poll(30)) for _ in range(2)]
            said = "EpochPart(epoch=(0,), whole=True, stream=e.0.0, start=0, end=1, messages=1)"
            assert said in found
