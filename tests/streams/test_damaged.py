"""Entries that nobody wrote so: each is an error with its offset, and never costs more memory than it may."""

from __future__ import annotations

import base64
import json
import pickle
import tracemalloc
from struct import pack

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.protocol.errors import SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries import expanding
from streamlease.streams.entries.decoding import DamagedEntry, Entry, decode_entries
from streamlease.streams.entries.entries import Row, encode_message, encode_rows
from streamlease.streams.entries.expanding import expanded_bytes
from streamlease.streams.entries.layout import Codec
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.many import READ_BYTES
from streamlease.streams.redis.connection import AsyncRedis
from tests.streams.helpers import append, offsets, rows

STREAM = StreamId("s", 0, 0)
NESTED = b"[" * 100_000
HUGE = b"9" * 30


def single(offset: int, **fields: bytes) -> Entry:
    """One message with some of its fields as given; an empty value leaves the field out."""
    whole = {"a": b"1", "t": b"a", "p": b"1"} | fields
    flat = [part for name, value in whole.items() if value for part in (name.encode(), value)]
    return b"%d-1" % offset, flat


def batch(first: int, count: int, codec: Codec = "zstd", size: int = 2000) -> tuple[bytes, list[bytes]]:
    encoded = encode_rows([Row("a", b"x" * size, b"k", (("h", b"v"),), 7) for _ in range(count)], codec)
    return b"%d-%d" % (first + count - 1, count), [b"a", b"1", *encoded.fields]


DAMAGED = {
    "event time beyond int64": single(3, e=HUGE),
    "event time just beyond int64": single(3, e=b"%d" % 2**63),
    "append time beyond int64": single(3, a=HUGE),
    "lone surrogate in a header name": single(3, h=json.dumps([["\ud800", "aGk="]]).encode()),
    "deeply nested headers": single(3, h=NESTED),
    "headers of a strange form": single(3, h=b"7"),
    "header of one part": single(3, h=b'[["x"]]'),
    "header value that is no text": single(3, h=b'[["x", {}]]'),
    "no topic": single(3, t=b""),
    "no append time": single(3, a=b""),
    "no payload": single(3, p=b""),
    "topic that is no text": single(3, t=b"\xff\xfe"),
}


@pytest.mark.parametrize("what", DAMAGED)
@pytest.mark.parametrize(
    "columns", [None, frozenset({"payload", "headers", "timestamp", "append_timestamp"})]
)
def test_a_damaged_message_between_good_ones_is_told_with_its_offset(
    what: str, columns: frozenset[str] | None
) -> None:
    entries = [single(2), DAMAGED[what], single(4), batch(5, 3)]
    with pytest.raises(
        DamagedEntry, match=r"the entry 3-1 of stream s\.0\.0 .* offset 3 cannot be read"
    ) as told:
        decode_entries(STREAM, entries, 2, columns=columns)
    assert (told.value.start, told.value.end) == (3, 4)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 600
    assert offsets(decode_entries(STREAM, entries, 2, 3)) == [2]
    assert offsets(decode_entries(STREAM, entries, 4)) == [4, 5, 6, 7]


def test_an_error_about_a_damaged_entry_survives_the_way_between_processes() -> None:
    with pytest.raises(DamagedEntry) as told:
        decode_entries(STREAM, [DAMAGED["no topic"]])
    copy = pickle.loads(pickle.dumps(told.value))
    assert (str(copy), copy.start, copy.end) == (str(told.value), 3, 4)


# -- bombs ---------------------------------------------------------------------------------------------------


def lying(entry: tuple[bytes, list[bytes]], size: int) -> Entry:
    """The first compressed column says that it has `size` bytes."""
    id, flat = entry
    place = flat.index(b"b") + 1
    message = bytearray(flat[place])
    body = 8 + int.from_bytes(message[4:8], "little")
    assert expanded_bytes(bytes(message)) > len(message)
    at = next(
        at
        for at in range(body, len(message), 8)
        if 0 < int.from_bytes(message[at : at + 8], "little") < 2**32
    )
    message[at : at + 8] = pack("<q", size)
    return id, [*flat[:place], bytes(message), *flat[place + 1 :]]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("size", [2**62, 2**40, 3 * 2**30, 2**63 - 1, -2, -(2**62)])
def test_a_column_that_lies_about_its_size_reserves_nothing(codec: Codec, size: int) -> None:
    before = pa.default_memory_pool().max_memory() or 0
    with pytest.raises(DamagedEntry):
        decode_entries(STREAM, [lying(batch(0, 50, codec), size)])
    assert (pa.default_memory_pool().max_memory() or 0) - before < 64 * 1024 * 1024


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_really_expands_too_far_is_refused(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expanding, "MOST_BYTES", 100_000)
    assert offsets(decode_entries(STREAM, [batch(0, 40, codec)])) == [*range(40)]
    with pytest.raises(DamagedEntry, match="at most 100000 may"):
        decode_entries(STREAM, [batch(0, 60, codec)])


def test_a_long_topic_under_a_large_count_is_refused() -> None:
    """Without its payloads the entry has next to nothing, and its topic would be repeated."""
    column = pa.array([b""] * 1_000_000, pa.binary())
    sink = pa.BufferOutputStream()
    schema = pa.schema([("payload", pa.binary())])
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column], schema=schema))
    body = sink.getvalue().to_pybytes()[len(schema.serialize().to_pybytes()) : -8]
    bomb = [b"a", b"1", b"t", b"t" * 60_000, b"c", b"p", b"b", body]
    assert len(body) < 10_000
    for columns in (None, frozenset({"offset"})):
        with pytest.raises(DamagedEntry, match="topics of up to 60000"):
            decode_entries(STREAM, [(b"999999-1000000", bomb)], columns=columns)


def test_a_count_without_columns_is_refused() -> None:
    """Such a batch has as many rows as it says, and not a byte of its own."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([])) as writer:
        writer.write_batch(pa.record_batch([pa.nulls(0)], names=["x"]).select([]))
    empty = sink.getvalue().to_pybytes()[len(pa.schema([]).serialize().to_pybytes()) : -8]
    entry = (b"%d-%d" % (2**52 - 1, 2**52), [b"a", b"1", b"t", b"a", b"c", b"", b"b", empty])
    with pytest.raises(DamagedEntry):
        decode_entries(STREAM, [entry])


async def test_what_compresses_well_is_read_in_pieces(redis: AsyncRedis, log: AsyncLog) -> None:
    """A read is bounded by what its messages take in memory, not by what they take in Redis."""
    await log.open([STREAM])
    for number in range(5):
        content = [Row("a", b"x" * 100_000) for _ in range(120)]
        await log.append(append(STREAM, number, content))
    found = await log.read(STREAM, 0)
    assert sum(one.nbytes for one in found) <= READ_BYTES
    assert offsets(found) == [*range(240)]


# -- anything ------------------------------------------------------------------------------------------------

_VALUES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [HUGE, b"-" + HUGE, b"%d" % 2**63, b"%d" % (-(2**63)), b"0", b"", NESTED, b"null", b"[[]]"]
    ),
    st.recursive(st.none() | st.integers() | st.text() | st.floats(), st.lists, max_leaves=8).map(
        lambda value: json.dumps(value).encode()
    ),
    st.lists(st.tuples(st.text(), st.binary().map(lambda value: base64.b64encode(value).decode()))).map(
        lambda value: json.dumps(value).encode()
    ),
)
_NAMES = st.sampled_from([b"a", b"t", b"p", b"k", b"h", b"e", b"c", b"b", b"s", b"zz"])


@st.composite
def anything(draw: st.DrawFn) -> list[tuple[Entry, int]]:
    """Entries one behind the other, some of them changed or made up, each with its count."""
    entries: list[tuple[Entry, int]] = []
    first = 0
    for _ in range(draw(st.integers(1, 5))):
        count = draw(st.sampled_from([1, 1, 2, 9]))
        content = [
            Row(f"a/{number % 2}", b"x" * 300, b"k", (("h", b"v"),), number) for number in range(count)
        ]
        codec: Codec = draw(st.sampled_from(["zstd", "lz4", "none"]))
        flat = [
            b"a",
            b"5",
            *(encode_rows(content, codec) if count > 1 else encode_message(content[0])).fields,
        ]
        for _ in range(draw(st.integers(0, 3))):
            match draw(st.sampled_from(["value", "name", "more", "less", "byte"])):
                case "value":
                    flat[2 * draw(st.integers(0, len(flat) // 2 - 1)) + 1] = draw(_VALUES)
                case "name":
                    flat[2 * draw(st.integers(0, len(flat) // 2 - 1))] = draw(_NAMES)
                case "more":
                    flat += [draw(_NAMES), draw(_VALUES)]
                case "less":
                    flat = flat[:-2] or flat
                case "byte":
                    place = 2 * draw(st.integers(0, len(flat) // 2 - 1)) + 1
                    value = bytearray(flat[place] or b"?")
                    value[draw(st.integers(0, 10_000)) % len(value)] ^= draw(st.integers(1, 255))
                    flat[place] = bytes(value)
        entries.append(((b"%d-%d" % (first + count - 1, count), flat), count))
        first += count
    return entries


@settings(deadline=None, max_examples=400)
@given(anything(), st.booleans())
@pytest.mark.slow
def test_whatever_stands_there_gives_its_messages_or_an_error_with_offsets(
    made: list[tuple[Entry, int]], some: bool
) -> None:
    columns = frozenset({"payload", "offset"}) if some else None
    entries = [entry for entry, _ in made]
    end = sum(count for _, count in made)
    position = 0
    seen: list[int] = []
    tracemalloc.start()
    try:
        while position < end:
            try:
                found = decode_entries(STREAM, entries, position, columns=columns)
            except DamagedEntry as damaged:
                assert position <= damaged.start < damaged.end <= end
                found = (
                    decode_entries(STREAM, entries, position, damaged.start, columns=columns)
                    if (damaged.start > position and _readable(entries, position, damaged.start))
                    else []
                )
                position = damaged.end
            except SchemaMismatch as error:
                assert "has the schema" in str(error)
                return
            else:
                position = end
            for one in found:
                one.validate(full=True)
                seen += one.column("offset").to_pylist()
        assert tracemalloc.get_traced_memory()[1] < 200 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert seen == sorted(set(seen))
    assert all(0 <= offset < end for offset in seen)


def _readable(entries: list[Entry], start: int, end: int) -> bool:
    try:
        decode_entries(STREAM, entries, start, end)
    except SchemaMismatch:
        return False
    return True


async def test_a_reader_gets_what_is_before_a_damaged_entry_and_then_the_error(
    redis: AsyncRedis, log: AsyncLog
) -> None:
    await log.open([STREAM])
    await log.append(append(STREAM, 0, rows(0, 3)))
    id, flat = DAMAGED["event time beyond int64"]
    await redis.execute_command("XADD", stream_log(STREAM), id, *flat)
    await redis.hset(stream_meta(STREAM), "next", "4")
    await log.append(append(STREAM, 1, rows(4, 2)))
    assert offsets(await log.read(STREAM, 0)) == [0, 1, 2]
    with pytest.raises(DamagedEntry):
        await log.read(STREAM, 3)
    assert offsets(await log.read(STREAM, 4)) == [4, 5]
