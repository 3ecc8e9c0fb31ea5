"""The staged log of a stream: what publishers of a space with epochs have sent, and nobody has moved yet.

It is a log like any other, with offsets of its own, under keys that share the hash tag of its stream. Each
entry is of one epoch (``streams.entries.epoch_fields``). It counts for nothing until its publisher says so in
a line of the space; see decision 268.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs.keys import stage_keys, staged_log, staged_news
from streamlease.streams.log.append_rounds import write_appends
from streamlease.streams.log.appends import Append, Appended
from streamlease.streams.redis.connection import Argument, Redis
from streamlease.streams.redis.durability import WAIT_SECONDS
from streamlease.streams.redis.scripts import Call, load_script

_ROOM = "streamlease.streams.epochs"


class StagedLog:
    """Appends to the staged logs of streams behind one client of Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def append_many(
        self, appends: Sequence[Append], *, wait_seconds: float = WAIT_SECONDS, evolve: bool = True
    ) -> list[Appended | StreamleaseError]:
        """Stage entries for different streams in one write; outcomes in order, each on its own.

        Args:
            appends: each is of the stream for which it is staged, and its entry has an epoch and a writer
                (``with_epoch``). Its outcome has the offset in the staged log.

        Raises:
            As ``AsyncLog.append_many``.
        """
        outcomes = await write_appends(
            self._redis, appends, stage_call, wait_seconds=wait_seconds, evolve=evolve
        )
        return [
            _foreign(append.stream) if type(outcome) is StreamleaseError else outcome
            for append, outcome in zip(appends, outcomes, strict=True)
        ]


def _foreign(stream: StreamId) -> StreamleaseError:
    """The error for a staged log into which somebody put an entry behind its end."""
    return StreamleaseError(
        f"nothing can be staged for stream {stream} any more: {staged_log(stream)} was given an entry which "
        f"Streamlease did not write; make another space"
    )


def stage_call(group: Sequence[Append]) -> Call:
    """The script call that stages the entries of a group."""
    keys: list[str] = []
    args: list[Argument] = [group[0].publisher]
    for append in group:
        fields = append.entry.fields
        keys += stage_keys(append.stream)
        args += (len(fields), *append.numbers(staged_news(append.stream)), *fields)
    return load_script(_ROOM, "stage_many").call(keys, args)
