"""A Redis with one space, a leader that can be killed, and queries that are run as Spark runs them.

No Java: `Query` calls the reader as Spark's micro-batch engine does, in its order, with offsets that went
through JSON and a reader and partitions that were pickled. What outlives a process is in `Checkpoint`: the
offset log, the commit log, and a sink that takes each batch once, whatever is handed to it again.

A *process* here is an event loop in a thread. To kill one is to stop its loop between two steps and never
run it again: nothing is said to anybody, connections stay open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from streamlease.agent.client import Client
from streamlease.agent.loop import LoopThread
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.leader.core.machine import LeaderConfig
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.journal import recover
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.commits import committed
from streamlease.registry.leadership import LeadershipConfig
from streamlease.spark import connections
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.query import QuerySession
from streamlease.spark.source import StreamReader
from streamlease.streams.entries.entries import Row, encode_rows
from streamlease.streams.log.log import Append, AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.tasks import stop_all

SUBSCRIPTION = SharedSubscription.parse("$shared/g/t/#")
SPACE = "s"
TTL = 1000
"""How long (ms) the leadership of the world's host lasts without renewal."""

PATIENCE = 60.0
"""How long (s) a condition may take to come about, on a machine that stands still for seconds."""

Phase = Literal["fixed", "logged", "read", "sunk", "committed"]
"""How far a trigger gets: offset known; in the offset log; rows read; in the sink; in the commit log."""


class Seen(NamedTuple):
    """One row as the sink has it. `cut`: the identity of the part of the cut that it came in."""

    stream: str
    offset: int
    cut: str


@dataclass
class Checkpoint:
    """What outlives the process of a query."""

    offsets: list[str] = field(default_factory=list)
    """End offset of each batch, as JSON."""
    commits: int = 0
    """How many batches are done."""
    sink: dict[int, list[Seen]] = field(default_factory=dict)

    @property
    def rows(self) -> list[Seen]:
        """All rows in the sink, in order."""
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]

    def copy(self) -> Checkpoint:
        """A copy of the directory, sink included."""
        return Checkpoint(list(self.offsets), self.commits, dict(self.sink))


class Query:
    """One process that runs a query on a checkpoint."""

    def __init__(
        self, world: World, checkpoint: Checkpoint | None = None, *, once: bool = False, **options: Any
    ) -> None:
        given = {
            "redis": world.url,
            "subscribe": str(SUBSCRIPTION),
            **({} if "startingTimestamp" in options else {"startingOffsets": "earliest"}),
            "includeCut": "true",
            "embeddedLeader": "false",
            **{name: str(value) for name, value in options.items()},
        }
        self.checkpoint = checkpoint if checkpoint is not None else Checkpoint()
        self.reader = StreamReader(SourceOptions.parse(given))
        self.alive = True
        if once:
            self.reader.prepareForTriggerAvailableNow()

    @property
    def session(self) -> QuerySession:
        return self.reader._session()

    @property
    def held(self) -> dict[str, int]:
        """Stream -> lease epoch, of what it may put into a cut."""
        held = dict(self.session.query.machine.cuts.held)
        return {s: h.lease_epoch for s, h in held.items() if h.is_granted}

    def trigger(self, until: Phase = "committed", *, also_empty: bool = False) -> bool:
        """One round of Spark's micro-batch loop; whether there was a batch with something to read.

        Spark makes the first batch even where `end` equals `start`, since its log knows no `start` yet.

        Args:
            also_empty: whether such a first batch gets no further than `until` either; otherwise it is run to
                its end, and the query goes on from cut 0.
        """
        store = self.checkpoint
        batch = store.commits
        start = json.loads(store.offsets[batch - 1]) if batch else self.reader.initialOffset()
        logged = batch < len(store.offsets)
        end = (
            json.loads(store.offsets[batch])
            if logged
            else self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        )
        if batch and end == start:
            return False
        if batch and not logged:
            self.reader.commit(start)
        is_empty = not end["ranges"]
        if is_empty and not also_empty:
            until = "committed"
        self._run_batch(batch, start, end, until, logged=logged)
        return not is_empty

    def _run_batch(
        self, batch: int, start: dict[str, Any], end: dict[str, Any], until: Phase, *, logged: bool
    ) -> None:
        store = self.checkpoint
        if not logged:
            if until == "fixed":
                return
            store.offsets.append(json.dumps(end))
        if until == "logged":
            return
        rows = self.read(start, json.loads(store.offsets[batch]))
        if until == "read":
            return
        if end["ranges"]:
            store.sink.setdefault(batch, rows)
        if until == "sunk":
            return
        store.commits = batch + 1

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[Seen]:
        """What the tasks of a batch hand on."""
        partitions = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        worker: StreamReader = pickle.loads(pickle.dumps(self.reader))
        rows: list[Seen] = []
        for partition in partitions:
            for batch in worker.read(partition):
                columns = (batch.column(name).to_pylist() for name in ("stream", "offset", "cut"))
                rows += [Seen(*row) for row in zip(*columns, strict=True)]
        return rows

    def run(self, done: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Trigger again and again until `done`."""
        for _ in within(seconds):
            if done():
                return
            self.trigger()
        raise AssertionError(f"not done in {seconds} s: {len(self.checkpoint.rows)} rows, holds {self.held}")

    def run_until(self, phase: Phase, seconds: float = PATIENCE) -> None:
        """Trigger until there is a batch, which then gets no further than `phase`."""
        for _ in within(seconds):
            if self.trigger(phase):
                return
        raise AssertionError(f"no batch in {seconds} s; holds {self.held}")

    def run_to_the_end(self, seconds: float = PATIENCE) -> None:
        """As a query with ``availableNow`` is run: until there is no further batch."""
        for _ in within(seconds):
            begun = self.checkpoint.commits > 0
            if not self.trigger() and begun:
                return
        raise AssertionError(f"no end in {seconds} s")

    def kill(self) -> None:
        """End the process as SIGKILL does."""
        self.alive = False
        freeze(self.session.thread)

    def stop(self) -> None:
        """What Spark does when the query is stopped."""
        self.alive = False
        self.reader.stop()


def run_together(*queries: Query, done: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Trigger all in turn until `done`."""
    for _ in within(seconds):
        if done():
            return
        for query in queries:
            query.trigger()
    raise AssertionError(f"not done in {seconds} s; hold {[query.held for query in queries]}")


def within(seconds: float) -> Iterator[None]:
    """Rounds of a loop, until the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.002)


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    for _ in within(seconds):
        if condition():
            return
    raise AssertionError(f"the condition did not come about in {seconds} s")


def freeze(thread: LoopThread) -> None:
    """Stop a loop for good, wherever it is."""
    thread._loop.call_soon_threadsafe(thread._loop.stop)
    thread._thread.join()


def _bury(thread: LoopThread, clients: list[AsyncRedis]) -> None:
    """Free what a killed process left open; only once nothing can be disturbed any more."""
    loop = thread._loop
    if not loop.is_closed():
        asyncio.set_event_loop(loop)
        loop.run_until_complete(stop_all())
        for client in clients:
            loop.run_until_complete(client.aclose())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        asyncio.set_event_loop(None)


class Host:
    """A process that leads the group."""

    def __init__(self, url: str, config: LeaderConfig, ttl: int = TTL) -> None:
        self.thread = LoopThread("test-leader")
        self.redis = self.thread.call(self._connect(url))
        self.host = self.thread.call(self._start(config, ttl))
        self.alive = True

    async def _connect(self, url: str) -> AsyncRedis:
        return connect(url)

    async def _start(self, leader: LeaderConfig, ttl: int) -> LeaderHost:
        leadership = LeadershipConfig(ttl=ttl, renew_interval=ttl // 4)
        config = HostConfig(name="test", registered=False, leader=leader, leadership=leadership)
        host = LeaderHost(self.redis, config, pid=os.getpid())
        await host.start()
        host.lead(SUBSCRIPTION.id)
        return host

    def kill(self) -> None:
        self.alive = False
        freeze(self.thread)

    async def _close(self) -> None:
        await self.host.close()
        await self.redis.aclose()

    def close(self) -> None:
        if self.alive:
            self.thread.call(self._close())
            self.thread.stop()
        else:
            _bury(self.thread, [self.redis])


class World:
    """See the module."""

    def __init__(self, url: str, streams: int = 4, epochs: int = 0) -> None:
        self.url = url
        self.published: Counter[str] = Counter()
        self._thread = LoopThread("test-world")
        self._client = self._thread.call(self._connect())
        self._thread.call(self._client.create_space(SPACE, ["t/#"], streams=streams, epochs=epochs))
        self.streams = [str(StreamId(SPACE, 0, shard)) for shard in range(streams)]
        self._sequence: Counter[str] = Counter()
        self._incarnation = 1
        self.queries: list[Query] = []
        self.hosts: list[Host] = []

    async def _connect(self) -> Client:
        return await Client(self.url, embedded=False).__aenter__()

    def publish(self, counts: Mapping[str, int] | int, *, entry: int = 3) -> None:
        """Append that many messages to each stream, in entries of up to `entry` messages."""
        if isinstance(counts, int):
            counts = dict.fromkeys(self.streams, counts)
        self._thread.call(self._publish(counts, entry))

    async def _publish(self, counts: Mapping[str, int], entry: int) -> None:
        log = AsyncLog(self._client.redis)
        for stream, count in counts.items():
            for first in range(0, count, entry):
                size = min(entry, count - first)
                rows = [Row("t/x", b"%d" % (self.published[stream] + i)) for i in range(size)]
                sequence = self._sequence[stream]
                self._sequence[stream] += 1
                await log.append(
                    Append(StreamId.parse(stream), "~w", self._incarnation, sequence, encode_rows(rows))
                )
                self.published[stream] += size

    def begin_anew(self) -> None:
        """Publish as another process, which knows nothing of what was published before."""
        self._incarnation += 1
        self._sequence.clear()

    def ends(self) -> dict[str, int]:
        """The offset that the next message of each stream will get."""
        wanted = [StreamId.parse(stream) for stream in self.streams]
        found = self._thread.call(AsyncLog(self._client.redis).next_offsets(wanted))
        return {str(stream): end for stream, end in found.items()}

    def declare(self) -> None:
        """Declare the group, from the earliest message on."""
        self._thread.call(self._client.groups.declare(SUBSCRIPTION, "earliest"))

    def lead(self, config: LeaderConfig | None = None, *, ttl: int = TTL) -> Host:
        """Start a host that leads the group; its leadership lasts `ttl` ms without renewal."""
        self.declare()
        host = Host(self.url, config or LeaderConfig(), ttl)
        self.hosts.append(host)
        return host

    def query(self, checkpoint: Checkpoint | None = None, *, once: bool = False, **options: Any) -> Query:
        """Start a process that runs a query."""
        query = Query(self, checkpoint, once=once, **options)
        self.queries.append(query)
        return query

    def state(self) -> GroupState:
        """What the group's journal says."""
        return self._thread.call(recover(self._client.redis, SUBSCRIPTION.id)).state

    @property
    def committed(self) -> dict[str, int]:
        """What the group has consumed; consumers commit beside the journal, and tell their leader later."""
        journal = {stream: progress.committed for stream, progress in self.state().streams.items()}
        return journal | self._thread.call(committed(self._client.redis, SUBSCRIPTION.id, [*journal]))

    @property
    def all_committed(self) -> bool:
        """Whether all was consumed."""
        return self.committed == {stream: self.published[stream] for stream in self.streams}

    @property
    def total(self) -> int:
        return self.published.total()

    def check(self, *checkpoints: Checkpoint, duplicates: bool = False) -> Counter[tuple[str, int]]:
        """All was delivered, in order; twice only if allowed, and then in the same part of a cut.

        Returns:
            how often each message was delivered beyond the first time.
        """
        cuts: dict[tuple[str, int], list[str]] = {}
        for checkpoint in checkpoints:
            for rows in checkpoint.sink.values():
                assert len({row[:2] for row in rows}) == len(rows), "one batch holds a message twice"
                for stream in self.streams:
                    offsets = [row.offset for row in rows if row.stream == stream]
                    assert offsets == sorted(offsets), f"batch out of order in {stream}"
                for row in rows:
                    cuts.setdefault((row.stream, row.offset), []).append(row.cut)
        expected = {(stream, offset) for stream in self.streams for offset in range(self.published[stream])}
        assert expected - cuts.keys() == set(), "lost"
        assert cuts.keys() - expected == set(), "invented"
        twice = {message: parts for message, parts in cuts.items() if len(parts) > 1}
        assert all(len(set(parts)) == 1 for parts in twice.values()), "read twice in different cuts"
        if not duplicates:
            assert twice == {}
        return Counter({message: len(parts) - 1 for message, parts in twice.items()})

    def close(self) -> None:
        for query in self.queries:
            if query.alive:
                query.stop()
        for host in self.hosts:
            host.close()
        for query in self.queries:
            session = query.reader._query
            if session is not None:
                client = session.query.finder.client
                _bury(session.thread, [client.redis] if client is not None else [])
        with contextlib.suppress(KeyError):
            while True:
                connections._connections.popitem()[1].close()
        self._thread.call(self._client.close())
        self._thread.stop()
