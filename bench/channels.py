"""Channels of a gateway: many keys over one poll, a message to many clients, memory of a client."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import psutil

from bench.frame import percentile
from bench.gateway import PAYLOAD, Connection, computed, request_bytes
from streamlease.agent.client import connect

Row = tuple[str, str, str, str]

KEYS, BATCH = 10_000, 1000
CLIENTS, MESSAGES = 1000, 10
IDLE = 5000
SLOW, SLOW_MESSAGES, QUIET_SECONDS = 10, 30_000, 0.05
MIB = 2**20


def _body(path: str, document: Any) -> bytes:
    return request_bytes("POST", f"/v1/channels/{path}", json.dumps(document).encode())


def _subscriptions(keys: range, filter: str) -> list[dict[str, Any]]:
    return [{"command": n + 1, "subscribe": f"k{n}", "filter": filter.format(n)} for n in keys]


async def channel_rows(url: str, port: int, process: psutil.Process) -> list[Row]:
    """Of a gateway that has had no channels yet."""
    idle = await _idle(port, process)
    keys = await _keys(url, port, process)
    fan_out = await _fan_out(port, process)
    return [idle, *keys, fan_out, await _slow(url, port, process)]


async def _idle(port: int, process: psutil.Process) -> Row:
    asking = await Connection.open(port)
    await asking.ask(_body("first/commands", _subscriptions(range(1), "bench/idle")))
    before = process.memory_info().rss
    for number in range(IDLE):
        await asking.ask(_body(f"idle{number}/commands", _subscriptions(range(1), "bench/idle")))
    added = process.memory_info().rss - before
    asking.close()
    return "memory of a channel with one key", f"{added / IDLE / 1024:.1f} KiB", "", ""


async def _slow(url: str, port: int, process: psutil.Process) -> Row:
    """Clients that take nothing, of far more than a mailbox holds."""
    async with connect(url) as client, client.publisher() as publisher:
        for _ in range(SLOW_MESSAGES // BATCH):
            await publisher.send_many("bench/slow", [b"x" * 1000] * BATCH)
    connection = await Connection.open(port)
    subscription = {
        "command": 1,
        "subscribe": "k",
        "filter": "bench/slow",
        "since": "earliest",
        "limit": 10_000,
    }
    before = process.memory_info().rss
    for number in range(SLOW):
        await connection.ask(_body(f"slow{number}/commands", [subscription]))
    while True:  # until nothing grows any more
        spent = computed(process)
        await asyncio.sleep(1.0)
        if computed(process) - spent < QUIET_SECONDS:
            break
    added = process.memory_info().rss - before
    connection.close()
    name = f"memory of a channel that takes nothing of {SLOW_MESSAGES:,} KB"
    return name, f"{added / SLOW / MIB:.1f} MiB", "", ""


async def _keys(url: str, port: int, process: psutil.Process) -> list[Row]:
    connection = await Connection.open(port)
    before, spent, began = process.memory_info().rss, computed(process), time.perf_counter()
    for first in range(0, KEYS, BATCH):
        keys = range(first, first + BATCH)
        await connection.ask(_body("keys/commands", _subscriptions(keys, "bench/keys/{}")))
    seconds, share = time.perf_counter() - began, computed(process) - spent
    told = json.loads(await connection.ask(_body("keys/poll", {"wait": 0})))
    added = process.memory_info().rss - before
    rows = [
        (f"{KEYS:,} keys subscribed to", f"{seconds:.1f} s", f"{share / seconds:.0%}", ""),
        (f"memory of them, {added / KEYS / 1024:.1f} KiB each", f"{added / MIB:.0f} MiB", "", ""),
    ]
    spent, began, count, processed = computed(process), time.perf_counter(), 0, 0
    async with connect(url) as client, client.publisher() as publisher:
        sending = asyncio.gather(*(publisher.send(f"bench/keys/{n}", PAYLOAD) for n in range(KEYS)))
        while count < KEYS:
            asked = {"gateway": told["gateway"], "processed": processed, "wait": 30}
            answer = json.loads(await connection.ask(_body("keys/poll", asked)))
            count += len(answer["messages"])
            processed = answer["messages"][-1]["sequence"] if answer["messages"] else processed
        await sending
    seconds, share = time.perf_counter() - began, computed(process) - spent
    connection.close()
    name = "a message to each of them over one poll"
    return [*rows, (name, f"{KEYS / seconds:,.0f}/s", f"{share / seconds:.0%}", "")]


async def _fan_out(port: int, process: psutil.Process) -> Row:
    publisher = await Connection.open(port)
    publish = request_bytes("POST", "/v1/topics/bench/fan", PAYLOAD)
    clients = [await Connection.open(port) for _ in range(CLIENTS)]
    asked: list[dict[str, Any]] = []
    for number, one in enumerate(clients):
        await one.ask(_body(f"c{number}/commands", _subscriptions(range(1), "bench/fan")))
        told = json.loads(await one.ask(_body(f"c{number}/poll", {"wait": 0})))
        asked.append({"gateway": told["gateway"], "processed": 0, "wait": 30})
    taken: list[float] = []
    spent, began_all = computed(process), time.perf_counter()
    for _ in range(MESSAGES):
        for number, one in enumerate(clients):
            one.send(_body(f"c{number}/poll", asked[number]))
        await asyncio.sleep(1.0)
        began = time.perf_counter()
        publisher.send(publish)

        async def heard(number: int, one: Connection, began: float = began) -> None:
            answer = json.loads(await one.answer())
            taken.append(time.perf_counter() - began)
            asked[number]["processed"] = answer["messages"][-1]["sequence"]

        await asyncio.gather(*(heard(number, one) for number, one in enumerate(clients)))
        await publisher.answer()
    share = (computed(process) - spent) / (time.perf_counter() - began_all)
    for one in [publisher, *clients]:
        one.close()
    p50, p99 = 1000 * percentile(taken, 50), 1000 * percentile(taken, 99)
    return (
        f"a message to {CLIENTS:,} channels, p50 and p99",
        f"{p50:.0f}, {p99:.0f} ms",
        f"{share:.0%}",
        "250 ms",
    )
