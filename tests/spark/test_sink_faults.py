"""The sink as Spark drives it, without Java: commits that fail half-way, aborts, repetitions, transactions.

The writers are called in Spark's order, with messages that were pickled; what Spark gives a task by its
context (the query's id and the batch) is put in its place.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from streamlease.agent import blocking
from streamlease.catalog import sink_rows
from streamlease.protocol.errors import NotDurable, StoreRefused, StreamleaseError, Unsupported
from streamlease.spark import sink
from streamlease.spark.sink import BatchWriter, StreamWriter
from streamlease.spark.sink_options import SinkOptions
from streamlease.streams.catalog.keys import CATALOG, PROCESSES
from streamlease.streams.entries.delivered import to_messages
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.staged import batch_plan as plans
from streamlease.streams.publish.staged.delivery import Delivery
from streamlease.streams.redis.connection import BlockingRedis, ask, connect, connect_blocking, run_blocking
from streamlease.streams.spaces.spaces import SpaceStore

ROWS = StructType([StructField("topic", StringType()), StructField("payload", StringType())])
Messages = list[WriterCommitMessage | None]


async def content(url: str) -> Counter[str]:
    found: Counter[str] = Counter()
    async with connect(url) as redis:
        for name in ("t", "u"):
            for stream in (await SpaceStore(redis).get(name)).streams():
                for batch in await AsyncLog(redis).read(stream, 0):
                    found.update(f"{name} {message.payload.decode()}" for message in to_messages(batch))
    return found


async def altered(url: str) -> None:
    async with connect(url) as redis:
        await SpaceStore(redis).generations.alter("t", streams=5)


def once(numbers: Sequence[int], space: str = "t") -> Counter[str]:
    return Counter(f"{space} {number}" for number in numbers)


class Sink:
    """A space ``t`` and one ``u``, and writers into them."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        self.batch = 0
        self._patch = monkeypatch
        monkeypatch.setattr(sink, "_property", self._property)
        with blocking.connect(url) as client:
            client.create_space("t", ["t/#"], streams=3)
            client.create_space("u", ["u/#"], streams=2)

    def _property(self, name: str) -> str:
        return {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(self.batch)}[name]

    def options(self, stream: bool, **more: str) -> SinkOptions:
        return SinkOptions.parse({"redis": self.url, "redis.timeout": "1s", **more}, stream=stream)

    def query(self) -> StreamWriter:
        return StreamWriter(self.options(True), ROWS)

    def job(self, **more: str) -> BatchWriter:
        return BatchWriter(self.options(False, **more), ROWS, overwrite=False)

    def staged(
        self, writer: StreamWriter | BatchWriter, numbers: Sequence[int], tasks: int, topic: str = "t/{}"
    ) -> Messages:
        """What `tasks` tasks answer that write `numbers`."""
        messages: Messages = []
        for task in range(tasks):
            mine = [number for number in numbers if number % tasks == task]
            rows = pa.record_batch(
                {
                    "topic": [topic.format(n % 7) for n in mine],
                    "payload": pa.array([str(n) for n in mine], pa.string()),
                }
            )
            messages.append(
                pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(iter([rows]))))
            )
        return messages

    def run(self, numbers: Sequence[int], tasks: int) -> None:
        """One micro-batch, made anew."""
        writer = self.query()
        writer.commit(self.staged(writer, numbers, tasks), self.batch)

    def keys(self, pattern: str) -> list[bytes]:
        with connect_blocking(self.url) as redis:
            (keys,) = run_blocking(ask(redis, [("KEYS", pattern)]))
        return sorted(keys)

    def content(self) -> Counter[str]:
        """How often each payload is in each space, as ``SPACE PAYLOAD``."""
        return asyncio.run(content(self.url))

    def failing(self, error: StreamleaseError, streams: int, parts: int = 9) -> None:
        """Let one commit fail once some streams have some parts of their rows, and others nothing."""
        original = Delivery._append
        left = [error]

        async def append(self: Delivery, batch: int, plan: Any) -> Any:
            if not left:
                return await original(self, batch, plan)
            whole = plan.parts
            plan.parts = {stream: whole[stream][:parts] for stream in [*whole][:streams]}
            await original(self, batch, plan)
            plan.parts = whole
            raise left.pop()

        self._patch.setattr(Delivery, "_append", append)


@pytest.fixture
def world(real_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Sink:
    return Sink(real_redis_url, monkeypatch)


NOT_DURABLE = NotDurable("written, but not as durably as replicated:1 demands: 0 of 1 replicas confirmed it")


def test_a_failover_in_a_micro_batch_loses_no_rows(world: Sink) -> None:
    """The batch was half written, and asked for a new checkpoint; see also `test_delivery_losses`."""
    writer = world.query()
    messages = world.staged(writer, range(100), 2)
    lost = world.keys("*:staged:*")[0]
    with connect_blocking(world.url) as redis:
        run_blocking(ask(redis, [("UNLINK", lost)]))
    with pytest.raises(StreamleaseError, match="start again, and the repetition"):
        writer.commit(messages, 0)
    writer.abort(messages, 0)
    assert world.content() == Counter()
    assert world.keys("*staged*") == []
    world.run(range(100), 3)
    assert world.content() == once(range(100))


@pytest.mark.parametrize(("streams", "parts"), [(0, 1), (1, 1), (2, 1), (2, 2)])
def test_what_was_decided_outlives_an_abort(
    world: Sink, monkeypatch: pytest.MonkeyPatch, streams: int, parts: int
) -> None:
    """Half of a stream's rows were there, the rest gone, and every start asked for a new checkpoint."""
    monkeypatch.setattr(plans, "APPEND_KEYS", 1)
    writer = world.query()
    messages = world.staged(writer, range(100), 2)
    world.failing(NOT_DURABLE, streams, parts)
    with pytest.raises(NotDurable):
        writer.commit(messages, 0)
    writer.abort(messages, 0)
    world.run(range(100), 3)
    assert world.content() == once(range(100))
    assert world.keys("*staged*") == []


@pytest.mark.parametrize("altered_before_the_repetition", [True, False])
def test_an_abort_and_an_altered_space(world: Sink, altered_before_the_repetition: bool) -> None:
    """A batch of which one stream has its rows is finished into the streams that follow the others."""
    writer = world.query()
    messages = world.staged(writer, range(100), 2)
    world.failing(NOT_DURABLE, 1)
    with pytest.raises(NotDurable):
        writer.commit(messages, 0)
    again = world.query()
    if altered_before_the_repetition:
        writer.abort(messages, 0)
        asyncio.run(altered(world.url))
        repeated = world.staged(again, range(100), 3)
    else:
        repeated = world.staged(again, range(100), 3)
        asyncio.run(altered(world.url))
        writer.abort(messages, 0)
    again.commit(repeated, 0)
    assert world.content() == once(range(100))
    assert world.keys("*staged*") == []


def setting(world: Sink, name: str, value: int) -> None:
    """Set what Redis is configured to."""
    with connect_blocking(world.url) as redis:
        run_blocking(ask(redis, [("CONFIG", "SET", name, str(value))]))


def test_what_is_staged_is_committed_or_aborted_without_memory(world: Sink) -> None:
    """It takes the memory already; the next batch has to wait for some."""
    writer = world.query()
    aborted = world.staged(writer, range(100), 2)
    messages = world.staged(writer, range(100), 2)
    setting(world, "maxmemory", 1)
    try:
        writer.abort(aborted, 0)
        writer.commit(messages, 0)
        assert world.keys("*staged*") == []
        with pytest.raises(StoreRefused, match="out of memory"):
            world.staged(writer, range(100, 120), 1)
    finally:
        setting(world, "maxmemory", 0)
    assert world.content() == once(range(100))
    world.batch = 1
    world.run(range(100, 120), 1)
    assert world.content() == once(range(120))
    assert world.keys("*staged*") == []


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.slow
def test_no_writes_in_a_commit(world: Sink, monkeypatch: pytest.MonkeyPatch, decided: bool) -> None:
    """Redis refuses the decision, or the appends behind it, for longer than the commit waits."""
    writer = world.query()
    messages = world.staged(writer, range(100), 2)
    step = "_append" if decided else "_decide"
    original = getattr(Delivery, step)

    async def refusing(self: Delivery, *arguments: Any) -> Any:
        setting(world, "min-replicas-to-write", 1)
        return await original(self, *arguments)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(Delivery, step, refusing)
            with pytest.raises(StoreRefused, match="NOREPLICAS"):
                writer.commit(messages, 0)
    finally:
        setting(world, "min-replicas-to-write", 0)
    writer.abort(messages, 0)
    assert len(world.keys("*:staged:*")) == (4 if decided else 0)
    world.run(range(100), 3)
    assert world.content() == once(range(100))
    assert world.keys("*staged*") == []


def test_an_abort_before_the_commit_and_one_of_another_attempt(world: Sink) -> None:
    writer = world.query()
    aborted = world.staged(writer, range(100), 2)
    assert len(world.keys("*:staged:*")) == 4
    writer.abort([*aborted[:1], None], 0)
    assert len(world.keys("*:staged:*")) == 2
    writer.abort(aborted, 0)
    assert world.keys("*staged*") == []
    decided = world.staged(writer, range(100), 2)
    other = world.staged(writer, range(100), 4)
    world.failing(NOT_DURABLE, 1)
    with pytest.raises(NotDurable):
        writer.commit(decided, 0)
    writer.abort(other, 0)
    assert len(world.keys("*:staged:*")) == 2
    world.run(range(100), 1)
    assert world.content() == once(range(100))
    # An abort that comes late, after all is done, finds nothing to keep.
    writer.abort(decided, 0)
    world.batch = 1
    world.run(range(100, 120), 2)
    assert world.content() == once(range(120))
    assert world.keys("*staged*") == []


def test_a_job_that_nobody_repeats_leaves_nothing(world: Sink) -> None:
    writer = world.job()
    messages = world.staged(writer, range(100), 2)
    world.failing(NOT_DURABLE, 1)
    with pytest.raises(NotDurable):
        writer.commit(messages)
    writer.abort(messages)
    assert world.keys("*staged*") == world.keys("*sink:*") == []


def test_a_transaction_that_fails_half_way_is_finished_by_its_repetition(world: Sink) -> None:
    given = {"txnAppId": "app", "txnVersion": "4"}
    writer = world.job(**given)
    messages = world.staged(writer, range(50), 2)
    world.failing(NOT_DURABLE, 1)
    with pytest.raises(NotDurable):
        writer.commit(messages)
    writer.abort(messages)
    again = world.job(**given)
    again.commit(world.staged(again, range(50), 3))
    assert world.content() == once(range(50))
    assert world.keys("*staged*") == []


def test_one_version_is_written_to_each_target(world: Sink, caplog: pytest.LogCaptureFixture) -> None:
    """Delta Lake's example of foreachBatch: two writes with one version. The second was dropped silently."""

    def write(topics: str, number: int, version: int, **more: str) -> None:
        writer = world.job(txnAppId="app", txnVersion=str(version), **more)
        writer.commit(world.staged(writer, range(number, number + 3), 2, topics))

    both = once(range(3)) + once(range(10, 13), "u")
    with caplog.at_level(logging.WARNING):
        write("t/{}", 0, 7)
        write("u/{}", 10, 7)
        assert world.content() == both
        write("t/{}", 20, 7, topic="t/other")
        write("t/{}", 30, 7, topic="t/third")
        both += once([20, 21, 22, 30, 31, 32])
        assert world.content() == both
        assert caplog.messages == []
        for version in (7, 6):
            write("t/{}", 0, version)
            write("u/{}", 10, version)
            write("t/{}", 20, version, topic="t/other")
        assert world.content() == both
    assert caplog.messages == [
        f"txnVersion {version} of txnAppId app was skipped for {target}, "
        f"which has it, or a later one, already"
        for version in (7, 6)
        for target in ("space t", "space u", "topic t/other")
    ]
    write("t/{}", 40, 8)
    assert world.content() == both + once([40, 41, 42])
    assert world.keys("*staged*") == []


def test_one_write_to_two_spaces_is_repeated_after_it_reached_one(world: Sink) -> None:
    def write() -> None:
        writer = world.job(txnAppId="app", txnVersion="0")
        messages = world.staged(writer, range(40), 2) + world.staged(writer, range(40), 1, "u/{}")
        writer.commit(messages)

    world.failing(NOT_DURABLE, 1)
    with pytest.raises(NotDurable):
        write()
    assert "u 1" not in world.content()
    write()
    write()
    assert world.content() == once(range(40)) + once(range(40), "u")


def test_a_transaction_without_rows_is_written(world: Sink) -> None:
    writer = world.job(txnAppId="app", txnVersion="0")
    writer.commit(world.staged(writer, [], 2))
    writer.commit([])
    assert world.content() == Counter()


def test_what_a_sink_publishes_to_stands_in_the_catalog(
    world: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever process decides a batch; and a batch without a new topic changes nothing there."""
    monkeypatch.setattr(sink_rows, "MOST_SHOWN", 8)

    def listed(collection: str) -> list[Any]:
        with blocking.connect(world.url) as client, client.catalog(collection) as found:
            return sorted((one.model_dump() for one in found.items), key=lambda one: str(one["topic"]))

    def topics(collection: str) -> list[str]:
        return [one["topic"] for one in listed(collection)]

    def changes() -> int:
        with connect_blocking(world.url) as redis:
            (count,) = run_blocking(ask(redis, [("XLEN", CATALOG.changes)]))
        return int(count)

    world.run(range(5), 2)
    first = [f"t/{number}" for number in range(5)]
    assert (topics("publications"), topics("topics")) == (first, first)
    assert {(one["space"], one["query"]) for one in listed("publications")} == {("t", None)}
    told = changes()
    world.batch = 1
    monkeypatch.setattr(os, "getpid", lambda: 1)
    world.run(range(3), 1)
    assert changes() == told, "as long as its lease holds"
    world.batch = 2
    world.run(range(7), 3)
    first = [f"t/{number}" for number in range(7)]
    assert topics("publications") == first
    # Its lease is over: all of it comes anew with the next batch.
    with connect_blocking(world.url) as redis:
        run_blocking(ask(redis, [("ZADD", PROCESSES, 1, one) for one in _processes(redis)]))
    assert topics("publications") == []
    world.batch = 3
    world.run([1], 1)
    assert topics("publications") == ["t/1"]
    # A job has ended with its commit, a transaction may have a next version; no more than eight are shown.
    writer = world.job()
    writer.commit(world.staged(writer, [1], 1, "u/{}"))
    assert (topics("publications"), topics("topics")) == (["t/1"], [*first, "u/1"])
    writer = world.job(txnAppId="app", txnVersion="0")
    writer.commit(world.staged(writer, range(20), 1, "u/{}") + world.staged(writer, range(20), 1, "u/more{}"))
    assert len(topics("publications")) == 9
    assert len(topics("topics")) == 7 + 14
    # A program of a query that has ended, or another's, delivers its rows all the same.
    monkeypatch.setenv("STREAMLEASE_QUERY_ID", "0123456789abcdef")
    monkeypatch.setenv("STREAMLEASE_QUERY_TOKEN", "wrong")
    world.batch = 4
    with caplog.at_level(logging.WARNING):
        world.run([53], 1)
    assert "sink query q is not shown in the catalog: this process says that it is of query" in caplog.text
    assert world.content()["t 53"] == 1


def _processes(redis: BlockingRedis) -> list[bytes]:
    (found,) = run_blocking(ask(redis, [("ZRANGEBYSCORE", PROCESSES, "-inf", "+inf")]))
    return list(found)


@pytest.mark.parametrize("field", ["batch", "version", "plan"])
def test_what_was_decided_and_cannot_be_read_is_told_with_its_key(world: Sink, field: str) -> None:
    """A batch that is half written is not decided anew."""
    writer = world.query()
    messages = world.staged(writer, range(100), 2)
    world.failing(NOT_DURABLE, 1)
    with pytest.raises(NotDurable):
        writer.commit(messages, 0)
    before = world.content()
    with connect_blocking(world.url) as redis:
        (decided,) = run_blocking(ask(redis, [("HGET", "sl:{sink:q}:state", field)]))
        run_blocking(ask(redis, [("HSET", "sl:{sink:q}:state", field, b"\xffjunk")]))
        again = world.query()
        repeated = world.staged(again, range(100), 3)
        with pytest.raises(Unsupported, match=r"sl:\{sink:q\}:state"):
            again.commit(repeated, 0)
        assert world.content() == before
        run_blocking(ask(redis, [("HSET", "sl:{sink:q}:state", field, decided)]))
    world.run(range(100), 2)
    assert world.content() == once(range(100))


def test_rows_that_are_lost_are_not_decided_anew_where_it_cannot_be_read_what_was(world: Sink) -> None:
    world.run(range(100), 2)
    world.batch = 1
    writer = world.query()
    messages = world.staged(writer, range(100, 200), 2)
    with connect_blocking(world.url) as redis:
        run_blocking(ask(redis, [("UNLINK", world.keys("*:staged:*")[0])]))
        run_blocking(ask(redis, [("HSET", "sl:{sink:q}:state", "batch", b"\xffjunk")]))
    with pytest.raises(Unsupported, match=r"key sl:\{sink:q\}:state holds .*, which is no number"):
        writer.commit(messages, 1)
    assert world.content() == once(range(100))


def test_what_a_stream_knows_of_a_sink_and_cannot_be_read_is_told_with_its_key(world: Sink) -> None:
    world.run(range(100), 2)
    publishers = world.keys("sl:{t.*:pubs")[0].decode()
    with connect_blocking(world.url) as redis:
        (held,) = run_blocking(ask(redis, [("HGETALL", publishers)]))
        run_blocking(ask(redis, [("HSET", publishers, held[0], b"\xffjunk")]))
    world.batch = 1
    with pytest.raises(StreamleaseError, match=f"{re.escape(publishers)}.* restore"):
        world.run(range(100, 200), 2)


@pytest.mark.parametrize("where", ["former generation", "staged"])
def test_what_is_read_beside_a_batch_and_is_damaged_is_told_with_its_key(world: Sink, where: str) -> None:
    world.run(range(100), 2)
    publishers = world.keys("sl:{t.0.*:pubs")[0].decode()
    key = "sl:{sink:q}:staged" if where == "staged" else publishers
    with connect_blocking(world.url) as redis:
        if where == "staged":
            run_blocking(ask(redis, [("SADD", key, b"\xffjunk")]))
        else:
            asyncio.run(altered(world.url))
            (held,) = run_blocking(ask(redis, [("HGETALL", key)]))
            run_blocking(ask(redis, [("HSET", key, held[0], b"\xffjunk")]))
    world.batch = 1
    with pytest.raises(Unsupported, match=f"restore key {re.escape(key)} from a backup"):
        world.run(range(100, 200), 2)
