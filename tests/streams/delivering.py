"""A sink without Spark: tasks that stage numbers, a driver that delivers them, and clients that die."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pyarrow as pa
from redis.exceptions import ConnectionError, ResponseError

from streamlease.streams.entries.entries import encode_batch
from streamlease.streams.entries.splitting import split
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.staged.batch_plan import Staged
from streamlease.streams.publish.staged.delivery import Delivery
from streamlease.streams.publish.staged.staging import Stager
from streamlease.streams.redis.connection import AsyncRedis, ask, connect, connect_blocking
from streamlease.streams.spaces.spaces import Space, SpaceStore

SINK = "q"
SCHEMA: dict[str, Any] = {"columns": [{"name": "n", "type": "int64"}]}


class Rig:
    """A space, and a sink that writes into it."""

    def __init__(self, url: str, redis: AsyncRedis, space: Space) -> None:
        self.url = url
        self.redis = redis
        self.space = space
        self.log = AsyncLog(redis)
        self.spaces = SpaceStore(redis)

    def delivery(self) -> Delivery:
        return Delivery(self.redis, SINK, "spark-q")

    def stage(self, batch: int, numbers: Sequence[int], tasks: int, token: str) -> list[Staged]:
        """Let `tasks` tasks stage these numbers; the keys in the order of tasks."""
        staged: list[Staged] = []
        schema = self.space.newest_schema
        with connect_blocking(self.url) as redis:
            for task in range(tasks):
                stager = Stager(redis, lambda _: SINK, batch, f"{token}-{task}")
                mine = [n for n in numbers if n % tasks == task]
                for begin in range(0, len(mine), 10):
                    some = mine[begin : begin + 10]
                    columns = {"topic": [f"t/{n % 7}" for n in some], "key": [b"%d" % n for n in some]}
                    values = {"payload": [b"%d" % n for n in some]} if schema is None else {"n": some}
                    for stream, piece in split(
                        pa.record_batch({**columns, **values}), self.space.stream_for, False, 2**20
                    ):
                        stager.add(stream, encode_batch(piece, "zstd", schema))
                staged += stager.finish()
        return staged

    async def numbers(self) -> list[int]:
        """All numbers in the space, sorted."""
        found = []
        space = await self.spaces.get("t")
        for stream in space.streams():
            for batch in await self.log.read(stream, 0):
                if "n" in batch.schema.names:
                    found += batch.column("n").to_pylist()
                else:
                    found += [int(payload) for payload in batch.column("payload").to_pylist()]
        return sorted(found)

    async def left(self) -> list[bytes]:
        """Staged keys that are still there."""
        (keys,) = await ask(self.redis, [("KEYS", "*staged*")])
        return list(keys)


@asynccontextmanager
async def rig(url: str, schema: dict[str, Any] | None = None) -> AsyncIterator[Rig]:
    async with connect(url) as redis:
        space = await SpaceStore(redis).create("t", ["t/#"], streams=3, schema=schema)
        yield Rig(url, redis, space)


class Dying:
    """A client that loses its server: before an exchange, or after sending it."""

    def __init__(self, redis: Any, exchanges: int, *, sends_last: bool) -> None:
        self.connection_pool = DyingPool(redis.connection_pool, exchanges, sends_last)


class DyingPool:
    """Gives connections for some exchanges; the last one may send but hears nothing."""

    def __init__(self, pool: Any, exchanges: int, sends_last: bool) -> None:
        self._pool = pool
        self._left = exchanges
        self._sends_last = sends_last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    async def get_connection(self) -> Any:
        if self._left == 0 and not self._sends_last:
            raise ConnectionError("gone")
        if self._left < 0:
            raise ConnectionError("gone")
        self._left -= 1
        connection = await self._pool.get_connection()
        if self._left == -1:
            return Deaf(connection)
        return connection

    async def release(self, connection: Any) -> None:
        await self._pool.release(connection.real if isinstance(connection, Deaf) else connection)


class Deaf:
    """A connection over which everything is sent and done, and no reply arrives."""

    def __init__(self, connection: Any) -> None:
        self.real = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def read_response(self, **options: Any) -> Any:
        with suppress(ResponseError):
            await self.real.read_response(**options)
        raise ConnectionError("gone")


class Losing:
    """A client of a server that fails over once, to a replica that was some exchanges behind.

    Args:
        at: before which exchange, the first being 0.
        back: how many exchanges the replica does not have.
    """

    def __init__(self, world: Rig, *, at: int, back: int) -> None:
        self.connection_pool = LosingPool(world, at, back)

    @property
    def lost(self) -> bool:
        """Whether it has happened."""
        return self.connection_pool.lost

    def end(self) -> None:
        """It does not happen any more."""
        self.connection_pool.over = True


class LosingPool:
    """Keeps a copy of all keys from before each exchange, and once puts them all back to an older one."""

    def __init__(self, world: Rig, at: int, back: int) -> None:
        self._world = world
        self._pool: Any = world.redis.connection_pool  # type: ignore[union-attr]
        self._at, self._back = at, back
        self._copies: list[dict[bytes, tuple[bytes, int]]] = []
        self.lost = self.over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    async def get_connection(self) -> Any:
        if not self.lost and not self.over:
            self._copies.append(await self._copy())
        if not self.lost and not self.over and len(self._copies) == self._at + 1:
            self.lost = True
            await self._restore(self._copies[self._at - self._back])
        return await self._pool.get_connection()

    async def release(self, connection: Any) -> None:
        await self._pool.release(connection)

    async def _copy(self) -> dict[bytes, tuple[bytes, int]]:
        redis = self._world.redis
        (keys,) = await ask(redis, [("KEYS", "*")])
        values = await ask(redis, [(word, key) for key in keys for word in ("DUMP", "PTTL")])
        return {key: (values[2 * n], max(0, values[2 * n + 1])) for n, key in enumerate(keys)}

    async def _restore(self, copy: dict[bytes, tuple[bytes, int]]) -> None:
        await ask(
            self._world.redis,
            [("FLUSHALL",), *(("RESTORE", key, ttl, value) for key, (value, ttl) in copy.items())],
        )
