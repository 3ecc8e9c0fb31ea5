"""The diffs of messages of a collection: how many of its item each brings or takes away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamlease.protocol.errors import HistoryTruncated, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.decoding import DamagedEntry
from streamlease.streams.log.many import read_all
from streamlease.streams.log.ranges import RangeReader

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.streams.entries.delivered import Message

COLUMNS = frozenset({"offset", "diff"})


async def diffs_of(client: Client, messages: Sequence[Message]) -> list[int | None]:
    """The diff of each of `messages`, which are of collections; None where it is no longer there.

    Raises:
        UnknownSpace, SchemaMismatch, StoreUnavailable, StoreRefused.
    """
    readers = [
        RangeReader(StreamId.parse(one.stream), one.offset, one.offset + 1, columns=COLUMNS)
        for one in messages
    ]
    found: list[int | None] = []
    for outcome in await read_all(client.redis, readers):
        if isinstance(outcome, HistoryTruncated | DamagedEntry):
            found.append(None)
        elif isinstance(outcome, StreamleaseError):
            raise outcome
        else:
            found.append(next((batch.column("diff")[0].as_py() for batch in outcome if batch.num_rows), None))
    return found
