"""What a plain subscription reads: what a filter matches, or all of one space; and what comes of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import pyarrow as pa

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SHARED_PREFIXES, check_filter
from streamlease.streams.entries.delivered import Messages, to_messages
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.spaces.spaces import Known, Spaces


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """Some messages of one stream, in order."""

    stream: StreamId
    start: int
    end: int
    """Offsets ``start <= offset < end`` were read; those that are not wanted are left out."""
    data: pa.RecordBatch
    messages: Messages = field(init=False, repr=False, compare=False)
    """The messages, one by one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", Messages(len(self), partial(to_messages, self.data)))

    def __len__(self) -> int:
        return int(self.data.num_rows)

    def __repr__(self) -> str:
        return f"PlainBatch(stream={self.stream}, start={self.start}, end={self.end}, messages={len(self)})"

    def to_arrow(self) -> pa.RecordBatch:
        """The messages as one record batch of ``streamlease.streams.entries.message_rows.MESSAGE_SCHEMA``.

        Behind its columns come the typed ones of a space with a schema.
        """
        return self.data


class Selection(Protocol):
    """Which spaces are read, and which of their messages."""

    name: str
    """For people."""

    def spaces(self, seen: Known, kept: Collection[str]) -> Spaces:
        """The spaces that are read.

        Args:
            kept: spaces whose definitions are damaged, and whose streams are read on.

        Raises:
            UnknownSpace: there is none. Unsupported: one that is not `kept` is damaged.
        """
        ...

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The messages that are wanted."""
        ...


class ByFilter:
    """The messages whose topics a filter matches.

    Raises:
        InvalidTopic: it is malformed.
        InvalidOption: it names a group.
    """

    def __init__(self, filter: str) -> None:
        self.name = check_plain(filter)

    def spaces(self, seen: Known, kept: Collection[str]) -> Spaces:
        """See ``Selection``."""
        return seen.matching(self.name) if kept else seen.for_filter(self.name)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Selection``."""
        return filter_batch(batch, self.name)


class WholeSpace:
    """All messages of one space, or of some."""

    def __init__(self, *spaces: str) -> None:
        self.name = f"space {', '.join(spaces)}"
        self._spaces = spaces

    def spaces(self, seen: Known, kept: Collection[str]) -> Spaces:
        """See ``Selection``."""
        return [seen.get(space) for space in self._spaces if space not in kept]

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Selection``."""
        return batch


def check_plain(filter: str) -> str:
    """`filter` as a string, if it is one without a group.

    Raises:
        InvalidTopic: it is malformed.
        InvalidOption: it names a group.
    """
    checked = check_filter(filter)
    if checked.partition("/")[0] in SHARED_PREFIXES:
        raise InvalidOption(
            f"{ascii(filter)[:80]} names a group, and listen and history read without one: "
            f"use client.subscribe, or leave the group out"
        )
    return checked
