"""Records, permits and logs of queries in Redis: what a crash or a lost reply leaves there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from streamlease.executor import worker_log
from streamlease.executor.worker_log import WorkerLog
from streamlease.protocol.errors import Indefinite, QueryRefused
from streamlease.queries import keys, store, submitting
from streamlease.queries.core.machine import EndWanted
from streamlease.queries.core.record import QueryOutcome, QueryRecord, QueryStage
from streamlease.queries.core.signed_orders import Job, JobFile, permit_for, sign
from streamlease.queries.keys import PERMITS
from streamlease.queries.logs import log_pieces
from streamlease.queries.store import ExecutorRow, Write
from streamlease.registry.spawn import queue_client
from streamlease.streams.redis.connection import AsyncRedis, Command, ask, connect
from streamlease.streams.tasks import stop

QUERY = "0123456789abcdef"
KEY = b"0123456789abcdef"


def record(query: str = QUERY) -> QueryRecord:
    return QueryRecord(query=query, name="q", state=QueryStage.PLACING, size=1, submitted_at=0)


async def test_a_permit_stands_in_the_act_that_writes_the_query_and_goes_with_it(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever submits may die at any command: no permit is there without its query."""
    redis = connect(embedded_redis_url)
    job = Job(
        query=QUERY, name="q", workers=1, placement="random", program=JobFile(name="a.py"), spawn_ms=1000,
        grace_ms=1000, who="test",
    )  # fmt: skip
    row = ExecutorRow(executor="one", slots=1)
    await store.hold(redis, "life", row, 60_000, begin=True)

    async def dies(*about: object, **more: object) -> None:
        raise Indefinite("killed")

    with monkeypatch.context() as patched, queue_client(embedded_redis_url) as queue:
        patched.setattr(submitting, "write", dies)
        with pytest.raises(Indefinite):
            await submitting.submit(redis, queue, KEY, job, [])
        assert await ask(redis, [("HLEN", PERMITS)]) == [0]
    with queue_client(embedded_redis_url) as queue:
        placed = await submitting.submit(redis, queue, KEY, job, [])
    assert placed.state is QueryStage.SPAWNING
    assert await ask(redis, [("HKEYS", PERMITS)]) == [[QUERY.encode()]]
    await submitting.permitted_job(redis, KEY, placed, placed.submitted_at)
    await submitting.advance(redis, QUERY, EndWanted(QueryOutcome.TERMINATED, "x"), 1)
    gone = await store.read(redis, QUERY)
    await store.write(
        redis, [Write(gone.revision, gone.record.model_copy(update={"state": QueryStage.ENDED}))]
    )
    assert await ask(redis, [("HLEN", PERMITS)]) == [0]
    await redis.aclose()


def signed(query: str, *, restart: bool = True, **changes: object) -> QueryRecord:
    """A record with the job of a query, as it was submitted, and what somebody has made of the record."""
    job = Job(
        query=QUERY, name="q", workers=1, placement="random", program=JobFile(name="a.py"), restart=restart,
        spawn_ms=1000, grace_ms=1000, who="test",
    )  # fmt: skip
    own = record(query).model_copy(update={"job": job.text, "signature": sign(KEY, "job", job.text)})
    return own.model_copy(update={"restart": True, **changes})


LOST = {"state": QueryStage.ENDED, "outcome": QueryOutcome.LOST, "next": f"{QUERY}.2"}


@pytest.mark.parametrize(
    ("former", "restart", "said"),
    [
        ({"state": QueryStage.RUNNING}, True, f"query {QUERY} has not ended as lost"),
        ({**LOST, "outcome": QueryOutcome.TERMINATED}, True, f"query {QUERY} has not ended as lost"),
        ({**LOST, "next": None}, True, f"query {QUERY} has not ended as lost"),
        (None, True, f"query {QUERY} is not known any more"),
        (LOST, False, "was submitted without --restart"),
        (LOST, True, None),
    ],
    ids=["living", "terminated", "not followed", "unknown", "without restart", "lost"],
)
async def test_the_permit_of_a_query_is_for_its_follower_only_once_it_was_lost(
    redis: AsyncRedis, former: dict[str, Any] | None, restart: bool, said: str | None
) -> None:
    """Who may write records, but has no key, has nothing run beside a query that lives."""
    permit = permit_for(KEY, QUERY, 1000)
    if former is not None:
        first = signed(QUERY, restart=restart, **former)
        await store.write(redis, [Write(0, first)])
    await ask(redis, [("HSET", PERMITS, QUERY, permit)])
    following = signed(f"{QUERY}.2", restart=restart, former=QUERY)
    strange = following.model_copy(update={"former": f"{QUERY}.x"})
    with pytest.raises(QueryRefused, match=f"query {QUERY}.2 has no permit"):
        await submitting.permitted_job(redis, KEY, strange, 999)
    if said is None:
        assert (await submitting.permitted_job(redis, KEY, following, 999)).restart
        return
    with pytest.raises(QueryRefused, match=said):
        await submitting.permitted_job(redis, KEY, following, 999)
    if not restart:
        await ask(redis, [("HSET", PERMITS, f"{QUERY}.2", permit_for(KEY, f"{QUERY}.2", 1000))])
        with pytest.raises(QueryRefused, match=said):
            await submitting.permitted_job(redis, KEY, following, 999)


async def test_a_query_that_ends_while_it_is_listed_is_listed_once(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.write(redis, [Write(0, record()), Write(0, record("f" * 16))])

    async def slowly(client: AsyncRedis, commands: Sequence[Command]) -> list[Any]:
        """Another client's command comes between two."""
        found = []
        for place, command in enumerate(commands):
            if place == 1:
                monkeypatch.undo()
                ended = record().model_copy(update={"state": QueryStage.ENDED})
                await store.write(client, [Write(1, ended)])
            found += await ask(client, [command])
        return found

    monkeypatch.setattr(store, "ask", slowly)
    listed = await store.list_all(redis)
    assert {one.query: one.state for one in listed} == {
        QUERY: QueryStage.ENDED,
        "f" * 16: QueryStage.PLACING,
    }
    assert len(listed) == 2


@pytest.mark.slow
async def test_a_log_whose_replies_are_lost_has_each_piece_once(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.write(redis, [Write(0, record())])
    lost = 0

    async def deaf(client: AsyncRedis, commands: Sequence[Command]) -> list[Any]:
        """Every second write is done in part, or whole, and nobody hears of it."""
        nonlocal lost
        writes = commands[0][0] == "XADD"
        if writes and lost % 2 == 0:
            lost += 1
            await ask(client, commands[: 1 + lost % 5])
            raise Indefinite("no reply")
        lost += writes
        return await ask(client, commands)

    monkeypatch.setattr(worker_log, "ask", deaf)
    monkeypatch.setattr(worker_log, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(worker_log, "GATHER_SECONDS", 0.001)
    log = WorkerLog(redis, QUERY, 0)
    writing = asyncio.create_task(log.run())
    wanted = b""
    for number in range(50):
        for place in range(4):
            text = b"%d.%d\n" % (number, place)
            wanted += text
            log.add("out" if place else "err", text)
        await log.close(20)
    await stop([writing])
    assert lost > 50
    pieces = [one async for one in log_pieces(redis, QUERY, follow=False)]
    assert b"".join(one.text for one in pieces) == wanted
    assert [one.offset for one in pieces] == [
        sum(len(one.text) for one in pieces[:place]) for place in range(len(pieces))
    ]
    assert await ask(redis, [("XLEN", keys.log(QUERY, 0))]) == [200]


@pytest.mark.parametrize("name", ["x", "../0123456789abcdef", ""])
async def test_a_record_that_is_of_no_query_is_left_alone(redis: AsyncRedis, name: str) -> None:
    """Whoever may write to Redis may write this: executors see to the other queries all the same."""
    await ask(redis, [("HSET", keys.LIVE, QUERY, f"1 {record().model_dump_json()}")])
    await ask(redis, [("HSET", keys.LIVE, name, f"1 {record(name).model_dump_json()}")])
    seen = await store.look(redis)
    assert (seen.queries.keys(), seen.damaged) == ({QUERY}, (name,))
