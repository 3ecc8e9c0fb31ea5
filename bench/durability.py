"""Durability: single messages awaited one by one, under each durability of a space."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import redis

from bench.frame import Frame, Table, clear, latencies
from bench.latency import BASE, send, xadd
from bench.messages import PAYLOAD_BYTES, Messages
from streamlease.admin.redis.embedded import EmbeddedRedis
from streamlease.admin.redis.server_process import HOST

MOST_MESSAGES = 200
REPLICA_SECONDS = 30.0


@contextmanager
def _persistent() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="streamlease-bench-") as directory:
        server = EmbeddedRedis(directory)
        try:
            yield server.start()
        finally:
            server.stop()


def _follow(replica: str, primary: str) -> None:
    """Make one server the replica of the other, and wait until it is in step."""
    port = primary.rpartition(":")[2].partition("/")[0]
    with redis.Redis.from_url(replica) as client, redis.Redis.from_url(primary) as source:
        source.config_set("repl-diskless-sync-delay", 0)
        client.config_set("masterauth", primary.partition("//:")[2].partition("@")[0])
        client.replicaof(HOST, int(port))
        deadline = time.monotonic() + REPLICA_SECONDS
        source.set("bench:in-step", "1")
        while source.execute_command("WAIT", 1, 200) < 1:
            if time.monotonic() > deadline:
                raise SystemExit(f"the replica was not in step after {REPLICA_SECONDS:g} s")
            source.set("bench:in-step", "1")


def measure(frame: Frame) -> Iterator[Table]:
    """Milliseconds of one message under each durability. It needs servers of its own."""
    data = Messages.make(min(MOST_MESSAGES, frame.messages))
    with ExitStack() as stack:
        memory = stack.enter_context(EmbeddedRedis.throw_away())
        disk = stack.enter_context(_persistent())
        primary = stack.enter_context(EmbeddedRedis.throw_away())
        _follow(stack.enter_context(EmbeddedRedis.throw_away()), primary)
        ways = {
            "Streamlease memory": (memory, "memory", ""),
            "Streamlease fsync, appendfsync always": (disk, "fsync", "always"),
            "Streamlease fsync, appendfsync everysec": (disk, "fsync", "everysec"),
            "Streamlease replicated:1": (primary, "replicated:1", ""),
        }
        seconds: dict[str, list[float]] = {name: [] for name in (BASE, *ways)}
        for _ in range(frame.runs):
            clear(memory)
            seconds[BASE] += asyncio.run(xadd(memory, data))
            for name, (url, durability, policy) in ways.items():
                clear(url)
                if policy:
                    with redis.Redis.from_url(url) as client:
                        client.config_set("appendfsync", policy)
                seconds[name] += asyncio.run(send(url, data, durability))
    title = f"One awaited message of {PAYLOAD_BYTES} bytes, {len(data):,} in each of {frame.runs} runs"
    yield latencies(title, seconds, BASE)
