"""The codec: what goes in comes out, cut anywhere, and nothing that is damaged comes out at all."""

from __future__ import annotations

import contextlib
import os
import random
import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.protocol.errors import InvalidInput, MessageTooLarge, SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import entry_id
from streamlease.streams.entries import expanding, message_rows, splitting
from streamlease.streams.entries.entries import (
    CODECS,
    HEADERS,
    MESSAGE_SCHEMA,
    Codec,
    Encoded,
    Message,
    Row,
    decode_entries,
    decode_entry,
    encode_batch,
    encode_message,
    encode_normalized,
    encode_rows,
    filter_batch,
    normalized,
    pack_headers,
    to_messages,
)
from streamlease.streams.entries.few import MOST_ROWS, encode_few
from streamlease.streams.entries.layout import layout_of
from streamlease.streams.entries.message_rows import FIRST_TIME, LAST_TIME
from streamlease.streams.entries.splitting import split
from streamlease.streams.log.ranges import RangeReader

STREAM = StreamId("flights", 0, 3)
APPENDED = 1_763_700_000_000_000


def stored(entry: Encoded, first: int) -> tuple[bytes, list[bytes]]:
    """The entry as XRANGE gives it back."""
    return entry_id(first, entry.rows).encode(), [b"a", b"%d" % APPENDED, *entry.fields]


def moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, tz=UTC)


def expected(row: Row, offset: int) -> Message:
    return Message(
        row.topic,
        row.key,
        row.payload,
        str(STREAM),
        offset,
        APPENDED if row.timestamp is None else row.timestamp,
        APPENDED,
        row.headers or (),
    )


any_rows = st.builds(
    Row,
    topic=st.sampled_from(["flights/JFK", "flights/JFK/LAX", "flüge/ä", "$sys/x"]),
    payload=st.binary(max_size=40),
    key=st.none() | st.binary(max_size=8),
    headers=st.none()
    | st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), min_size=1, max_size=3).map(tuple),
    timestamp=st.none() | st.integers(0, 2_000_000_000).map(lambda second: second * 1_000_000),
    values=st.none(),
    diff=st.just(1),
)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_entries_cut_anywhere_give_exactly_the_rows(data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.lists(any_rows, min_size=1, max_size=6), min_size=1, max_size=5))
    entries, first = [], 7
    for group in groups:
        entries.append(stored(encode_rows(group), first))
        first += len(group)
    everything = [
        expected(row, 7 + place) for place, row in enumerate(row for group in groups for row in group)
    ]
    start = data.draw(st.integers(0, first + 2))
    end = data.draw(st.none() | st.integers(0, first + 2))

    batches = decode_entries(STREAM, entries, start, end)

    assert all(batch.schema == MESSAGE_SCHEMA and batch.num_rows for batch in batches)
    high = first if end is None else end
    got = [message for batch in batches for message in to_messages(batch)]
    assert got == [message for message in everything if start <= message.offset < high]


@settings(deadline=None, max_examples=200)
@given(st.lists(any_rows, min_size=2, max_size=12))
def test_few_messages_are_written_as_arrow_writes_them(rows: list[Row]) -> None:
    topics, payloads, keys, _, times, _, _ = zip(*rows, strict=True)
    if None in times:  # what stands below a null is anything
        times = (None,) * len(rows)
    columns = {
        "topic": pa.array(topics),
        "payload": pa.array(payloads, pa.binary()),
        "key": pa.array(keys, pa.binary()),
        "timestamp": pa.array(times, pa.int64()),
    }
    few = encode_few(topics, payloads, keys, times, "none")
    assert few == encode_normalized(normalized(pa.record_batch(columns)), "none")


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(
        st.builds(
            Row,
            topic=st.sampled_from(["a", "b", "c"]),
            payload=st.binary(max_size=300) | st.integers(0, 300).map(lambda size: b"x" * size),
            key=st.none() | st.binary(max_size=60),
            headers=st.none(),
            timestamp=st.none() | st.integers(FIRST_TIME, LAST_TIME - 1),
            values=st.none(),
            diff=st.just(1),
        ),
        min_size=2,
        max_size=MOST_ROWS,
    ),
    codec=st.sampled_from(CODECS),
)
def test_few_messages_come_back_however_they_are_compressed(rows: list[Row], codec: Codec) -> None:
    topics, payloads, keys, _, times, _, _ = zip(*rows, strict=True)
    entry = encode_few(topics, payloads, keys, times, codec)
    (batch,) = decode_entries(STREAM, [stored(entry, 0)])
    batch.validate(full=True)
    assert to_messages(batch) == [expected(row, place) for place, row in enumerate(rows)]


def noise(seed: int, sizes: list[int]) -> list[Row]:
    """Messages that do not get smaller by compression, of two topics."""
    source = random.Random(seed)
    return [
        Row(f"flights/{place % 2}", source.randbytes(size), b"k" if place % 3 else None)
        for place, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_payloads_that_do_not_get_smaller_are_stored_as_they_are(codec: Codec) -> None:
    rows = noise(1, [5000, 0, 7000, 6000, 1])
    entry = encode_rows(rows, codec)
    assert entry.fields[-2:] == [b"p", b"".join(row.payload for row in rows)]
    for start in range(6):
        for end in range(start, 6):
            batches = decode_entries(STREAM, [stored(entry, 0)], start, end)
            got = [message for batch in batches for message in to_messages(batch)]
            assert got == [expected(row, place) for place, row in enumerate(rows)][start:end]
            for batch in batches:
                batch.validate(full=True)
    text = encode_rows([Row("t", b"the same words again " * 300) for _ in range(5)], codec)
    assert b"p" not in text.fields[::2]


def test_a_part_of_an_arrow_batch_is_stored_alone() -> None:
    rows = noise(2, [9000] * 6)
    whole = pa.record_batch({"topic": ["t"] * 6, "payload": pa.array([row.payload for row in rows])})
    entry = encode_batch(whole.slice(2, 3))
    assert entry.fields[-1] == b"".join(row.payload for row in rows[2:5])
    (batch,) = decode_entries(STREAM, [stored(entry, 0)])
    assert batch.column("payload").to_pylist() == [row.payload for row in rows[2:5]]


@settings(deadline=None, max_examples=60)
@given(
    groups=st.lists(
        st.lists(any_rows, min_size=1, max_size=6)
        | st.builds(noise, st.integers(0, 9), st.lists(st.integers(5000, 6000), min_size=4, max_size=5)),
        min_size=1,
        max_size=4,
    ),
    wanted=st.sets(st.sampled_from(MESSAGE_SCHEMA.names)),
    cut=st.tuples(st.integers(0, 9), st.integers(0, 24)),
)
def test_fewer_columns_are_the_same_columns(
    groups: list[list[Row]], wanted: set[str], cut: tuple[int, int]
) -> None:
    entries, first = [], 0
    for group in groups:
        entries.append(stored(encode_rows(group), first))
        first += len(group)
    whole = pa.Table.from_batches(decode_entries(STREAM, entries, *cut), MESSAGE_SCHEMA)
    batches = decode_entries(STREAM, entries, *cut, columns=frozenset(wanted))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.names == [name for name in MESSAGE_SCHEMA.names if name in wanted | {"topic"}]
        for filter in ("flights/+", "flights/JFK/#", "#"):
            rows = filter_batch(batch, filter).num_rows
            assert rows == filter_batch(batch.set_column(0, "topic", texts(batch)), filter).num_rows
    for name in wanted | {"topic"}:
        parts = [texts(batch) if name == "topic" else batch.column(name) for batch in batches]
        assert pa.chunked_array(parts, MESSAGE_SCHEMA.field(name).type).to_pylist() == (
            whole.column(name).to_pylist()
        )


def texts(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("topic").cast(pa.string())


def test_a_run_of_single_messages_is_one_batch() -> None:
    entries = [stored(encode_message(Row("t", b"%d" % offset)), offset) for offset in range(50)]
    (batch,) = decode_entries(STREAM, entries)
    assert batch.column("offset").to_pylist() == list(range(50))


def test_single_and_batch_keep_their_order() -> None:
    entries = [
        stored(encode_rows([Row("t", b"0")]), 0),
        stored(encode_rows([Row("t", b"1"), Row("u", b"2")]), 1),
        stored(encode_rows([Row("t", b"3")]), 3),
    ]
    assert [batch.num_rows for batch in decode_entries(STREAM, entries)] == [1, 2, 1]


def test_arrow_batches_of_other_types_are_taken() -> None:
    batch = pa.record_batch(
        {
            "payload": pa.array(["a", "b"]),
            "topic": pa.array(["x", "y"]).dictionary_encode(),
            "key": pa.array([None, "k"]),
            "timestamp": pa.array([moment(1_000_000), None], pa.timestamp("ns", tz="Europe/Berlin")),
        }
    )
    id, fields = stored(encode_batch(batch), 0)
    first, second = to_messages(decode_entry(STREAM, id, fields))
    assert (first.topic, first.payload, first.key, first.timestamp) == ("x", b"a", None, moment(1_000_000))
    assert (second.topic, second.payload, second.key, second.timestamp) == ("y", b"b", b"k", moment(APPENDED))


@pytest.mark.parametrize(
    "columns",
    [
        {"payload": pa.array([b"x"])},
        {"topic": pa.array(["t"])},
        {"topic": pa.array(["t"]), "payload": pa.array([1.5])},
        {"topic": pa.array([None], pa.string()), "payload": pa.array([b"x"])},
        {"topic": pa.array(["t"]), "payload": pa.array([None], pa.binary())},
        {"topic": pa.array(["t"]), "payload": pa.array([b"x"]), "colour": pa.array(["red"])},
        {"topic": pa.array([], pa.string()), "payload": pa.array([], pa.binary())},
    ],
)
def test_arrow_batches_that_cannot_be_stored_are_refused(columns: dict[str, pa.Array]) -> None:
    with pytest.raises(InvalidInput):
        encode_batch(pa.record_batch(columns))


def test_hundred_byte_messages_take_at_most_a_fifth_more_than_their_payload() -> None:
    rows = [
        Row(f"flights/{number % 20}", os.urandom(100), b"N%05d" % number, None, APPENDED + number * 977)
        for number in range(1000)
    ]
    entry = encode_rows(rows)
    assert sum(map(len, entry.fields)) <= 1.2 * 100 * 1000


def test_a_message_may_not_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_rows, "MAX_MESSAGE_BYTES", 10)
    with pytest.raises(MessageTooLarge, match="11 bytes"):
        encode_rows([Row("t", b"x" * 11)])
    with pytest.raises(MessageTooLarge, match="11 bytes"):
        encode_rows([Row("t", b"x"), Row("t", b"x" * 11)])
    with pytest.raises(MessageTooLarge, match="11 bytes"):
        encode_batch(pa.record_batch({"topic": pa.array(["t"]), "payload": pa.array([b"x" * 11])}))


def damaged_entries() -> list[tuple[bytes, list[bytes]]]:
    batch_id, batch = stored(encode_rows([Row("a", b"1"), Row("b", b"2"), Row("b", b"3")]), 4)
    plain_id, plain = stored(encode_rows(noise(1, [6000] * 3)), 4)
    single_id, single = stored(encode_rows([Row("a", b"1", None, (("h", b"v"),))]), 4)

    def changed(fields: list[bytes], name: bytes, value: bytes) -> list[bytes]:
        place = fields.index(name)
        return [*fields[: place + 1], value, *fields[place + 2 :]]

    body = batch[batch.index(b"b") + 1]
    return [
        (single_id, [b"a", b"1", b"zz", b"new form"]),
        (single_id, changed(single, b"a", b"yesterday")),
        (single_id, changed(single, b"h", b"{")),
        (single_id, changed(single, b"h", b'[["h","!!!"]]')),
        (single_id, changed(single, b"t", b"\xff")),
        (single_id, single[:-1]),
        (b"6-2", single),
        (b"nonsense", single),
        (b"2-9", batch),
        (b"6-2", batch),
        (batch_id, changed(batch, b"c", b"q")),
        (batch_id, changed(batch, b"c", b"p")),
        (batch_id, changed(batch, b"t", b"only one")),
        (batch_id, changed(batch, b"b", body[:-20])),
        (batch_id, changed(batch, b"b", b"\0" * len(body))),
        (batch_id, changed(batch, b"b", b"")),
        (plain_id, changed(plain, b"p", b"too short")),
        (plain_id, changed(plain, b"p", plain[plain.index(b"p") + 1] + b"x")),
        (plain_id, plain[: plain.index(b"p")]),
    ]


@pytest.mark.parametrize("number", range(len(damaged_entries())))
def test_a_damaged_entry_is_an_error_that_names_stream_and_offset(number: int) -> None:
    id, fields = damaged_entries()[number]
    with pytest.raises(SchemaMismatch) as caught:
        decode_entry(STREAM, id, fields)
    assert "flights.0.3" in str(caught.value)
    assert id.decode() in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_gives_an_error_or_whole_messages(place: int, change: int) -> None:
    group = [Row(f"flights/{number % 3}", b"payload %d" % number, b"k") for number in range(20)]
    id, fields = stored(encode_rows(group), 0)
    body = bytearray(fields[fields.index(b"b") + 1])
    body[place % len(body)] ^= change
    fields[fields.index(b"b") + 1] = bytes(body)
    try:
        batch = decode_entry(STREAM, id, fields)
    except SchemaMismatch:
        return
    batch.validate(full=True)
    assert batch.num_rows == 20


def bomb(codec: Codec, size: int, rows: int = 1) -> list[bytes]:
    """Fields as an encoder would not write them: payloads of zeros, very many of them."""
    payload = pa.array([b"\0" * (size // rows)] * rows, pa.binary())
    layout = layout_of("p", None)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.ipc.new_stream(sink, layout.schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([payload], schema=layout.schema))
    body = sink.getvalue().to_pybytes()[len(layout.header) : -8]
    return [b"a", b"%d" % APPENDED, b"t", b"a/x", b"c", b"p", b"b", body]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_would_expand_to_too_much_is_not_expanded(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = bomb(codec, 2**20)
    assert len(decode_entry(STREAM, b"0-1", fields)["payload"][0].as_py()) == 2**20
    monkeypatch.setattr(expanding, "MOST_BYTES", 2**19)
    monkeypatch.setattr(pa.ipc, "open_stream", None)  # not even begun
    with pytest.raises(SchemaMismatch, match=r"flights\.0\.3 is damaged.*expand to 1048[0-9]{3} bytes"):
        decode_entry(STREAM, b"0-1", fields)


def test_an_entry_without_columns_cannot_have_any_number_of_messages() -> None:
    rows = 2**40
    fields = [b"a", b"1", b"t", b"a/x", b"c", b"", b"b", b"\0" * 64]
    with pytest.raises(SchemaMismatch, match=f"{rows} messages in one entry"):
        decode_entry(STREAM, entry_id(0, rows).encode(), fields)


def test_topics_cannot_take_any_memory() -> None:
    rows = 40_000
    _, fields = stored(encode_rows([Row("t", b"")] * rows), 0)
    fields[fields.index(b"t") + 1] = b"t" * 50_000
    with pytest.raises(SchemaMismatch, match="40000 messages with topics of up to 50000 characters"):
        decode_entry(STREAM, entry_id(0, rows).encode(), fields)


@settings(deadline=None, max_examples=60)
@given(
    codec=st.sampled_from(["zstd", "lz4", "none"]),
    payloads=st.lists(st.binary(max_size=400), min_size=2, max_size=60),
    keys=st.booleans(),
    cut=st.integers(0, 400),
)
def test_how_large_an_entry_becomes_is_known_before(
    codec: Codec, payloads: list[bytes], keys: bool, cut: int
) -> None:
    rows = [Row(f"a/{n % 3}", one, one if keys else None, None, n) for n, one in enumerate(payloads)]
    fields = encode_rows(rows, codec).fields
    body = fields[fields.index(b"b") + 1]
    layout = layout_of(fields[fields.index(b"c") + 1].decode(), None)
    batch = pa.ipc.open_stream(layout.header + body).read_next_batch()
    buffers = [one for column in batch.columns for one in column.buffers() if one is not None]
    # Of a column without nulls, no validity is stored; Arrow pads each buffer.
    least = sum(one.size for one in buffers) - 8 * len(buffers)
    assert least <= expanding.expanded_bytes(body) <= least + 72 * len(buffers)
    assert expanding.expanded_entry_bytes(fields) >= sum(map(len, fields))
    with contextlib.suppress(expanding.Unreadable):
        expanding.expanded_bytes(body[:cut])
    with contextlib.suppress(expanding.Unreadable):
        expanding.expanded_bytes(os.urandom(cut))


def test_a_read_stops_where_the_expanded_messages_are_enough() -> None:
    fields = bomb("zstd", 2**20)
    state = [b"8", b"0", b"open", b"1", b"1", b"1", None, None]
    entries = [(entry_id(number, 1).encode(), fields) for number in range(8)]
    reader = RangeReader(STREAM, 0, 8, max_bytes=3 * 2**20)
    (batch, *more) = reader.feed([state, entries])
    assert (reader.position, reader.done, batch.num_rows + sum(one.num_rows for one in more)) == (2, True, 2)


def test_a_filter_selects_by_topic() -> None:
    rows = [Row(topic, b"") for topic in ("a/b", "a/c", "a/b", "d", "$s/b")]
    id, fields = stored(encode_rows(rows), 0)
    batch = decode_entry(STREAM, id, fields)
    assert filter_batch(batch, "a/+").column("offset").to_pylist() == [0, 1, 2]
    assert filter_batch(batch, "+/b").column("offset").to_pylist() == [0, 2]
    assert filter_batch(batch, "$s/#").column("offset").to_pylist() == [4]
    assert filter_batch(batch, "none").num_rows == 0
    plain = batch.slice(0, 4)
    assert filter_batch(plain, "#") is plain
    assert filter_batch(batch, "#").num_rows == 4


def test_headers_have_one_form() -> None:
    assert pack_headers({"a": "ä", "b": b"\0"}) == (("a", "ä".encode()), ("b", b"\0"))
    assert pack_headers([("a", b"1"), ("a", b"2")]) == (("a", b"1"), ("a", b"2"))
    assert pack_headers({}) is None
    with pytest.raises(InvalidInput, match="header a is a int"):
        pack_headers({"a": 5})  # type: ignore[dict-item]


HOLES = pa.array(
    [
        [{"key": "k", "value": b"v"}],
        [None, {"key": "a", "value": b"1"}],
        None,
        [{"key": None, "value": b"2"}, {"key": "b", "value": None}],
        [],
    ],
    HEADERS,
)


def with_headers(headers: pa.Array) -> pa.RecordBatch:
    rows = len(headers)
    columns = {"topic": pa.array(["a"] * rows), "payload": pa.array([b"p"] * rows), "headers": headers}
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (1, "a header that is null in row 1: leave it out"),
        (3, "a header without a key in row 3: give it one, or leave it out"),
        (4, "a header without a value in row 4: give it one (which may be empty), or leave it out"),
    ],
)
def test_headers_that_are_null_are_not_stored(row: int, said: str) -> None:
    whole = pa.array(
        [[], [None], None, [{"key": None, "value": b"2"}], [{"key": "b", "value": None}]], HEADERS
    )
    batch = with_headers(pa.concat_arrays([whole.slice(0, 1)] * row + [whole.slice(row, 1)]))
    behind = with_headers(pa.concat_arrays([whole, batch.column("headers")])).slice(len(whole))
    for some in (batch, behind):
        with pytest.raises(InvalidInput, match=re.escape(f"column headers has {said}")):
            encode_batch(some)
    encode_batch(with_headers(whole).slice(2, 1))
    encode_batch(with_headers(whole).slice(0, 1))


@pytest.mark.parametrize("columns", [None, frozenset(["headers"])])
def test_headers_that_are_null_are_read(columns: frozenset[str] | None) -> None:
    """A sink took them, and every reader in Python ended with a TypeError, again and again."""
    batch = with_headers(HOLES)
    entry = encode_normalized(batch.cast(batch.schema))
    (read,) = decode_entries(STREAM, [stored(entry, 7)], columns=columns)
    assert read.column("headers").to_pylist() == [
        [{"key": "k", "value": b"v"}],
        [{"key": "a", "value": b"1"}],
        None,
        [{"key": "", "value": b"2"}, {"key": "b", "value": b""}],
        [],
    ]
    if columns is None:
        assert [message.headers for message in to_messages(read)] == [
            (("k", b"v"),),
            (("a", b"1"),),
            (),
            (("", b"2"), ("b", b"")),
            (),
        ]


def test_large_rows_beside_small_ones_are_cut_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [2**20] * 40 + [1] * 4000
    batch = pa.record_batch(
        {"topic": pa.array(["t"] * len(sizes)), "payload": pa.array([b"x" * size for size in sizes])}
    )
    pieces = [piece for _, piece in split(batch, lambda topic, key: STREAM, False, 2**20)]
    assert max(piece.nbytes for piece in pieces) <= 4 * 2**20
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([batch]))
    monkeypatch.setattr(splitting, "MOST_BYTES", 2**19)
    with pytest.raises(MessageTooLarge, match="at most 524288"):
        split(batch, lambda topic, key: STREAM, False, 2**20)
