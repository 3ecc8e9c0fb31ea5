"""Server-sent events: every message once, in order, over disconnects; slow readers cost bounded memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from streamlease.gateway.http1.http_connection import HttpConnection
from streamlease.gateway.pages.page_taking import ANSWER_BYTES
from tests.gateway.conftest import Client, Start
from tests.gateway.http_client import HttpClient, chunks, head_of
from tests.gateway.test_since import publish


class Event(NamedTuple):
    """An event, as a browser would dispatch it, and the id that it would send to resume."""

    name: str
    data: Any
    id: str
    after: str | None = None


async def events(parts: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """By the standard's rules: an event without data is not dispatched, and its id counts all the same."""
    rest, last = b"", ""
    async for part in parts:
        *blocks, rest = (rest + part).split(b"\n\n")
        for block in blocks:
            fields: dict[str, str] = {}
            for line in block.decode().split("\n"):
                name, _, value = line.partition(": ")
                fields[name] = value
            last = fields.get("id", last)
            if "data" in fields or "id" in fields:
                yield Event(
                    fields.get("event", "message"),
                    json.loads(fields.get("data", "null")),
                    last,
                    fields.get("after"),
                )


async def some(stream: AsyncIterator[Event], count: int) -> list[Event]:
    found: list[Event] = []
    async for event in stream:
        if event.data is not None:
            found.append(event)
            if len(found) == count:
                break
    return found


def numbers(found: list[Event]) -> list[int]:
    return sorted(int(event.data["payload"]) for event in found)


async def test_events_come_and_any_of_them_is_where_to_go_on(
    client: Client, gateway: HttpClient, start_gateway: Start
) -> None:
    await client.create_space("s", ["a/#"], streams=3)
    await publish(client, *((f"a/{n % 5}", str(n)) for n in range(10)))
    async with gateway.streaming("/v1/events", filter="a/#", since="earliest") as (head, parts):
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        stream = events(parts)
        found = await some(stream, 10)
        await publish(client, ("a/1", "10"))
        found += await some(stream, 1)
    assert numbers(found) == [*range(11)]
    other = await start_gateway()
    for place in (0, 4, 9):
        resume = {"last-event-id": found[place].id}
        async with other.streaming("/v1/events", resume, filter="a/#", since="latest") as (_, parts):
            rest = await some(events(parts), 10 - place)
        assert sorted(e.data["payload"] for e in rest) == sorted(
            e.data["payload"] for e in found[place + 1 :]
        )


async def test_each_event_names_the_one_before_it(client: Client, gateway: HttpClient) -> None:
    """By the mark of its id, also where a filter leaves gaps between offsets, and behind a cursor alone."""
    await client.create_space("s", ["a/#"], streams=3)
    page = (await gateway.get("/v1/messages", filter="a/1", since="latest")).json()
    await publish(client, *((f"a/{n % 3}", str(n)) for n in range(30)))
    async with gateway.streaming("/v1/events", filter="a/1", since=page["next"]) as (_, parts):
        stream = events(parts)
        found = [await anext(stream) for _ in range(10)]
        await publish(client, ("a/2", "of no interest"), ("a/1", "late"))
        while found[-1].data is None or found[-1].data["payload"] != "late":
            found.append(await anext(stream))
    before = [page["next"], *(event.id for event in found)]
    assert [event.after for event in found] == [
        hashlib.sha256(id.encode()).hexdigest()[:16] for id in before[: len(found)]
    ]


async def test_a_stream_from_now_on_says_at_once_where_it_begins(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, ("a/1", "old"))
    async with gateway.streaming("/v1/events", filter="a/#") as (_, parts):
        first = await anext(events(parts))
        assert first.data is None and first.id
    await publish(client, ("a/1", "missed"))
    async with gateway.streaming("/v1/events", {"last-event-id": first.id}, filter="a/#") as (_, parts):
        (event,) = await some(events(parts), 1)
    assert event.data["payload"] == "missed"


async def test_a_lost_history_is_a_problem_before_and_within_a_stream(
    client: Client, gateway: HttpClient
) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, ("a/1", "1"))
    async with gateway.streaming("/v1/events", filter="a/#", since="earliest") as (_, parts):
        stream = events(parts)
        (event,) = await some(stream, 1)
        await client.spaces.delete("s")
        (end,) = await some(stream, 1)
        assert end.name == "problem" and end.data["type"].endswith(("/unknown-space", "/history-truncated"))
        assert [rest async for rest in stream] == []
    await client.create_space("s", ["a/#"])
    answer = await gateway.get("/v1/messages", filter="a/#", since=event.id)
    assert (answer.status, "oldest" in answer.json()) == (410, True)


async def test_a_reader_that_takes_nothing_holds_up_nobody_costs_a_page_and_gets_all_later(
    client: Client, gateway: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("s", ["a"])
    put, waits = HttpConnection.put, [0]

    def measured(self: HttpConnection, data: bytes) -> None:
        """What waits in the gateway for one client, behind each part that it gets."""
        put(self, data)
        assert self._transport is not None
        waits.append(self._transport.get_write_buffer_size())

    monkeypatch.setattr(HttpConnection, "put", measured)
    with socket.socket() as slow:  # what an asyncio client does not read, its StreamReader takes all the same
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        slow.connect(("127.0.0.1", gateway.port))
        slow.sendall(b"GET /v1/events?filter=a&since=earliest HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await read_by_two(client, gateway, slow, waits)


async def read_by_two(client: Client, gateway: HttpClient, slow: socket.socket, waits: list[int]) -> None:
    async with gateway.streaming("/v1/events", filter="a", since="earliest") as (_, quick):
        quickly = events(quick)
        async with client.publisher() as publisher:
            for n in range(200):
                await publisher.send("a", f"{n:05}" + "x" * 100_000)
                if n % 10 == 9:
                    assert len(await asyncio.wait_for(some(quickly, 10), 20)) == 10
        assert 0 < max(waits) < 1 << 20, "of 20 MB nothing more is made for who takes nothing"
        reader, writer = await asyncio.open_connection(sock=slow)
        await head_of(reader)
        found = await some(events(chunks(reader)), 200)
        writer.close()
    assert max(waits) < ANSWER_BYTES + 200_000
    assert [int(event.data["payload"][:5]) for event in found] == [*range(200)]
