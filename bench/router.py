"""Redis Cluster: our router beside redis-py's RedisCluster; speed, moved slots, and lost answers.

Both send the same commands to the same three nodes. An append is a script with one XADD, as a publisher sends
it; a round is one append, or one XREAD, for each of `STREAMS` streams, each in a slot of its own. The last
table counts how often an append ran whose answer was lost, and tells what its caller hears.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from bench.frame import Frame, Table
from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.redis.cluster import AsyncCluster
from streamlease.streams.redis.urls import connect
from tests.servers import Kind, RedisServer
from tests.topology.servers import Cluster, slot_of

STREAMS = 64
ROUNDS = 50
AT_ONCE = 16
PAYLOAD = b"x" * 1024
APPEND = "redis.call('INCR', KEYS[2]) return redis.call('XADD', KEYS[1], '*', 'p', ARGV[1])"
SLOW = "redis.call('INCR', KEYS[1]) local n = 0 for i = 1, 4e7 do n = n + i end return n"
"""Longer than `PATIENCE` on any machine of today."""
PATIENCE = 0.1
OURS, DEFAULT, ONCE = "our router", "redis-py, as it is", "redis-py, no retries"

Line = tuple[str | bytes | int, ...]


class Way(Protocol):
    """One of those compared."""

    async def send(self, lines: Sequence[Line]) -> list[Any]:
        """The reply, or the error, of each of `lines`; raises what all of them have in common."""
        ...

    async def aclose(self) -> None: ...


class Ours:
    """`streamlease.streams.redis.cluster`."""

    def __init__(self, url: str, patience: float) -> None:
        client = connect(url, answer_seconds=patience)
        assert isinstance(client, AsyncCluster)
        self.client = client

    async def send(self, lines: Sequence[Line]) -> list[Any]:
        return [answer.reply for answer in await self.client.exchange_behind((), lines, ())]

    async def aclose(self) -> None:
        await self.client.aclose()


class Theirs:
    """`redis.asyncio.cluster.RedisCluster`."""

    def __init__(self, cluster: Cluster, patience: float, *, retries: int | None) -> None:
        nodes = [ClusterNode("127.0.0.1", node.port) for node in cluster.nodes if node.is_running]
        more = {} if retries is None else {"retry": Retry(NoBackoff(), retries)}
        self.client = RedisCluster(startup_nodes=nodes, socket_timeout=patience, **more)  # type: ignore[abstract,arg-type]
        self.client.response_callbacks.pop("XREAD", None)  # both hand out what came, as it came

    async def send(self, lines: Sequence[Line]) -> list[Any]:
        if len(lines) == 1:
            return [await self.client.execute_command(*lines[0])]
        pipe = self.client.pipeline()
        for line in lines:
            pipe.execute_command(*line)
        return list(await pipe.execute(raise_on_error=False))

    async def aclose(self) -> None:
        await self.client.aclose()


def ways(cluster: Cluster, patience: float = 5.0) -> dict[str, Callable[[], Way]]:
    """What is compared, by name."""
    return {
        OURS: lambda: Ours(cluster.url, patience),
        DEFAULT: lambda: Theirs(cluster, patience, retries=None),
        ONCE: lambda: Theirs(cluster, patience, retries=0),
    }


@contextlib.contextmanager
def running(nodes: list[RedisServer]) -> Iterator[Cluster]:
    """A cluster of three nodes without a log on disk, put into `nodes`."""
    with tempfile.TemporaryDirectory() as directory:

        def make(_kind: object, *, settings: dict[str, str], persistent: bool) -> RedisServer:
            nodes.append(RedisServer(Kind.EMBEDDED, Path(directory) / str(len(nodes)), settings=settings))
            return nodes[-1].start()

        try:
            yield Cluster(make, Kind.EMBEDDED)
        finally:
            for node in nodes:
                node.stop()


def names() -> list[str]:
    """Tags of the streams, each in a slot of its own."""
    return [f"{{bench:{number}}}" for number in range(STREAMS)]


def appends(tags: Sequence[str]) -> list[Line]:
    """One append to each."""
    return [("EVAL", APPEND, 2, f"{tag}:log", f"{tag}:ran", PAYLOAD) for tag in tags]


def reads(tags: Sequence[str]) -> list[Line]:
    """The first ten entries of each."""
    return [("XREAD", "COUNT", 10, "STREAMS", f"{tag}:log", "0") for tag in tags]


Seconds = tuple[float, float]
"""Of the wall clock, and of this process's processor time."""


def _now() -> Seconds:
    return time.perf_counter(), time.process_time()


def _since(began: Seconds, count: int) -> Seconds:
    wall, processor = _now()
    return (wall - began[0]) / count, (processor - began[1]) / count


async def each(way: Way, lines: Sequence[Line], rounds: int) -> Seconds:
    """Of one round, all in one exchange."""
    began = _now()
    for _ in range(rounds):
        await way.send(lines)
    return _since(began, rounds)


async def single(way: Way, lines: Sequence[Line], rounds: int) -> Seconds:
    """Of one append that is sent alone."""
    began = _now()
    for number in range(rounds * 8):
        await way.send(lines[number % STREAMS : number % STREAMS + 1])
    return _since(began, rounds * 8)


async def at_once(way: Way, lines: Sequence[Line], rounds: int) -> Seconds:
    """Of one append of many tasks that each send one at a time."""
    began = _now()
    rotated = ([*lines[number:], *lines[:number]] for number in range(AT_ONCE))
    await asyncio.gather(*(single(way, turned, rounds) for turned in rotated))
    return _since(began, rounds * 8 * AT_ONCE)


Work = Callable[[Way, Sequence[Line], int], Awaitable[Seconds]]
WORKS: dict[str, tuple[Work, Callable[[Sequence[str]], list[Line]]]] = {
    f"a round of {STREAMS} appends": (each, appends),
    f"a round of {STREAMS} XREADs": (each, reads),
    "one append, alone": (single, appends),
    f"one append of {AT_ONCE} tasks": (at_once, appends),
}


def speed(cluster: Cluster, frame: Frame) -> Iterator[Table]:
    """Milliseconds of each work, medians, and the ratio of redis-py as it is to ours."""
    seconds: dict[tuple[str, str], list[Seconds]] = {}

    async def turn(name: str, make: Callable[[], Way]) -> None:
        way = make()
        try:
            await way.send(appends(names()))
            for work, (do, lines) in WORKS.items():
                seconds.setdefault((work, name), []).append(await do(way, lines(names()), ROUNDS))
        finally:
            await way.aclose()

    for _ in range(frame.runs):
        for name, make in ways(cluster).items():
            asyncio.run(turn(name, make))
    for place, clock in enumerate(("the wall clock", "the client's processor time")):
        title = f"Milliseconds of {clock}, median of {frame.runs}"
        table = Table(title, ("", OURS, DEFAULT, ONCE, "redis-py / ours"))
        for work in WORKS:
            median = [
                statistics.median(times[place] for times in seconds[work, name]) * 1000
                for name in (OURS, DEFAULT, ONCE)
            ]
            table.rows.append((work, *(f"{value:.3f}" for value in median), f"{median[1] / median[0]:.2f}"))
        yield table


def moving(cluster: Cluster, frame: Frame) -> Table:
    """A round of appends while a third of the slots is between two nodes, and after they have moved."""
    tags = names()
    mine = [tag for tag in tags if cluster.owner(slot_of(tag)) is cluster.nodes[0]][:16]
    rows: dict[str, list[str]] = {"ASK": [], f"ASK, {AT_ONCE} tasks": [], "MOVED": []}

    async def rounds(make: Callable[[], Way]) -> None:
        way = make()
        try:
            await way.send(appends(tags))
            moves = {tag: cluster.open_move(slot_of(tag)) for tag in mine}
            for tag, (source, target) in moves.items():
                cluster.move_keys(slot_of(tag), source, target)
            rows["ASK"].append(await _told(way, [appends(tags)]))
            rows[f"ASK, {AT_ONCE} tasks"].append(
                await _told(way, [[line] for line in appends(mine)] * 4, together=True)
            )
            for tag, (_, target) in moves.items():
                cluster.close_move(slot_of(tag), target)
            rows["MOVED"].append(await _told(way, [appends(tags)]))
        finally:
            await way.aclose()

    for make in ways(cluster).values():
        asyncio.run(rounds(make))
    title = f"{len(mine)} of {STREAMS} streams move: milliseconds, and failures"
    table = Table(title, ("", OURS, DEFAULT, ONCE))
    table.rows.extend((name, *cells) for name, cells in rows.items())
    return table


async def _told(way: Way, rounds: list[list[Line]], *, together: bool = False) -> str:
    began = time.perf_counter()
    if together:
        found = await asyncio.gather(*(way.send(lines) for lines in rounds), return_exceptions=True)
    else:
        found = [await way.send(lines) for lines in rounds]
    took = (time.perf_counter() - began) * 1000
    replies = [reply for one in found for reply in (one if isinstance(one, list) else [one])]
    failed = [reply for reply in replies if isinstance(reply, BaseException)]
    what = f": {type(failed[0]).__name__}" if failed else ""
    return f"{took:.0f} ms, {len(failed)} of {len(replies)} failed{what}"


def faults() -> Table:
    """How often an append ran whose answer was lost, and what its caller hears."""
    table = Table("The fate of an append", ("", OURS, DEFAULT, ONCE))
    for what, fault in FAULTS.items():
        table.rows.append((what, *(fault(name) for name in (OURS, DEFAULT, ONCE))))
    return table


@contextlib.contextmanager
def _three(name: str) -> Iterator[tuple[Cluster, list[str], Callable[[], Way]]]:
    """A fresh cluster, a stream of each of its nodes, and a client that does not wait for long."""
    with running([]) as cluster:
        tags = [next(tag for tag in names() if cluster.owner(slot_of(tag)) is node) for node in cluster.nodes]
        yield cluster, tags, ways(cluster, PATIENCE)[name]


def _slow(tag: str) -> Line:
    return ("EVAL", SLOW, 1, f"{tag}:ran")


def _late_alone(name: str) -> str:
    return _late(name, 1)


def _late_with_others(name: str) -> str:
    return _late(name, 3)


def _late(name: str, lines: int) -> str:
    with _three(name) as (cluster, tags, make):
        heard = asyncio.run(_heard(make, [[_slow(tags[0]), *appends(tags[1:])][:lines]]))
        return f"ran {_ran(cluster, tags[0])} times; {heard}"


def _dies(name: str) -> str:
    with _three(name) as (cluster, tags, make):
        killer = threading.Timer(PATIENCE / 2, os.kill, (cluster.nodes[0].pid, signal.SIGKILL))
        return asyncio.run(_heard(make, [[_slow(tags[0]), *appends(tags[1:])]], killer.start))


def _dead(name: str) -> str:
    with _three(name) as (cluster, tags, make):
        twice = [appends(tags)] * 2  # the first one notices, the second one finds no connection
        return asyncio.run(_heard(make, twice, cluster.nodes[0].kill))


FAULTS: dict[str, Callable[[str], str]] = {
    "alone, answered too late": _late_alone,
    "with others, answered too late": _late_with_others,
    "its node dies with it": _dies,
    "its node is gone, nothing can be sent": _dead,
}


async def _heard(
    make: Callable[[], Way], rounds: list[list[Line]], fault: Callable[[], object] = lambda: None
) -> str:
    """What the caller of the last round hears: of the append to the first node, and of the others."""
    way = make()
    try:
        await way.send([("EXISTS", line[3]) for line in rounds[0]])
        fault()
        for lines in rounds:
            try:
                words = [_word(reply) for reply in await way.send(lines)]
            except Exception as error:
                words = [_word(error)]
        others = f"; the others: {', '.join(sorted(set(words[1:])))}" if words[1:] else ""
        return f"{words[0]}{others}"
    finally:
        await way.aclose()


def _ran(cluster: Cluster, tag: str) -> int:
    """How often the append ran; asked until it does not run any more."""
    before, ran = -1, 0
    while ran != before:
        before = ran
        time.sleep(1)
        with cluster.nodes[0].client(socket_timeout=30.0) as client:
            ran = int(client.execute_command("GET", f"{tag}:ran") or 0)  # type: ignore[no-untyped-call]
    return ran


def _word(reply: object) -> str:
    if isinstance(reply, StreamleaseError | Exception):
        return type(reply).__name__
    return "done"


def measure(frame: Frame) -> Iterator[Table]:
    """Speed, moved slots, lost answers."""
    with running([]) as cluster:
        yield from speed(cluster, frame)
        yield moving(cluster, frame)
    yield faults()
