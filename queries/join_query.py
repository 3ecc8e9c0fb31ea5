"""``streamlease.queries.join()``: what a submitted program calls first."""

from __future__ import annotations

import json
import os
import time
from typing import NamedTuple

from streamlease.catalog.own_query import own_query
from streamlease.protocol.errors import (
    Indefinite,
    InvalidOption,
    SpawningAborted,
    StoreRefused,
    StoreUnavailable,
)
from streamlease.queries.core.machine import WorkerJoined
from streamlease.queries.core.record import QueryRecord, QueryStage
from streamlease.queries.store import change, read
from streamlease.streams.catalog.keys import CATALOG
from streamlease.streams.redis.connection import BlockingRedis, ask, connect_blocking, run_blocking
from streamlease.streams.redis.urls import URL_VARIABLE

WORKER = "STREAMLEASE_QUERY_WORKER"
CONF = "STREAMLEASE_QUERY_CONF"
BLOCK_MS = 1000
RETRY_SECONDS = 0.2


class JoinedQuery(NamedTuple):
    """What a worker knows of its query."""

    id: str
    name: str
    """It stays the same when the query is placed anew."""
    worker: int
    workers: int
    peers: list[tuple[str, int | None]]
    """Host and port of each worker, by number. A worker that is alone has no port."""
    port: int | None
    """Its own: nobody else on this executor has it."""
    token: str
    redis: str
    """URL."""
    conf: dict[str, str]
    """``--conf`` of submit."""


def join() -> JoinedQuery:
    """Say that this worker is there, and wait until all workers of the query are.

    Raises:
        InvalidOption: no executor has started this program.
        SpawningAborted: the query ends before all workers are there.
        QueryRefused: the token is not that of the query.
        UnknownQuery: the query is not known any more.
    """
    own, url = own_query(), os.environ.get(URL_VARIABLE)
    number = os.environ.get(WORKER, "")
    if own is None or not url or not number.isdigit():
        raise InvalidOption("no executor has started this program: run it with 'streamlease submit'")
    redis = connect_blocking(url)
    try:
        record = _wait(redis, own.query, int(number), own.token)
    finally:
        redis.close()
    peers = [(one.host, one.port) for one in record.workers]
    port = record.workers[int(number)].port
    conf = json.loads(os.environ.get(CONF) or "{}")
    return JoinedQuery(record.query, record.name, int(number), record.size, peers, port, own.token, url, conf)


def _wait(redis: BlockingRedis, query: str, worker: int, token: str) -> QueryRecord:
    joined = False
    while True:
        try:
            (newest,) = run_blocking(ask(redis, [("XREVRANGE", CATALOG.changes, "+", "-", "COUNT", 1)]))
            if not joined:
                run_blocking(change(redis, query, WorkerJoined(worker), 0, token=token))
                joined = True
            record = run_blocking(read(redis, query)).record
            if record.state is QueryStage.RUNNING:
                return record
            if record.state in (QueryStage.ENDING, QueryStage.ENDED):
                raise SpawningAborted(f"query {query} ends before all workers have joined: {record.reason}")
            after = newest[0][0] if newest else b"0-0"
            wait = ("XREAD", "COUNT", 1, "BLOCK", BLOCK_MS, "STREAMS", CATALOG.changes, after)
            run_blocking(ask(redis, [wait]))
        except (StoreUnavailable, StoreRefused, Indefinite):
            time.sleep(RETRY_SECONDS)  # the executor ends this program if that takes too long
