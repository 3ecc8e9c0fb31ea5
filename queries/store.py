"""Executors and queries as they stand in Redis: read with one look, changed by whoever knows an event.

A record has a revision. `change` reads it, steps the machine, and writes the outcome if the revision is still
the same, else it begins anew: so a query needs no leader. Placements besides take turns by a counter, so no
slot or port is given away twice, and a worker is placed only on an executor whose life holds.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from streamlease.protocol.errors import Indefinite, InvalidInput, QueryRefused, UnknownQuery, Unsupported
from streamlease.queries.core.machine import Event, step
from streamlease.queries.core.record import QueryRecord, QueryStage, parse_record
from streamlease.queries.core.signed_orders import check_query
from streamlease.queries.core.worker_places import ExecutorSeen
from streamlease.queries.keys import CHANGE_KEYS, ENDED, EXECUTOR_KEYS, LIVE, TOLD
from streamlease.streams.catalog.keys import CATALOG
from streamlease.streams.redis.connection import Redis, ask
from streamlease.streams.redis.scripts import load_script

MOST_ENDED = 1000
KEPT_MS = 7 * 86_400_000
"""So many ended queries are kept, for so long, with their logs."""

MOST_TRIES = 100

_EXECUTORS = load_script("streamlease.queries", "executors")
_CHANGE = load_script("streamlease.queries", "change")


class ExecutorRow(BaseModel):
    """What an executor says of itself in the catalog."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    executor: str
    slots: int
    busy: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    ports: tuple[int, int] | None = None
    strange: tuple[int, ...] = ()
    """Ports that programs of others have."""
    address: str = ""
    """Where its workers' ports are reached."""
    process: str = ""
    host: str = ""
    pid: int = 0


class Versioned(NamedTuple):
    """A record, and its revision."""

    revision: int
    record: QueryRecord


class SeenQueries(NamedTuple):
    """All there is at one moment."""

    at: int
    """Milliseconds of the clock of Redis."""
    until: dict[str, int]
    """Of each life of an executor the end of its lease."""
    executors: list[ExecutorSeen]
    """Whose leases hold."""
    queries: dict[str, Versioned]
    """That have not ended."""
    placed: str
    damaged: tuple[str, ...] = ()
    """Queries whose records cannot be read."""


class Changed(NamedTuple):
    """What `write` came to; where it is not done, nothing was."""

    word: str
    at: int


class Write(NamedTuple):
    """A record to be written in place of the one with that revision; 0: of none."""

    revision: int
    record: QueryRecord
    digest: str = ""
    """Of its token; empty: it has one."""
    token: str = ""
    """That must be its own."""
    permit: str = ""
    """Until when it may be placed; empty: as it is."""


async def hold(
    redis: Redis, life: str, row: ExecutorRow, lease_ms: int, *, begin: bool
) -> tuple[str, int, str]:
    """Begin or renew the life of an executor: ``held``, ``gone`` or ``taken``, when, and the row of who has
    the name.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    words: list[str | int] = [
        CATALOG.told,
        "hold",
        life,
        row.executor,
        lease_ms,
        row.model_dump_json(),
        int(begin),
    ]
    word, at, *rest = await _EXECUTORS.run(redis, EXECUTOR_KEYS, words)
    return word.decode(), int(at), rest[0].decode("utf-8", "replace") if rest else ""


async def leave(redis: Redis, life: str) -> None:
    """End the life of an executor."""
    await _EXECUTORS.run(redis, EXECUTOR_KEYS, [CATALOG.told, "leave", life])


async def reap(redis: Redis, lives: Iterable[str]) -> None:
    """End these lives, if their leases are over."""
    await _EXECUTORS.run(redis, EXECUTOR_KEYS, [CATALOG.told, "reap", *lives])


async def look(redis: Redis) -> SeenQueries:
    """All executors and the queries that have not ended.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    _, at, lives, rows, records, placed = await _EXECUTORS.run(redis, EXECUTOR_KEYS, [CATALOG.told, "look"])
    until = {life.decode(): int(float(end)) for life, end in _pairs(lives)}
    executors = []
    for field, text in _pairs(rows):
        life = field.decode("utf-8", "replace").partition("/")[0]
        try:
            row = ExecutorRow.model_validate_json(text)
        except ValidationError:
            continue
        if until.get(life, 0) >= int(at):
            host = row.address or row.host
            executors.append(
                ExecutorSeen(row.executor, life, host, row.slots, row.labels, row.ports, row.strange)
            )
    queries, damaged = {}, []
    for id, value in _pairs(records):
        query = id.decode("utf-8", "replace")
        try:
            queries[check_query(query)] = _versioned(query, value)
        except (InvalidInput, Unsupported):
            damaged.append(query)
    return SeenQueries(int(at), until, executors, queries, placed.decode(), tuple(damaged))


def _pairs(flat: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _versioned(query: str, value: bytes) -> Versioned:
    revision, _, text = value.partition(b" ")
    return Versioned(int(revision) if revision.isdigit() else 0, parse_record(query, text))


async def read(redis: Redis, query: str) -> Versioned:
    """One query, also one that has ended.

    Raises:
        UnknownQuery: there is none.
        Unsupported: its record is damaged.
        InvalidInput: it is no id.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    check_query(query)
    (live, ended) = await ask(redis, [("HGET", LIVE, query), ("HGET", ENDED, query)])
    if live is None and ended is None:
        raise UnknownQuery(f"there is no query {query}: 'streamlease query list' shows all that are known")
    return _versioned(query, live or ended)


async def list_all(redis: Redis) -> list[QueryRecord]:
    """All queries that are known, the newest last.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite.
    """
    live, ended = await ask(redis, [("HGETALL", LIVE), ("HGETALL", ENDED)])
    # One that ends in between is in both, and has ended.
    found = []
    for id, value in {**dict(_pairs_of(live)), **dict(_pairs_of(ended))}.items():
        try:
            found.append(_versioned(id.decode("utf-8", "replace"), value).record)
        except Unsupported:
            continue
    return sorted(found, key=lambda one: (one.submitted_at, one.query))


def _pairs_of(reply: Mapping[bytes, bytes] | list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return reply.items() if isinstance(reply, Mapping) else _pairs(reply)


async def write(
    redis: Redis, writes: Iterable[Write], *, placed: str = "", lives: Iterable[str] = ()
) -> Changed:
    """Write records, all of them or none.

    Args:
        placed: as of `look`, if workers are placed.
        lives: that must hold.

    Returns:
        ``done``, ``other`` (somebody has written), ``placed`` (somebody has placed), ``gone`` (a life).

    Raises:
        QueryRefused: a token is not that of its query.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    words: list[str | int] = [
        CATALOG.told,
        MOST_ENDED,
        KEPT_MS,
        placed,
        " ".join({*lives}),
        who_asks(),
        TOLD,
    ]
    for one in writes:
        record = one.record
        row = json.dumps(record.row | {"revision": one.revision + 1}, separators=(",", ":"))
        ended = 0 if record.state is not QueryStage.ENDED else 1 if record.next is None else 2
        words += [record.query, one.revision, record.model_dump_json(), row, ended]
        words += [one.digest, one.token, one.permit]
    word, at, *rest = await _CHANGE.run(redis, CHANGE_KEYS, words)
    if word == b"refused":
        raise QueryRefused(
            f"this is not the token of query {rest[0].decode()}: only its own programs have it"
        )
    return Changed(word.decode(), int(at))


async def change(
    redis: Redis,
    query: str,
    event: Event | Callable[[QueryRecord], QueryRecord],
    now: int,
    *,
    token: str = "",
) -> QueryRecord:
    """Step the machine of a query; its record behind that.

    Args:
        now: milliseconds of the Redis clock, about.
        token: that must be its own.

    Raises:
        UnknownQuery, Unsupported, QueryRefused.
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    for _ in range(MOST_TRIES):
        found = await read(redis, query)
        stepped = event(found.record) if callable(event) else step(found.record, event, now)
        if stepped == found.record and not token:
            return stepped
        done = await write(redis, [Write(found.revision, stepped, token=token)])
        if done.word == "done":
            return stepped
    raise Indefinite(f"query {query} is changed by others again and again: try again")


async def redis_ms(redis: Redis) -> int:
    """The clock of Redis."""
    ((seconds, microseconds),) = await ask(redis, [("TIME",)])
    return int(seconds) * 1000 + int(microseconds) // 1000


def who_asks() -> str:
    """This process, for refusals."""
    return f"pid {os.getpid()} on {socket.gethostname()}"
