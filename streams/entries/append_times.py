"""When each message of an entry was appended, in the entry itself. Pure.

An entry that a publisher appended has one time, ``a``. One that others were merged into has in ``a`` the time
of its last message, and in ``A`` how many microseconds before that each message was appended; or each of
several runs of messages, if ``R`` says how many they are. The numbers of ``R`` are int32, those of ``A``
int32, or int64 where one of them is larger; all little-endian, and none is compressed, for a script has to
find the time of one message in them.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.arrays import integer, spread
from streamlease.streams.entries.message_rows import TIMESTAMP

_INT32_MAX = 2**31 - 1


def stored_times(times: pa.Array) -> tuple[list[bytes], list[bytes]]:
    """The field ``a`` and those beside it, of messages with these append times (int64, rising)."""
    last = times[len(times) - 1]
    before = pc.subtract(last, times)
    if before[0].as_py() <= _INT32_MAX:
        before = before.cast(pa.int32())
    fields = [b"a", b"%d" % last.as_py()]
    runs = pc.run_end_encode(before)
    if 2 * len(runs.values) > len(before):
        return fields, [b"A", _bytes_of(before)]
    ends = runs.run_ends
    lengths = pc.subtract(ends, pa.concat_arrays([pa.nulls(1, ends.type).fill_null(0), ends[:-1]]))
    return fields, [b"A", _bytes_of(runs.values), b"R", _bytes_of(lengths.cast(pa.int32()))]


def times_of(fields: Mapping[bytes, bytes], rows: int) -> pa.Array:
    """The append times of the messages of an entry with these fields.

    Raises:
        ValueError, KeyError: it is damaged.
    """
    last, before = int(fields[b"a"]), _before(fields, rows)
    if before is None:
        return spread([last], [rows], TIMESTAMP)
    return pc.subtract(integer(last, pa.int64()), before).view(TIMESTAMP)


def appended_until(fields: Mapping[bytes, bytes], rows: int, moment: int) -> int:
    """How many messages of an entry with these fields were appended up to `moment`.

    Raises:
        ValueError, KeyError: it is damaged.
    """
    last, before = int(fields[b"a"]), _before(fields, rows)
    if before is None:
        return rows if last <= moment else 0
    return int(pc.sum(pc.greater_equal(before, integer(last - moment, pa.int64()))).as_py())


def _before(fields: Mapping[bytes, bytes], rows: int) -> pa.Array | None:
    """How long before its last message each message of an entry was appended; None: with it."""
    stored, lengths = fields.get(b"A"), fields.get(b"R")
    if stored is None:
        return None
    numbers = rows if lengths is None else len(lengths) // 4
    if len(stored) not in (4 * numbers, 8 * numbers):
        raise ValueError(f"the append times of {rows} messages have {len(stored)} bytes")
    before = _numbers(stored, numbers).cast(pa.int64())
    if numbers and pc.min(before).as_py() < 0:
        raise ValueError("a message was appended after the last one of its entry")
    if lengths is None:
        return before
    each = _numbers(lengths, numbers)
    if not numbers or pc.min(each).as_py() < 1 or pc.sum(each).as_py() != rows:
        raise ValueError(f"it does not have the append times of {rows} messages")
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(pc.cumulative_sum(each), before))


def _numbers(stored: bytes, count: int) -> pa.Array:
    type = pa.int32() if len(stored) == 4 * count else pa.int64()
    return pa.Array.from_buffers(type, count, [None, pa.py_buffer(stored)], 0)


def _bytes_of(numbers: pa.Array) -> bytes:
    width = numbers.type.bit_width // 8
    stored: bytes = numbers.buffers()[1].to_pybytes()
    return stored[numbers.offset * width : (numbers.offset + len(numbers)) * width]
