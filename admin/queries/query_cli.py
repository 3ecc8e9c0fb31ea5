"""``streamlease query``: what was submitted, what it writes, and its end."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.common_options import AsJson, RedisUrl, chosen_url, operator
from streamlease.admin.output import document, line, note, table
from streamlease.admin.running import with_client

if TYPE_CHECKING:
    from streamlease.admin.facts.queries import QueryRow
    from streamlease.agent.client import Client
    from streamlease.queries.core.record import QueryRecord

app = typer.Typer(help="Submitted queries: list, show, logs, terminate.", no_args_is_help=True)

MOST_NAMED = 20
"""Topics and filters that are shown to people; ``--json`` has all."""

Id = Annotated[str, typer.Argument(metavar="ID", help="Its id, as 'streamlease query list' shows it.")]


@app.command("list")
def list_(redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """All queries that are known: those that run, and those that ended in the last days."""
    from streamlease.admin.facts.queries import QueryList, QueryRow
    from streamlease.queries import query_waits, store

    async def work(client: Client) -> tuple[list[QueryRecord], dict[str, list[str]]]:
        return await store.list_all(client.redis), await query_waits.silent_executors(client.redis)

    found, silent = with_client(redis, work)
    rows = [QueryRow.of(one) for one in found]
    if as_json:
        document(QueryList(queries=rows))
        return
    _tell_silent(silent)
    table(
        ["query", "name", "state", "outcome", "workers", "executors", "submitted", "who"],
        [
            [
                one.query,
                one.name,
                one.state,
                one.outcome,
                len(one.workers),
                _where(one),
                one.submitted,
                one.who,
            ]
            for one in rows
        ],
        "no query was submitted",
    )


@app.command()
def show(query: Id, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """One query with its workers, what it publishes and what it reads."""
    from streamlease.admin.facts.queries import QueryShown
    from streamlease.admin.queries.query_ways import QueryWays, ways_of
    from streamlease.queries import query_waits, store

    async def work(client: Client) -> tuple[QueryRecord, QueryWays, dict[str, list[str]]]:
        record = (await store.read(client.redis, query)).record
        return record, await ways_of(client, query), await query_waits.silent_executors(client.redis)

    found, ways, silent = with_client(redis, work)
    row = QueryShown.of(found, publishes=ways.publishes, reads=ways.reads)
    if as_json:
        document(row)
        return
    _tell_silent({executor: queries for executor, queries in silent.items() if query in queries})
    outcome = "" if row.outcome is None else f": {row.outcome}"
    line(f"query {row.query} ({row.name}) is {row.state}{outcome}{', ' if row.reason else ''}{row.reason}")
    line(f"submitted by {row.who} at {row.submitted}" + (f", ended at {row.ended}" if row.ended else ""))
    if row.former or row.next:
        line(f"in place of {row.former or 'none'}, followed by {row.next or 'none'}")
    table(
        ["worker", "executor", "host", "port", "pid", "exit"],
        [[one.worker, one.executor, one.host, one.port, one.pid, one.exit] for one in row.workers],
        "no executor is chosen",
    )
    for word, names in (("publishes to", row.publishes), ("reads", row.reads)):
        if names:
            more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
            line(f"it {word} {', '.join(names[:MOST_NAMED])}{more}")


@app.command()
def logs(
    query: Id,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until the query has ended.")
    ] = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """What the workers have written to their standard output and error, as far as it is kept: the last MiB
    each."""
    from streamlease.admin.facts.queries import LogLine
    from streamlease.agent.client import connect
    from streamlease.queries.logs import log_pieces

    async def main() -> None:
        ends: dict[int, int] = {}
        async with connect(chosen_url(redis)) as client:
            async for one in log_pieces(client.redis, query, follow=follow):
                if (lost := one.offset - ends.get(one.worker, 0)) > 0:
                    note(f"{lost} bytes of worker {one.worker} are not kept any more")
                ends[one.worker] = one.offset + len(one.text)
                text = one.text.decode("utf-8", "replace")
                if as_json:
                    document(LogLine(worker=one.worker, stream=one.stream, offset=one.offset, text=text))
                else:
                    sys.stdout.write(_lines(one.worker, text))
                    sys.stdout.flush()

    asyncio.run(main())


@app.command()
def terminate(query: Id, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """End a query: SIGTERM to its workers, and SIGKILL after their grace. It is not placed anew."""
    from streamlease.admin.facts.queries import QueryRow
    from streamlease.admin.queries.submit_cli import shown
    from streamlease.queries import store
    from streamlease.queries.core.machine import EndWanted
    from streamlease.queries.core.record import QueryOutcome

    async def work(client: Client) -> QueryRecord:
        now = await store.redis_ms(client.redis)
        stop = EndWanted(QueryOutcome.TERMINATED, f"{operator()} terminated it")
        return await store.change(client.redis, query, stop, now)

    record = with_client(redis, work)
    if as_json:
        document(QueryRow.of(record))
    else:
        line(shown(record))


def _tell_silent(silent: dict[str, list[str]]) -> None:
    for executor, queries in silent.items():
        note(
            f"executor {executor} is silent: if it has died, its queries ({', '.join(queries)}) end as "
            f"lost when another executor sees that, or who waits for one with submit --wait"
        )


def _where(row: QueryRow) -> str:
    return ", ".join(dict.fromkeys(one.executor for one in row.workers))


def _lines(worker: int, text: str) -> str:
    """Lines, with the worker in front; what is cut off goes on in a line of its own."""
    whole = text if text.endswith("\n") else f"{text}\n"
    return "".join(f"{worker} | {one}\n" for one in whole.splitlines())
