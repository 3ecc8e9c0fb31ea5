"""Batches of a sink, delivered exactly once: tasks stage rows, which are appended once a batch is decided.

Theory of operation. A sink writes numbered batches; each is made by several tasks, and a batch may be made
again, otherwise divided over other tasks, with its rows in another order, and while former tasks still run.
So what a task writes is not in any stream yet:

1. A task *stages* its rows: entries as they will stand in the streams, in keys of its own that expire
   (`Stager`, blocking). Tasks that run twice stage twice. A staged key has entries 1, 2, 3, ... without a
   hole, because an entry is only taken behind the one before.
2. Whoever drives the sink hears which tasks count, and *decides* what the batch consists of (`Delivery`,
   `plans`): which keys, and how many entries and rows are in each. The first decision about a batch holds,
   whatever is decided later; so a repeated batch does not bring other rows, but finishes what the first
   attempt began.
3. The staged keys of each stream are appended, several in one atomic script, which takes them only if they
   hold just what was decided, and which also keeps, as an append does, the publisher's batch and part in
   that stream. So a repetition adds nothing.
4. The decision is emptied, and what was staged and not taken is removed.

If a stream was sealed between 1 and 3, or its schema got another version, what was staged for it is encoded
anew for the streams that follow, and the decision is replaced by one that says so, before anything of it is
appended. What a decision names is removed by nobody before it is appended, but expires a day after it was
written.

A failover of Redis may lose the newest writes. What was lost is taken from the repetition of the batch:

=================================== =========================================================================
lost                                what happens
=================================== =========================================================================
staged rows, before the decision    the commit fails and decides nothing; the repetition stages them anew
staged rows of a stream, after it   the stream gets the rows of the repetition: it has nothing of the batch,
                                    because its first part is only appended while all its keys are complete
parts of a stream, appended         their staged keys are back with the same failover: appended again
the decision                        the repetition decides anew. Streams that have the batch keep the tag of
                                    the decision: as many messages as the repetition has for them are taken
                                    for the same ones, any other number is an error (`StagedLost`)
=================================== =========================================================================

Order: within a stream, the rows of one task in their order; tasks in the order in which they are handed over.

Not promised: that the streams of a batch change at the same instant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Encoded
from streamlease.streams.log.keys import sink_staged, sink_state, stream_staged
from streamlease.streams.publish.staged.batch_plan import BatchPlan, Staged
from streamlease.streams.redis.connection import Argument, BlockingRedis, Command, ask, refusal, run_blocking
from streamlease.streams.redis.damaged import number, parsing
from streamlease.streams.redis.scripts import Call, load_script, run_many

_ROOM = "streamlease.streams.publish.staged"

FLUSH_BYTES = 4 * 1024 * 1024
"""How many encoded bytes a task keeps before it writes them."""

KEY_BYTES = 8 * 1024 * 1024
"""About how many bytes stand in one staged key: with `plans.APPEND_BYTES`, how long one script may take."""

EXPIRY_SECONDS = 24 * 3600
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0


class StagedLost(StreamleaseError):
    """Rows that were staged for a batch are gone."""


class Lacking(NamedTuple):
    """A staged key that does not have the entries which it should have."""

    stream: StreamId
    entries: int
    named: int


def gone(sink: str, batch: int, lacking: Lacking) -> StagedLost:
    """The error about staged rows that the repetition of the batch brings again."""
    return StagedLost(
        f"{lacking.entries} of {lacking.named} entries are left of what was staged for stream "
        f"{lacking.stream} in batch {batch} of sink {sink}, as after a failover of Redis: "
        f"start again, and the repetition of the batch stages them anew"
    )


class _Open(NamedTuple):
    token: str
    entries: int
    rows: int
    bytes: int

    def staged(self, stream: StreamId) -> Staged:
        return Staged(stream, *self)


class _Write(NamedTuple):
    """One call of a script that waits: entry `number` (1, 2, ...) of the staged key `name`, or no entry."""

    call: Call
    name: str = ""
    number: int = 0


class Stager:
    """Stages what one attempt of one task writes.

    Args:
        sink: the name of the sink to which a stream's rows belong.
        batch: number of the batch.
        token: unlike that of any other attempt.
        patience: seconds for which a write is repeated while Redis does not answer, or refuses it.
    """

    def __init__(
        self,
        redis: BlockingRedis,
        sink: Callable[[StreamId], str],
        batch: int,
        token: str,
        *,
        patience: float = 0.0,
    ) -> None:
        self._redis = redis
        self._patience = patience
        self._sink = sink
        self._batch = batch
        self._token = token
        self._keys = 0
        self._open: dict[StreamId, _Open] = {}
        self._full: list[Staged] = []
        self._waiting: list[_Write] = []
        self._bytes = 0
        self._written: dict[str, int] = {}
        """Staged key -> how many of its entries Redis has taken."""

    def add(self, stream: StreamId, entry: Encoded) -> None:
        """Stage one entry for `stream`, behind those before.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite, StagedLost: the attempt has failed; call
                :meth:`discard`.
        """
        size = sum(map(len, entry.fields))
        key = self._open.get(stream)
        if key is None or key.bytes + size > KEY_BYTES:
            if key is not None:
                self._full.append(key.staged(stream))
            key = _Open(f"{self._token}.{self._keys}", 0, 0, 0)
            self._keys += 1
            noted = register_call(self._sink(stream), self._batch, stream, key.token)
            self._waiting.append(_Write(noted))
        index = key.entries + 1
        call = stage_call(stream, key.token, index, entry)
        self._waiting.append(_Write(call, call.keys[0], index))
        self._open[stream] = _Open(key.token, index, key.rows + entry.rows, key.bytes + size)
        self._bytes += size
        if self._bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits; what Redis refuses is tried again, and nothing else.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: the attempt has failed.
            StagedLost: so it has, because Redis lost what was staged before.
        """
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        deadline, wait = time.monotonic() + self._patience, FIRST_WAIT
        while waiting:
            try:
                replies = run_blocking(run_many(self._redis, [one.call for one in waiting]))
                waiting, error = self._left(waiting, replies)
            except (StoreUnavailable, Indefinite) as gone:
                error = gone
            if error is None:
                return
            if time.monotonic() >= deadline:
                raise error
            time.sleep(wait)
            wait = min(LONGEST_WAIT, 2 * wait)

    def _left(
        self, writes: Sequence[_Write], replies: Sequence[Any]
    ) -> tuple[list[_Write], StreamleaseError | None]:
        """What is to be written again, and why."""
        left: list[_Write] = []
        error: StreamleaseError | None = None
        for write, reply in zip(writes, replies, strict=True):
            if isinstance(reply, ResponseError):
                left.append(write)
                error = error or refusal(reply)
            elif reply[0] == b"gap":
                taken = self._written.get(write.name, 0)
                if int(reply[1]) < taken:
                    raise StagedLost(
                        f"Redis lost what this task had staged in {write.name}, as in a failover: {taken} "
                        f"entries were there, and {int(reply[1])} are left; the task must be run again"
                    )
                left.append(write)  # behind one that was refused
            elif write.number:
                self._written[write.name] = max(write.number, self._written.get(write.name, 0))
        if left and error is None:
            error = Indefinite("some entries were not staged, because others before them were not")
        return left, error

    def finish(self) -> list[Staged]:
        """Write what waits; all keys of this attempt, in the order of each stream."""
        self.flush()
        return [*self._full, *(key.staged(stream) for stream, key in self._open.items())]

    def discard(self) -> None:
        """Remove what this attempt wrote; what cannot be removed now expires."""
        self._waiting = []
        keys = [*self._full, *(key.staged(stream) for stream, key in self._open.items())]
        _remove(self._redis, self._batch, [(self._sink(key.stream), key.stream, key.token) for key in keys])


def register_call(sink: str, batch: int, stream: StreamId, token: str) -> Call:
    """Notes that a key is going to be staged."""
    args: list[Argument] = [EXPIRY_SECONDS, _member(batch, stream, token)]
    return load_script(_ROOM, "register").call([sink_staged(sink)], args)


def stage_call(stream: StreamId, token: str, index: int, entry: Encoded) -> Call:
    """Writes entry number `index` (1, 2, 3, ...) of a staged key, behind the one before; bears repetition."""
    args: list[Argument] = [index, entry.rows, EXPIRY_SECONDS, *entry.fields]
    return load_script(_ROOM, "stage").call([stream_staged(stream, token)], args)


def abandon(redis: BlockingRedis, sink: str, batch: int, staged: Iterable[Staged]) -> None:
    """Remove what was staged for a batch whose commit failed, unless the batch was decided to consist of it.

    Raises:
        Unsupported: what was decided is damaged. StoreUnavailable, StoreRefused: what is left expires.
    """
    ((newest, plan),) = run_blocking(ask(redis, [("HMGET", sink_state(sink), "batch", "plan")]))
    decided = number(sink_state(sink), newest, -1) == batch
    named = BatchPlan.load(sink, plan).tokens() if decided else ()
    keys = [(sink, one.stream, one.token) for one in staged if (one.stream, one.token) not in named]
    _remove(redis, batch, keys)


def forget(redis: BlockingRedis, sink: str, batch: int, staged: Iterable[Staged]) -> None:
    """Remove what was staged for a batch that nobody will repeat, and all else that is kept of its sink.

    Raises:
        StoreUnavailable, StoreRefused: what is left expires.
    """
    _remove(redis, batch, [(sink, one.stream, one.token) for one in staged])
    run_blocking(ask(redis, [("UNLINK", sink_state(sink)), ("UNLINK", sink_staged(sink))]))


def _remove(redis: BlockingRedis, batch: int, keys: Iterable[tuple[str, StreamId, str]]) -> None:
    commands: list[Command] = []
    for sink, stream, token in keys:
        commands.append(("UNLINK", stream_staged(stream, token)))
        commands.append(("SREM", sink_staged(sink), _member(batch, stream, token)))
    if commands:
        run_blocking(ask(redis, commands))


def _member(batch: int, stream: StreamId, token: str) -> str:
    return f"{batch} {stream} {token}"


def parse_member(sink: str, member: bytes) -> tuple[int, StreamId, str]:
    """Batch, stream and token of a member of the set of what is staged for `sink`.

    Raises:
        Unsupported: it cannot be read.
    """
    with parsing(f"what is staged for sink {sink}", sink_staged(sink)):
        batch, stream, token = member.decode().split(" ")
        return int(batch), StreamId.parse(stream), token
