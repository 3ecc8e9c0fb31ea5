"""Queries of executors, and what lies in inboxes."""

from __future__ import annotations

import asyncio
from typing import Any

from streamlease import connect
from streamlease.queries import store
from streamlease.queries.core.machine import EndWanted
from streamlease.queries.core.record import QueryOutcome, QueryRecord, QueryStage, Worker
from streamlease.queries.core.signed_orders import Job, JobFile, permit_for, sign
from streamlease.queries.store import ExecutorRow, Write
from streamlease.queries.submitting import advance, permitted_job
from streamlease.streams.imports.inbox import InboxMover
from streamlease.streams.log.keys import inbox_refused, space_inbox
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.connection import connect as connect_redis

KEY = b"0123456789abcdef"
LIVING, ENDED = "0123456789abcdef", "f" * 16
AT = 1_700_000_000_000
SECONDS = 60.0


async def write(url: str) -> dict[str, Any]:
    """One that runs and one that has ended; of two entries in an inbox one was refused, one not moved."""
    async with connect_redis(url) as redis:
        await store.hold(redis, "life", ExecutorRow(executor="one", slots=4), 60_000, begin=True)
        await _place(redis, LIVING)
        await _place(redis, ENDED)
        await advance(redis, ENDED, EndWanted(QueryOutcome.ABORTED, "nobody needs it"), AT)
    async with connect(url, embedded=False) as client:
        await client.create_space("notes", ["notes/#"], streams=1)
        inbox = space_inbox("notes")
        await ask(client.redis, [("XADD", inbox, "*", "topic", "other/x", "payload", "strange", "kind", "h")])
        assert await InboxMover(client.redis, "writer").round() == 0
        await ask(client.redis, [("XADD", inbox, "*", "topic", "notes/x", "payload", b"\xff", "kind", "h")])
    return {}


async def _place(redis: AsyncRedis, query: str) -> None:
    job = Job(
        query=query, name="of flights", workers=2, placement="random", program=JobFile(name="a.py"),
        spawn_ms=1000, grace_ms=1000, who="writer", restart=True,
    )  # fmt: skip
    record = QueryRecord(
        query=query,
        name=job.name,
        state=QueryStage.RUNNING,
        size=2,
        workers=tuple(
            Worker(worker=number, executor="one", life="life", host="writer", pid=7, joined=True)
            for number in range(2)
        ),
        restart=True,
        who="writer",
        job=job.text,
        signature=sign(KEY, "job", job.text),
        submitted_at=AT,
    )
    await store.write(redis, [Write(0, record, digest="d", permit=permit_for(KEY, query, AT + 1000))])


async def read(url: str, done: Any) -> dict[str, Any]:
    """The records, their jobs as an executor takes them, and what was refused."""
    async with connect_redis(url) as redis:
        records = sorted(await store.list_all(redis), key=lambda one: one.query)
        found: dict[str, Any] = {"records": [one.model_dump(mode="json") for one in records], "jobs": []}
        for record in records:
            if record.state is not QueryStage.ENDED:
                job = await permitted_job(redis, KEY, record, AT)
                found["jobs"].append(job.model_dump(mode="json"))
        return found | {"refused": await _refused(redis)}


async def _refused(redis: AsyncRedis) -> list[list[str]]:
    (entries,) = await ask(redis, [("XRANGE", inbox_refused("notes"), "-", "+")])
    return [[part.decode() for part in fields] for _, fields in entries]


async def go_on(url: str, done: Any) -> None:
    """The one that ran is told to end; the entry is moved."""
    async with connect_redis(url) as redis:
        ended = await advance(redis, LIVING, EndWanted(QueryOutcome.TERMINATED, "over"), AT + 1)
        assert ended is not None
        assert (ended.state, ended.outcome) == (QueryStage.ENDING, QueryOutcome.TERMINATED)
    async with connect(url, embedded=False) as client:
        async with asyncio.timeout(SECONDS):
            assert await InboxMover(client.redis, "next").round() == 1
        async with client.history("notes/#") as history:
            messages = [one async for batch in history for one in batch.messages]
    (moved,) = messages
    assert (moved.topic, moved.payload, [*moved.headers]) == ("notes/x", b"\xff", [("kind", b"h")])
