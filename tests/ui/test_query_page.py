"""What the console shows of a query: workers, the ends of their logs, what its programs publish and read."""

from __future__ import annotations

import asyncio

import pytest

from streamlease.admin.ui import query_looks
from streamlease.agent.client import connect
from streamlease.catalog.own_query import QUERY_ID, QUERY_TOKEN
from streamlease.executor.worker_log import WorkerLog
from streamlease.queries import store
from streamlease.queries.core.record import QueryRecord, QueryStage, Worker
from streamlease.queries.core.signed_orders import token_digest
from streamlease.queries.store import Write
from streamlease.streams.tasks import stop
from tests.catalog.waiting import eventually

QUERY, OTHER = "00000000000000ab", "00000000000000cd"
TOKEN = "a token"
LINE = b"x" * 99 + b"\n"


async def test_a_query_shows_its_workers_their_logs_and_its_own_topics(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = (
        Worker(worker=0, executor="one", life="l", host="10.0.0.1", port=7000, pid=11, joined=True),
        Worker(worker=1, executor="two", life="m", host="10.0.0.2", port=7001, pid=12, over=True, exit=3),
    )
    async with connect(embedded_redis_url, embedded=False) as client:
        await client.create_space("calls", ["calls/#"], streams=2)
        for query in (QUERY, OTHER):
            record = QueryRecord(
                query=query, name="job", state=QueryStage.RUNNING, size=2, workers=workers, submitted_at=1
            )
            await store.write(client.redis, [Write(0, record, digest=token_digest(TOKEN))])
        logs = [WorkerLog(client.redis, QUERY, worker) for worker in (0, 1)]
        writing = [asyncio.create_task(log.run()) for log in logs]
        logs[0].add("out", b"begins\n")
        for _ in range(1000):
            logs[0].add("out", LINE)
        logs[1].add("err", b"Traceback\n")
        logs[1].add("out", "é €".encode())
        for log in logs:
            await log.close(20)
        for task in writing:
            await stop([task])

        monkeypatch.setenv(QUERY_ID, QUERY)
        monkeypatch.setenv(QUERY_TOKEN, TOKEN)
        async with connect(embedded_redis_url, embedded=False) as program:
            monkeypatch.delenv(QUERY_ID)
            async with (
                connect(embedded_redis_url, embedded=False) as stranger,
                program.publisher() as own,
                stranger.publisher() as strange,
                program.listen("calls/+"),
                stranger.listen("calls/#"),
            ):
                await own.send("calls/own", b"x")
                await strange.send("calls/strange", b"x")

                async def is_shown() -> bool:
                    shown = await query_looks.query(client, {"query": QUERY})
                    return (shown["publishes"], shown["reads"]) == (["calls/own"], ["calls/+"])

                await eventually(is_shown)
                shown = await query_looks.query(client, {"query": QUERY})
                other = await query_looks.query(client, {"query": OTHER})
        assert [(one["worker"], one["executor"], one["port"], one["exit"]) for one in shown["workers"]] == [
            (0, "one", 7000, None),
            (1, "two", 7001, 3),
        ]
        first, second = shown["logs"]
        assert (first["worker"], second["worker"]) == (0, 1)
        assert second["lines"] == [["err", "Traceback\n"], ["out", "é €"]]
        text = "".join(line for _, line in first["lines"])
        assert "begins" not in text, "only its end"
        assert query_looks.LOG_BYTES <= len(text) <= query_looks.LOG_BYTES + len(LINE)
        assert (other["publishes"], other["reads"], other["logs"]) == ([], [], []), (
            "of another query, nothing"
        )
