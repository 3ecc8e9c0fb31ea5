"""redis-py: XADD, a consumer group, XACK."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis
import redis.asyncio

from bench.contenders.workload import BATCH, STREAMS, age_of, payloads, ticks

NAMES = [f"peers:{number}" for number in range(STREAMS)]
GROUP = "g"


async def prepare(url: str) -> None:
    """Make the streams and the group."""
    async with redis.asyncio.Redis.from_url(url) as client:
        for name in NAMES:
            await client.xgroup_create(name, GROUP, "0", mkstream=True)


class Asynchronous:
    """redis.asyncio."""

    async def publish(self, url: str, count: int) -> None:
        """Pipelines of 1,000."""
        async with redis.asyncio.Redis.from_url(url) as client:
            data = payloads(count)
            for first in range(0, count, BATCH):
                pipe = client.pipeline(transaction=False)
                for number in range(first, min(first + BATCH, count)):
                    pipe.xadd(NAMES[number % STREAMS], {"p": data[number]})
                await pipe.execute()

    async def consume(self, url: str, count: int, begun: Callable[[int], None]) -> None:
        """1,000 entries of each stream a call, each stream's acknowledged in one XACK."""
        left = count
        async with redis.asyncio.Redis.from_url(url) as client:
            while left:
                seen = 0
                for name, entries in await self._read(client):
                    seen += sum(1 for _, fields in entries if fields[b"p"] is not None)
                    await client.xack(name, GROUP, *[entry for entry, _ in entries])
                if left == count:
                    begun(seen)
                left -= seen

    async def _read(
        self, client: redis.asyncio.Redis
    ) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
        found = await client.xreadgroup(GROUP, "c", dict.fromkeys(NAMES, ">"), count=BATCH, block=1000)
        return found or []  # type: ignore[return-value]

    async def send(self, url: str, count: int) -> list[float]:
        """XADD."""
        seconds = []
        async with redis.asyncio.Redis.from_url(url) as client:
            for number, payload in enumerate(payloads(count)):
                began = time.perf_counter()
                await client.xadd(NAMES[number % STREAMS], {"p": payload})
                seconds.append(time.perf_counter() - began)
        return seconds

    async def publish_paced(self, url: str, rate: int, seconds: float) -> None:
        """What is due at once goes into one pipeline."""
        number = 0
        async with redis.asyncio.Redis.from_url(url) as client:
            async for due in ticks(rate, seconds):
                pipe = client.pipeline(transaction=False)
                for payload in due:
                    pipe.xadd(NAMES[number % STREAMS], {"p": payload})
                    number += 1
                await pipe.execute()

    async def consume_paced(self, url: str, count: int, ready: Callable[[], None]) -> list[int]:
        """As `consume`."""
        ages: list[int] = []
        async with redis.asyncio.Redis.from_url(url) as client:
            await client.ping()
            ready()
            while len(ages) < count:
                for name, entries in await self._read(client):
                    ages += [age_of(fields[b"p"]) for _, fields in entries]
                    await client.xack(name, GROUP, *[entry for entry, _ in entries])
        return ages


class Blocking:
    """The blocking client's XADD."""

    def send(self, url: str, count: int) -> list[float]:
        """One after the other."""
        seconds = []
        with redis.Redis.from_url(url) as client:
            for number, payload in enumerate(payloads(count)):
                began = time.perf_counter()
                client.xadd(NAMES[number % STREAMS], {"p": payload})
                seconds.append(time.perf_counter() - began)
        return seconds


asynchronous, blocking = Asynchronous(), Blocking()
