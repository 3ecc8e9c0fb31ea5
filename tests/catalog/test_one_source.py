"""Views of operators and the catalog say the same of queries, hosts, groups and spaces."""

from __future__ import annotations

import asyncio
from typing import Any

import streamlease
from streamlease.admin.facts import status
from streamlease.admin.facts.queries import QueryRow
from streamlease.catalog.listing import items_of
from streamlease.protocol.topics import SharedSubscription
from streamlease.queries import store
from streamlease.queries.core.record import QueryOutcome, QueryRecord, QueryStage, Worker
from streamlease.queries.store import ExecutorRow, Write
from streamlease.registry import hosts
from streamlease.registry.hosts import HostInfo
from tests.admin.command import Command
from tests.catalog.waiting import eventually


def shared(rows: list[dict[str, Any]], names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


async def test_views_and_catalog_agree(embedded_redis_url: str, tmp_path: Any) -> None:
    command = Command(tmp_path, embedded_redis_url)
    async with streamlease.connect(embedded_redis_url) as client:
        await client.create_space("a", ["a/#"], streams=3)
        await client.create_space("b", ["b/#"], epochs=2)
        workers = (
            Worker(
                worker=0, executor="one", life="l", host="h", port=7, pid=8, joined=True, over=True, exit=0
            ),
            Worker(worker=1, executor="other", life="m", host="i", port=9),
        )
        for one in workers:  # else whoever lists them ends them
            row = ExecutorRow(executor=one.executor, slots=9)
            await store.hold(client.redis, one.life, row, 600_000, begin=True)
        for number, state in enumerate(QueryStage):
            ended = state is QueryStage.ENDED
            record = QueryRecord(
                query=f"{number:016x}", name=f"q{number}", state=state, size=2, who="somebody",
                workers=() if state is QueryStage.PLACING else workers, restart=number % 2 == 0,
                submitted_at=1, outcome=QueryOutcome.LOST if ended else None, reason="gone" if ended else "",
                next=f"{number:016x}.2" if ended else None, ended_at=2 if ended else None,
            )  # fmt: skip
            assert (await store.write(client.redis, [Write(0, record)])).word == "done"
        await client.groups.declare(SharedSubscription.parse("$shared/idle/b/#"))
        async with client.subscribe("$shared/g/a/#", start="earliest"):

            async def said(*words: str) -> Any:
                """In another thread: this one leads the group."""
                return (await asyncio.to_thread(command.ok, *words, "--json")).document

            async def catalog(name: str) -> list[dict[str, Any]]:
                return [one.model_dump(mode="json") for one in await items_of(client.redis, name)]

            queries = ("query", "name", "state", "outcome", "reason", "who", "restart", "former", "next")
            listed = (await said("query", "list"))["queries"]
            own = [QueryRow.of(one).model_dump(mode="json") for one in await store.list_all(client.redis)]
            assert listed == own
            found = await catalog("queries")
            assert len(found) == 5
            assert shared(listed, queries) == shared(found, queries)
            of_workers = ("worker", "executor", "host", "pid", "port", "exit")
            for row in listed:
                (item,) = [one for one in found if one["query"] == row["query"]]
                assert shared(row["workers"], of_workers) == shared(item["workers"], of_workers)

            async def is_led() -> bool:
                return any(one["host"] for one in await catalog("leaders"))

            await eventually(is_led)
            spaces = (await said("space", "list"))["spaces"]
            fields = ("topics", "streams", "durability", "epochs", "collection", "ended")
            assert shared(spaces, ("name", *fields)) == shared(await catalog("spaces"), ("space", *fields))
            groups = [
                one | (one["leader"] or {"host": None}) for one in (await said("group", "list"))["groups"]
            ]
            leaders = await catalog("leaders")
            assert shared(groups, ("subscription", "host", "term")) == shared(
                leaders, ("subscription", "host", "term")
            )
            await hosts.beat(client.redis, HostInfo(host="h1", name="n", pid=7, leaders=3))
            seen = [one.model_dump() for one in (await status.look(client)).hosts]
            names = ("host", "name", "pid", "leaders", "drained")
            assert len(seen) == 1
            assert shared(seen, names) == shared(await catalog("hosts"), names)
