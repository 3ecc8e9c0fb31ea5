"""How messages stand in an entry of a Redis stream: its fields, and the columns of a record batch. Pure.

An entry holds one message or a record batch, and carries short fields, all values as bytes:

===== ============================== =====================================================
field single message                 record batch
===== ============================== =====================================================
``a`` append time, microseconds      the same (the append script adds it)
``A`` --                             if entries were merged into this one, and perhaps ``R``: how long
                                     before ``a`` each message was appended; see ``append_times``
``t`` topic                          the distinct topics, joined by NUL, in order of index
``p`` payload                        the payloads one behind the other, where ``c`` has ``l``
``k`` key; absent if it has none     --
``h`` headers; absent if none        --
``e`` event time, microseconds;      least event time, microseconds; absent if no message
      absent: the append time        has one of its own
``c`` --                             which columns ``b`` has, one letter each, see below
``b`` --                             one encapsulated Arrow IPC record batch, zstd, lz4 or plain
``x`` epoch; absent if it has none   the same, of all messages; see ``epoch_fields``, also for ``w``
===== ============================== =====================================================

Headers of a single message are JSON: a list of pairs of the name and the base64 of the value. The
columns of ``b`` are, in the order of their letters: ``i`` index of the topic (int16), ``I`` the same as
int32 (neither: all messages have the one topic of ``t``); ``k`` key; ``p`` payload; ``l`` (instead of ``p``)
length of the payload, int32, where payloads do not get smaller by compression and stand in the field ``p``
as they are, so that a reader need not copy them; ``h`` headers; ``d`` event time after ``e`` in microseconds
(int32), ``D`` the same as int64. The letters *are* the Arrow schema, so it is not stored again and again.
Columns that would be all null are left out. In spaces with a schema, entries are of another kind: see
``typed``. ``encoding`` writes entries, ``decoding`` reads them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import pyarrow as pa

from streamlease.streams.entries.message_rows import HEADERS
from streamlease.streams.entries.schemas import Schema

Fields = list[bytes]
"""Field, value, field, value, ... of one entry."""


class Encoded(NamedTuple):
    """An entry to be appended: how many messages it holds, and its fields."""

    rows: int
    fields: Fields

    @property
    def size(self) -> int:
        """Bytes of all fields."""
        return sum(map(len, self.fields))


LETTERS: dict[str, pa.Field] = {
    "i": pa.field("topic", pa.int16()),
    "I": pa.field("topic", pa.int32()),
    "k": pa.field("key", pa.binary()),
    "p": pa.field("payload", pa.binary()),
    "l": pa.field("payload", pa.int32()),
    "h": pa.field("headers", HEADERS),
    "d": pa.field("timestamp", pa.int32()),
    "D": pa.field("timestamp", pa.int64()),
}
Codec = Literal["zstd", "lz4", "none"]
"""How a publisher compresses; it stands in each entry, so readers need not know it."""

CODECS: tuple[Codec, ...] = ("zstd", "lz4", "none")

SMALL_BYTES = 1024
"""A smaller record batch is not compressed."""

INT32_MAX = 2**31 - 1

_OPTIONS = {
    codec: pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec, use_threads=False)
    for codec in CODECS
}


def write_options(codec: Codec) -> pa.ipc.IpcWriteOptions:
    """How a record batch is written."""
    return _OPTIONS[codec]


class Layout(NamedTuple):
    """The Arrow schema of the columns, and the message that is written in front of them."""

    schema: pa.Schema
    header: bytes


_LAYOUTS: dict[tuple[str, str], Layout] = {}
_MOST_LAYOUTS = 1024


def layout_of(letters: str, typed: Schema | None) -> Layout:
    """The layout that the field ``c`` and the schema of an entry mean."""
    key = (letters, typed.fingerprint if typed is not None else "")
    layout = _LAYOUTS.get(key)
    if layout is None:
        schema = pa.schema([*(LETTERS[letter] for letter in letters), *(typed.arrow if typed else ())])
        if len(_LAYOUTS) >= _MOST_LAYOUTS:
            _LAYOUTS.clear()
        layout = _LAYOUTS[key] = Layout(schema, schema.serialize().to_pybytes())
    return layout
