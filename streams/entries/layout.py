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
``n`` diff; absent if it is +1       --
===== ============================== =====================================================

Headers of a single message are JSON: a list of pairs of the name and the base64 of the value. The
columns of ``b`` are, in the order of their letters: ``i`` index of the topic (int16), ``I`` the same as
int32 (neither: all messages have the one topic of ``t``); ``k`` key; ``p`` payload; ``l`` (instead of ``p``)
length of the payload, int32, where payloads do not get smaller by compression and stand in the field ``p``
as they are, so that a reader need not copy them; ``h`` headers; ``d`` event time after ``e`` in microseconds
(int32), ``D`` the same as int64; ``n`` diff, in a collection (without it, all are +1). The letters *are* the
Arrow schema, so it is not stored again and again. Columns that would be all null are left out. In spaces
with a schema, entries are of another kind: see ``typed``. ``encoding`` writes entries, ``decoding`` reads
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import InvalidInput
from streamlease.streams.entries import kernels as pc
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
    "n": pa.field("diff", pa.int64()),
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


DIFF_FIELD = b"n"
"""The diff of a message that is an entry of its own: how many of its item it brings, or, below 0, takes away.

What is not said is +1, in a message, an entry and a column: so messages that only add cost nothing, and are
written and read as in any other space.
"""

DIFF_COLUMN = pa.field("diff", pa.int64())
"""What a reader gets who asks for it."""

MOST_DIFF = 2**63 - 1


def check_diff(diff: object) -> int:
    """`diff`, if a message can have it.

    Raises:
        InvalidInput: it cannot.
    """
    if type(diff) is not int or not -MOST_DIFF <= diff <= MOST_DIFF:
        raise InvalidInput(
            f"diff {ascii(diff)[:80]} is no whole number of 64 bits: give one, such as 1 or -1"
        )
    if not diff:
        raise InvalidInput("a diff of 0 changes nothing: leave the message out, or give another diff")
    return diff


def check_diffs(column: pa.Array) -> None:
    """Whether messages can have these diffs, none of which is null.

    Raises:
        InvalidInput: one of them cannot.
    """
    if pc.any(pc.equal(column, 0)).as_py():
        raise InvalidInput("a diff of 0 changes nothing: leave the message out, or give another diff")
    if pc.any(pc.equal(column, -MOST_DIFF - 1)).as_py():
        check_diff(-MOST_DIFF - 1)


def other_diffs(diffs: Sequence[int]) -> dict[int, int] | None:
    """Those other than +1, by place; None if there is none."""
    return {place: diff for place, diff in enumerate(diffs) if diff != 1} or None


def diff_of(fields: Mapping[bytes, bytes]) -> int:
    """The diff of a message that is an entry with these fields.

    Raises:
        ValueError: it is damaged.
    """
    text = fields.get(DIFF_FIELD)
    if text is None:
        return 1
    diff = int(text)
    if not diff or abs(diff) > MOST_DIFF:
        raise ValueError(f"its diff is {text[:80]!r}")
    return diff
