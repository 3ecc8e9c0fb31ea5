"""The work that every contender does, and the processes in which it is done and accounted.

A piece of work runs in a process of its own, so that its processor time is the client's, and nothing that
an earlier one left behind slows it. Latencies are between processes: a payload of a paced run begins with
the moment it was due (`time.monotonic_ns`, one clock for all processes of a machine), so a publisher that
falls behind is not spared.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol

import psutil

STREAMS = 16
PAYLOAD_BYTES = 100
BATCH = 1000
"""Messages that a contender takes or hands over at once, where it lets its user choose."""
WARM_SECONDS = 1.0
"""The first part of a paced run, which does not count."""
PATIENCE = 120.0
"""How long (s) a piece of work may take."""

_MOMENT = struct.Struct(">q")
_TICK = 0.001


class Peer(Protocol):
    """A system that publishes and consumes; each method is run in a process of its own."""

    async def publish(self, url: str, count: int) -> None:
        """Publish `count` payloads over all streams, each confirmed before the end."""

    async def consume(self, url: str, count: int, begun: Callable[[int], None]) -> None:
        """Read `count` messages in a new group, committing each batch; tell `begun` the first one's size."""

    async def send(self, url: str, count: int) -> list[float]:
        """Publish one by one, each awaited; the seconds of each."""

    async def publish_paced(self, url: str, rate: int, seconds: float) -> None:
        """Publish what `ticks` gives, when it does."""

    async def consume_paced(self, url: str, count: int, ready: Callable[[], None]) -> list[int]:
        """Read `count` messages in a new group, committing each batch; the age in ns of each when it came."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a piece of work came to.

    Args:
        value: what it returned.
        seconds: from its start to its end, without the start of its process.
        processor: seconds of processor time of its process in that time.
        begun: seconds until its first messages, and how many these were; for consumers.
    """

    value: Any
    seconds: float
    processor: float
    begun: tuple[float, int] = (0.0, 0)

    def rate(self, count: int) -> float:
        """Messages per second after the first batch.

        Raises:
            RuntimeError: the first batch was all there was, so there is no such rate.
        """
        first, size = self.begun
        if size >= count:
            raise RuntimeError(f"the first batch had all {count:,} messages: give more --messages")
        return (count - size) / (self.seconds - first)

    def whole_rate(self, count: int) -> float:
        """Messages per second from the start on: imports, connection, group and leases are in it."""
        return count / self.seconds


class Work:
    """A method of a contender that runs in a process of its own.

    Args:
        contender: ``module:attribute`` of it, below ``bench.contenders``.
        method: one of `Peer`'s.
    """

    def __init__(self, contender: str, method: str, *arguments: Any) -> None:
        context = get_context("spawn")
        self._said, theirs = context.Pipe()
        self._what = f"{contender}.{method}{arguments}"
        self._process = context.Process(target=_run, args=(theirs, contender, method, arguments))
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Wait until a consumer is about to get messages."""
        self._next("ready")

    def end(self) -> Done:
        """Wait for its end.

        Raises:
            RuntimeError: it failed or took too long; the text says which and why.
        """
        done: Done = self._next("done")
        self._process.join()
        return done

    def _next(self, wanted: str) -> Any:
        try:
            if not self._said.poll(PATIENCE):
                raise RuntimeError(f"{self._what} took more than {PATIENCE:.0f} s")
            word, value = self._said.recv()
        except EOFError:
            raise RuntimeError(f"the process of {self._what} ended early") from None
        finally:
            if not self._process.is_alive():
                self._process.join()
        if word != wanted:
            raise RuntimeError(f"{self._what} failed: {value}")
        return value

    def stop(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        self._process.join()


def _run(said: Connection, contender: str, method: str, arguments: tuple[Any, ...]) -> None:
    module, _, attribute = contender.partition(":")
    begun: list[tuple[float, int]] = []
    try:
        peer = getattr(import_module(f"bench.contenders.{module}"), attribute)
        began, processor = time.perf_counter(), time.process_time()
        more: dict[str, Any] = {}
        if method == "consume":
            more["begun"] = lambda size: begun.append((time.perf_counter() - began, size))
        if method == "consume_paced":
            more["ready"] = lambda: said.send(("ready", None))
        value = _finish(getattr(peer, method)(*arguments, **more))
        seconds, used = time.perf_counter() - began, time.process_time() - processor
        said.send(("done", Done(value, seconds, used, *begun[:1])))
    except Exception as error:
        said.send(("failed", repr(error)))
        raise


def _finish(work: Coroutine[Any, Any, Any] | Any) -> Any:
    return asyncio.run(work) if asyncio.iscoroutine(work) else work


def work(contender: str, method: str, *arguments: Any) -> Done:
    """Run one piece of work to its end."""
    running = Work(contender, method, *arguments)
    try:
        return running.end()
    finally:
        running.stop()


def processor_of(pid: int) -> float:
    """Seconds of processor time that a process and those below it have used."""
    family = psutil.Process(pid)
    times = [each.cpu_times() for each in (family, *family.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def payloads(count: int) -> list[bytes]:
    """Random payloads."""
    noise = os.urandom(count * PAYLOAD_BYTES)
    return [noise[at : at + PAYLOAD_BYTES] for at in range(0, len(noise), PAYLOAD_BYTES)]


async def ticks(rate: int, seconds: float) -> AsyncIterator[list[bytes]]:
    """The payloads that are due, whenever some are: a thousandth of a second's worth, or one."""
    filling = os.urandom(PAYLOAD_BYTES - _MOMENT.size)
    count, given, began = int(rate * seconds), 0, time.monotonic_ns()
    while given < count:
        due = min(count, 1 + (time.monotonic_ns() - began) * rate // 1_000_000_000)
        yield [_MOMENT.pack(began + number * 1_000_000_000 // rate) + filling for number in range(given, due)]
        given = due
        await asyncio.sleep(max(_TICK, 1 / rate))


def age_of(payload: bytes) -> int:
    """Nanoseconds since a payload of `ticks` was due."""
    return time.monotonic_ns() - int(_MOMENT.unpack_from(payload)[0])
