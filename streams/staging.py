"""Batches of a sink, delivered exactly once: rows are staged by tasks, and appended once a batch is decided.

Theory of operation. A sink writes numbered batches; each is made by several tasks, and a batch may be made
again, otherwise divided over other tasks, with its rows in another order, and while former tasks still run.
So what a task writes is not in any stream yet:

1. A task *stages* its rows: entries as they will stand in the streams, in keys of its own that expire
   (`Stager`, blocking). Tasks that run twice stage twice.
2. Whoever drives the sink hears which tasks count, and *decides* what the batch consists of (`Delivery`).
   The first decision about a batch holds, whatever is decided later; so a repeated batch does not bring
   other rows, but finishes what the first attempt began.
3. The staged keys of each stream are appended, several in one atomic script, which also keeps, as an append
   does, the publisher's batch and part in that stream. So a repetition adds nothing.
4. The decision is emptied, and what was staged and not taken is removed.

If a stream was sealed between 1 and 3, or its schema got another version, what was staged for it is encoded
anew for the streams that follow, and the decision is replaced by one that says so, before anything of it is
appended. If what was staged is gone (it expires a day after it was written), the stream gets the rows of the
repetition instead, unless it already has some of the first attempt's.

Order: within a stream, the rows of one task in their order; tasks in the order in which they are handed over.

Not promised: that the streams of a batch change at the same instant.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.connection import BlockingRedis, Command, ask_blocking, exchange_blocking, refusal
from streamlease.streams.entries import Encoded
from streamlease.streams.keys import sink_staged, stream_staged

FLUSH_BYTES = 4 * 1024 * 1024
"""How many encoded bytes a task keeps before it writes them."""

KEY_BYTES = 8 * 1024 * 1024
"""About how many bytes stand in one staged key: with `APPEND_BYTES`, how long one script may take."""

APPEND_BYTES = 16 * 1024 * 1024
"""About how many staged bytes are appended by one script."""

EXPIRY_SECONDS = 24 * 3600
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0


class Staged(NamedTuple):
    """One staged key: entries for one stream."""

    stream: StreamId
    token: str
    rows: int
    bytes: int


class _Open(NamedTuple):
    token: str
    entries: int
    rows: int
    bytes: int


class Stager:
    """Stages what one attempt of one task writes.

    Args:
        sink: the name of the sink.
        batch: number of the batch.
        token: unlike that of any other attempt.
        patience: seconds for which a write is repeated while Redis does not answer.
    """

    def __init__(
        self, redis: BlockingRedis, sink: str, batch: int, token: str, *, patience: float = 0.0
    ) -> None:
        self._redis = redis
        self._patience = patience
        self._sink = sink
        self._batch = batch
        self._token = token
        self._keys = 0
        self._open: dict[StreamId, _Open] = {}
        self._full: list[Staged] = []
        self._waiting: list[Command] = []
        self._bytes = 0

    def add(self, stream: StreamId, entry: Encoded) -> None:
        """Stage one entry for `stream`, behind those before.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: the attempt has failed; call :meth:`discard`.
        """
        size = sum(map(len, entry.fields))
        key = self._open.get(stream)
        if key is None or key.bytes + size > KEY_BYTES:
            if key is not None:
                self._full.append(Staged(stream, key.token, key.rows, key.bytes))
            key = _Open(f"{self._token}.{self._keys}", 0, 0, 0)
            self._keys += 1
            registry = sink_staged(self._sink)
            self._waiting += [
                ("SADD", registry, _member(self._batch, stream, key.token)),
                ("EXPIRE", registry, EXPIRY_SECONDS),
            ]
        name = stream_staged(stream, key.token)
        self._waiting.append(("XADD", name, f"{key.entries + 1}-{entry.rows}", *entry.fields))
        if not key.entries:
            self._waiting.append(("EXPIRE", name, EXPIRY_SECONDS))
        self._open[stream] = _Open(key.token, key.entries + 1, key.rows + entry.rows, key.bytes + size)
        self._bytes += size
        if self._bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: the attempt has failed.
        """
        commands, self._waiting, self._bytes = self._waiting, [], 0
        deadline, wait = time.monotonic() + self._patience, FIRST_WAIT
        while commands:
            try:
                replies = exchange_blocking(self._redis, commands)
                trouble = [one for one in map(_trouble, replies) if one is not None]
                if not trouble:
                    return
                error: StreamleaseError = trouble[0]
            except (StoreUnavailable, Indefinite) as gone:
                error = gone
            if time.monotonic() >= deadline:
                raise error
            time.sleep(wait)
            wait = min(LONGEST_WAIT, 2 * wait)

    def finish(self) -> list[Staged]:
        """Write what waits; all keys of this attempt, in the order of each stream."""
        self.flush()
        rest = [Staged(stream, key.token, key.rows, key.bytes) for stream, key in self._open.items()]
        return [*self._full, *rest]

    def discard(self) -> None:
        """Remove what this attempt wrote; what cannot be removed now expires."""
        self._waiting = []
        keys = [*self._full, *(Staged(stream, key.token, 0, 0) for stream, key in self._open.items())]
        discard(self._redis, self._sink, self._batch, keys)


def discard(redis: BlockingRedis, sink: str, batch: int, staged: Iterable[Staged]) -> None:
    """Remove staged keys of a batch that will not be delivered.

    Raises:
        StoreUnavailable, StoreRefused: what is left expires.
    """
    commands: list[Command] = []
    for one in staged:
        commands.append(("UNLINK", stream_staged(one.stream, one.token)))
        commands.append(("SREM", sink_staged(sink), _member(batch, one.stream, one.token)))
    if commands:
        ask_blocking(redis, commands)


def _trouble(reply: Any) -> StreamleaseError | None:
    """What is wrong with a reply; nothing if an entry was there already, from a write without an answer."""
    if isinstance(reply, ResponseError):
        return None if "equal or smaller" in str(reply) else refusal(reply)
    return reply if isinstance(reply, StreamleaseError) else None


def _member(batch: int, stream: StreamId, token: str) -> str:
    return f"{batch} {stream} {token}"


def parse_member(member: bytes) -> tuple[int, StreamId, str]:
    """Batch, stream and token of a member of the set of what is staged."""
    batch, stream, token = member.decode().split(" ")
    return int(batch), StreamId.parse(stream), token


class Plan:
    """What a batch consists of: for each stream, parts in order, each the tokens of some staged keys."""

    def __init__(self, parts: dict[StreamId, list[list[str]]]) -> None:
        self.parts = parts

    @classmethod
    def of(cls, staged: Sequence[Staged]) -> Plan:
        """The plan that appends all `staged` in their order."""
        parts: dict[StreamId, list[list[str]]] = {}
        sizes: dict[StreamId, int] = {}
        for one in staged:
            mine = parts.setdefault(one.stream, [])
            if not mine or sizes[one.stream] + one.bytes > APPEND_BYTES:
                mine.append([])
                sizes[one.stream] = 0
            mine[-1].append(one.token)
            sizes[one.stream] += one.bytes
        return cls(parts)

    def dump(self) -> str:
        """As text, for :meth:`load`."""
        return json.dumps({str(stream): parts for stream, parts in self.parts.items()}, separators=(",", ":"))

    @classmethod
    def load(cls, text: bytes | str) -> Plan:
        """The plan from its text."""
        return cls({StreamId.parse(stream): parts for stream, parts in json.loads(text).items()})


class Lost(StreamleaseError):
    """Rows that were staged for a batch are gone, and cannot be replaced by those of a repetition."""
