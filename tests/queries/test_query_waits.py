"""Who looks at queries, who waits for one, and an executor that looks after those that wait for room."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from streamlease.executor import queries_of_others
from streamlease.executor.core.past_placing import PastPlacing
from streamlease.executor.queries_of_others import QueriesOfOthers
from streamlease.protocol.errors import SpawningAborted
from streamlease.queries import files, keys, store
from streamlease.queries.core.machine import WorkerExited
from streamlease.queries.core.record import QueryOutcome, QueryRecord, QueryStage, Worker
from streamlease.queries.core.signed_orders import Job, former_query, permit_for, sign, token_digest
from streamlease.queries.join_query import join
from streamlease.queries.query_waits import QueryWait, silent_executors
from streamlease.queries.store import ExecutorRow, Write
from streamlease.registry.spawn import queue_client
from streamlease.streams.redis.connection import AsyncRedis, ask, connect

QUERY = "0123456789abcdef"
KEY = b"0123456789abcdef"


async def runs_on_a_silent_executor(redis: AsyncRedis) -> None:
    """A query runs, and the lease of its executor is over for an hour, as behind an outage of Redis."""
    await store.hold(redis, "life", ExecutorRow(executor="one", slots=1), 60_000, begin=True)
    worker = Worker(worker=0, executor="one", life="life", host="h", pid=1)
    record = QueryRecord(
        query=QUERY, name="q", state=QueryStage.RUNNING, size=1, workers=(worker,), submitted_at=0
    )
    await store.write(redis, [Write(0, record)])
    await ask(redis, [("ZADD", keys.ALIVE, await store.redis_ms(redis) - 3_600_000, "life")])


async def test_looking_ends_nothing_and_tells_who_is_silent(redis: AsyncRedis) -> None:
    await runs_on_a_silent_executor(redis)
    assert await silent_executors(redis) == {"one": [QUERY]}
    assert (await store.read(redis, QUERY)).record.state is QueryStage.RUNNING
    await store.hold(redis, "life", ExecutorRow(executor="one", slots=1), 60_000, begin=False)
    assert await silent_executors(redis) == {}


async def test_who_waits_tells_the_dead_only_if_redis_has_answered_for_half_a_minute(
    redis: AsyncRedis,
) -> None:
    await runs_on_a_silent_executor(redis)
    clock = [0.0]
    waiting = QueryWait(redis, lambda: clock[0])
    for clock[0] in (5.0, 10.0, 15.0, 20.0, 25.0):
        assert (await waiting.record(QUERY)).state is QueryStage.RUNNING
    for clock[0] in (55.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0):
        assert (await waiting.record(QUERY)).state is QueryStage.RUNNING, "it was away for half a minute"
    clock[0] = 90.0
    found = await waiting.record(QUERY)
    assert (found.state, found.outcome) == (QueryStage.ENDED, QueryOutcome.LOST)
    assert found.reason == "executor one died, or was cut off"


async def test_who_waits_in_join_is_told_why_the_query_ends(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its program sees, and in its log whoever looks for it, if the program catches nothing."""
    redis = connect(embedded_redis_url)
    workers = tuple(Worker(worker=n, executor="one", life="life", host="h", pid=n + 1) for n in range(2))
    record = QueryRecord(
        query=QUERY, name="q", state=QueryStage.SPAWNING, size=2, workers=workers, submitted_at=0
    )
    await store.write(redis, [Write(0, record, digest=token_digest("the token"))])
    for name, value in (
        ("STREAMLEASE_QUERY_ID", QUERY),
        ("STREAMLEASE_QUERY_TOKEN", "the token"),
        ("STREAMLEASE_QUERY_WORKER", "0"),
        ("STREAMLEASE_REDIS_URL", embedded_redis_url),
    ):
        monkeypatch.setenv(name, value)
    waiting = asyncio.create_task(asyncio.to_thread(join))
    async with asyncio.timeout(20):
        while not (await store.read(redis, QUERY)).record.workers[0].joined:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not waiting.done()
    await store.change(redis, QUERY, WorkerExited(1, "life", 3), 1)
    with pytest.raises(SpawningAborted) as told:
        await waiting
    assert str(told.value) == (
        f"query {QUERY} ends before all workers have joined: worker 1 exited with 3 when 1 of 2 workers had "
        f"joined: each worker calls streamlease.queries.join()"
    )
    await redis.aclose()


def test_what_was_seen_behind_its_placing_is_known_as_long_as_a_permit_can_hold() -> None:
    past = PastPlacing(1000)
    past.see(["a", "b"], 0)
    past.see(["a"], 500)
    assert ("a" in past, "b" in past, "c" in past) == (True, True, False)
    past.see([], 1000)
    assert ("a" in past, "b" in past) == (True, False)
    past.see([], 1500)
    assert "a" not in past


def test_followers_have_the_number_behind_that_of_the_former() -> None:
    names = {f"{QUERY}.3": f"{QUERY}.2", f"{QUERY}.2": QUERY, QUERY: None, f"{QUERY}.1": None}
    assert {name: former_query(name) for name in names} == names


async def test_what_a_query_needs_lasts_as_long_as_it_waits_for_room(
    embedded_redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = connect(embedded_redis_url)
    content = b"print(1)"
    program = files.file_of("a.py", content)
    await files.upload(redis, content)
    chunks = keys.file_chunks(program.sha256)
    job = Job(
        query=QUERY, name="q", workers=1, placement="random", program=program, restart=True, spawn_ms=1000,
        grace_ms=1000, who="a\x1b[2Jb",
    )  # fmt: skip
    record = QueryRecord(
        query=QUERY, name="q", state=QueryStage.PLACING, size=1, who=job.who, restart=True, job=job.text,
        signature=sign(KEY, "job", job.text), submitted_at=0,
    )  # fmt: skip
    at = await store.redis_ms(redis)
    await store.write(redis, [Write(0, record, permit=permit_for(KEY, QUERY, at + 60_000))])
    clock = [0.0]
    monkeypatch.setattr(queries_of_others, "clock", lambda: clock[0])
    with queue_client(embedded_redis_url) as queue:
        others = QueriesOfOthers(redis, queue, KEY, 1.0)
        for clock[0], kept in ((1.0, True), (30.0, False), (62.0, True)):
            await ask(redis, [("EXPIRE", chunks, 100), ("HSET", keys.PERMITS, QUERY, _short(at))])
            await others.see_to(await store.look(redis), "own")
            (left, permit) = await ask(redis, [("TTL", chunks), ("HGET", keys.PERMITS, QUERY)])
            assert (left > 1000, permit.decode() != _short(at)) == (kept, kept)
        assert caplog.text.count(f"query {QUERY} waits: ") == 1
        # Its record is put back, when it ran already: it is refused, and the line is one line.
        seen = await store.look(redis)
        others.past_placing.see([QUERY], seen.at)
        await others.see_to(seen, "own")
    ended = (await store.read(redis, QUERY)).record
    assert (ended.state, ended.outcome) == (QueryStage.ENDED, QueryOutcome.ABORTED)
    (line,) = [one.getMessage() for one in caplog.records if "is not placed" in one.getMessage()]
    assert "it was placed already, and its record was put back" in line
    assert line.endswith(r"a\x1b[2Jb submitted it")
    await redis.aclose()


def _short(at: int) -> str:
    return permit_for(KEY, QUERY, at + 60_000)


async def test_a_piece_that_was_altered_or_is_gone_is_sent_again_and_no_other_one(
    real_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = connect(real_redis_url)
    monkeypatch.setattr(files, "CHUNK_BYTES", 4)
    content = b"0123456789"
    file = files.file_of("a.py", content)
    await files.upload(redis, content)
    key = keys.file_chunks(hashlib.sha256(content).hexdigest())
    sent: list[object] = []

    async def counted(client: AsyncRedis, commands: list[tuple[object, ...]]) -> list[object]:
        sent.extend(command[2] for command in commands if command[0] == "HSET")
        found: list[object] = await ask(client, commands)
        return found

    monkeypatch.setattr(files, "ask", counted)
    await files.upload(redis, content)
    assert sent == []
    await ask(redis, [("HSET", key, "1", b"evil"), ("HDEL", key, "2"), ("HSET", key, "7", b"more")])
    await files.upload(redis, content)
    assert sent == [1, 2]
    assert await files.download(redis, file) == content
    await redis.aclose()
