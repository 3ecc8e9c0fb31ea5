"""Arrow columns of Python values, made without `pa.array`. Pure.

pyarrow imports pandas, where it is installed, with the first Python value that it converts: a quarter of a
second of processor time, for which the loop of a process that has leases would stand still. What is made of
buffers and of other columns needs no conversion.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate

import pyarrow as pa


def texts(values: Iterable[str]) -> pa.StringArray:
    """A column of texts."""
    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish()


def repeated(values: Sequence[str], lengths: Sequence[int]) -> pa.StringArray:
    """A column with each of the texts `values` as often as `lengths` says."""
    if len(values) == 1:
        return pa.repeat(text(values[0]), lengths[0])
    return texts(values).take(spread(range(len(values)), lengths, pa.int32()))


def blobs(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """A column of bytes, some of which may be missing."""
    rows = len(values)
    missing = values.count(None)
    if rows and missing == rows:
        return pa.nulls(rows, pa.binary())
    there = [value or b"" for value in values] if missing else values
    ends = array("i", accumulate(map(len, there), initial=0))  # type: ignore[arg-type]
    valid = bits(value is not None for value in values) if missing else None
    data = pa.py_buffer(b"".join(there))  # type: ignore[arg-type]
    return pa.Array.from_buffers(pa.binary(), rows, [valid, pa.py_buffer(ends), data], missing)


def integers(values: Sequence[int], type: pa.DataType) -> pa.Array:
    """A column of whole numbers, as such or as moments; `type` has 32 or 64 bits."""
    there = array("i" if type.bit_width == 32 else "q", values)
    return pa.Array.from_buffers(type, len(values), [None, pa.py_buffer(there)], 0)


def spread(values: Sequence[int], lengths: Sequence[int], type: pa.DataType) -> pa.Array:
    """A column with each of `values` as often as `lengths` says; `type` has 32 or 64 bits."""
    size = type.bit_width // 8
    plain = b"".join(
        value.to_bytes(size, sys.byteorder, signed=True) * rows
        for value, rows in zip(values, lengths, strict=True)
    )
    return pa.Array.from_buffers(type, len(plain) // size, [None, pa.py_buffer(plain)], 0)


def flags(values: Iterable[bool]) -> pa.BooleanArray:
    """A column of truth values."""
    plain = bytes(values)
    return pa.Array.from_buffers(pa.uint8(), len(plain), [None, pa.py_buffer(plain)], 0).cast(pa.bool_())


def integer(value: int, type: pa.DataType) -> pa.Scalar:
    """One whole number."""
    return integers((value,), type)[0]


@lru_cache(maxsize=1024)
def text(value: str) -> pa.StringScalar:
    """One text."""
    return texts((value,))[0]


def bits(values: Iterable[bool]) -> pa.Buffer:
    """Truth values as Arrow says which values of a column are there."""
    return flags(values).buffers()[1]
