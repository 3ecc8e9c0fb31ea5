"""Schemas: their forms and fingerprint, what fits into them, how they may change. Without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.protocol.errors import InvalidOption, MessageTooLarge, SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import entry_id
from streamlease.streams.entries import message_rows, typed
from streamlease.streams.entries.entries import (
    CODECS,
    MESSAGE_SCHEMA,
    Codec,
    Encoded,
    Row,
    decode_entries,
    encode_batch,
    encode_typed_rows,
    to_messages,
)
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.entries.values import check_values

STREAM = StreamId("flights", 0, 3)


def schema(*columns: tuple[str, str] | tuple[str, str, bool]) -> Schema:
    return Schema.of(
        {"columns": [dict(zip(("name", "type", "nullable"), one, strict=False)) for one in columns]}
    )


def stored(entry: Encoded, first: int) -> tuple[bytes, list[bytes]]:
    return entry_id(first, entry.rows).encode(), [b"a", b"1763700000000000", *entry.fields]


# ------------------------------------------------------------------------------------------- forms of it

EVERY_TYPE = [
    ("int8", pa.int8()),
    ("int16", pa.int16()),
    ("int32", pa.int32()),
    ("int64", pa.int64()),
    ("float32", pa.float32()),
    ("float64", pa.float64()),
    ("bool", pa.bool_()),
    ("string", pa.string()),
    ("binary", pa.binary()),
    ("date", pa.date32()),
    ("timestamp[us]", pa.timestamp("us")),
    ("timestamp[us, UTC]", pa.timestamp("us", tz="UTC")),
    ("decimal(7, 2)", pa.decimal128(7, 2)),
    ("list<int32>", pa.list_(pa.int32())),
    (
        "struct<a: string, b: list<struct<c: date>>>",
        pa.struct([("a", pa.string()), ("b", pa.list_(pa.struct([("c", pa.date32())])))]),
    ),
]


@pytest.mark.parametrize(("name", "type"), EVERY_TYPE, ids=[name for name, _ in EVERY_TYPE])
def test_json_and_arrow_forms_of_a_type_are_the_same_schema(name: str, type: pa.DataType) -> None:
    by_json = schema(("x", name, False))
    by_arrow = Schema.of(pa.schema([pa.field("x", type, nullable=False)]))
    assert by_json == by_arrow
    assert by_json.fingerprint == by_arrow.fingerprint
    assert by_json.arrow == pa.schema([pa.field("x", type, nullable=False)])


def test_a_schema_file_may_be_json_or_arrow(tmp_path: Any) -> None:
    columns = pa.schema([("carrier", pa.string()), ("delay", pa.float64())])
    wanted = Schema.of(columns)
    as_json = json.dumps(wanted.model_dump()).encode()
    file, stream = pa.BufferOutputStream(), pa.BufferOutputStream()
    pa.ipc.new_file(file, columns).close()
    pa.ipc.new_stream(stream, columns).close()
    forms = [as_json, columns.serialize().to_pybytes(), file.getvalue(), stream.getvalue()]
    assert [Schema.parse(bytes(form)) for form in forms] == [wanted] * 4


def test_the_fingerprint_is_what_the_documentation_says() -> None:
    """A golden value: entries in Redis carry it, so it may never change."""
    assert schema(("carrier", "string", False), ("delay", "float64")).fingerprint == "0aedd328b5f47e0b"


def test_other_spellings_give_the_same_fingerprint_and_other_meanings_another() -> None:
    one = schema(("x", "decimal(7,2)"), ("y", "struct<a:int32,b:list< string >>"))
    other = Schema.of(
        pa.schema(
            [
                ("x", pa.decimal128(7, 2)),
                ("y", pa.struct([("a", pa.int32()), ("b", pa.large_list(pa.large_string()))])),
            ],
            metadata={"made": "elsewhere"},
        )
    )
    assert one.fingerprint == other.fingerprint
    prints = {
        each.fingerprint
        for each in (
            one,
            schema(("x", "decimal(7, 3)")),
            schema(("x", "decimal(7, 2)")),
            schema(("x", "decimal(7, 2)", False)),
        )
    }
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"columns": []}, "0 columns"),
        ({"columns": [{"name": "x"}]}, "not of the form"),
        ({"columns": [{"name": "x", "type": "int32", "null": True}]}, "not of the form"),
        ({"columns": [{"name": "x", "type": "int31"}]}, "int31"),
        ({"columns": [{"name": "x", "type": "list<int32"}]}, "list<int32"),
        ({"columns": [{"name": "x", "type": "int32>"}]}, "int32>"),
        ({"columns": [{"name": "x", "type": "decimal(39, 2)"}]}, "out of range"),
        ({"columns": [{"name": "x", "type": "struct<a: int32, a: int8>"}]}, "two fields"),
        ({"columns": [{"name": "x", "type": "list<" * 50 + "int8" + ">" * 50}]}, "deep"),
        ({"columns": [{"name": "topic", "type": "string"}]}, "topic has the name"),
        ({"columns": [{"name": "x", "type": "int32"}, {"name": "x", "type": "int8"}]}, "twice"),
        ({"columns": [{"name": "", "type": "int32"}]}, "not acceptable"),
        ({"columns": [{"name": "x", "type": "int32", "nullable": "yes"}]}, "true or false"),
        ({"fields": []}, "write"),
        (pa.schema([("x", pa.timestamp("ns"))]), "timestamp\\[ns\\]"),
        (pa.schema([("x", pa.uint8())]), "uint8"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(form: Any, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        Schema.of(form)


@pytest.mark.parametrize("data", [b"", b"{", b"\x00\x01\x02", b"{} {}", b"[]", b'{"columns": 1}'])
def test_a_file_that_is_no_schema_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidOption):
        Schema.parse(data)


# ------------------------------------------------------------------------------------------- round trips

_LOW, _HIGH = datetime(1900, 1, 1), datetime(2200, 1, 1)
_LEAVES: dict[str, st.SearchStrategy[Any]] = {
    **{f"int{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    "float32": st.floats(allow_nan=False, width=32),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(max_size=8),
    "binary": st.binary(max_size=8),
    "date": st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    "timestamp[us]": st.datetimes(_LOW, _HIGH),
    "timestamp[us, UTC]": st.datetimes(_LOW, _HIGH, timezones=st.just(UTC)),
    "decimal(9, 3)": st.integers(-(10**9) + 1, 10**9 - 1).map(lambda number: Decimal(number).scaleb(-3)),
}


@st.composite
def types_and_values(draw: st.DrawFn, depth: int = 2) -> tuple[str, st.SearchStrategy[Any]]:
    kind = draw(st.sampled_from([*_LEAVES, "list", "struct"] if depth else [*_LEAVES]))
    if kind == "list":
        name, values = draw(types_and_values(depth - 1))
        return f"list<{name}>", st.lists(st.none() | values, max_size=3)
    if kind == "struct":
        inner = [draw(types_and_values(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
        name = ", ".join(f"f{place}: {one}" for place, (one, _) in enumerate(inner))
        return f"struct<{name}>", st.fixed_dictionaries(
            {f"f{place}": st.none() | values for place, (_, values) in enumerate(inner)}
        )
    return kind, _LEAVES[kind]


@settings(deadline=None, max_examples=120)
@given(st.data())
def test_rows_of_every_type_come_out_as_they_went_in(data: st.DataObject) -> None:
    columns = data.draw(st.lists(types_and_values(), min_size=1, max_size=4))
    nullable = [data.draw(st.booleans()) for _ in columns]
    shape = schema(
        *((f"c{n}", name, null) for n, ((name, _), null) in enumerate(zip(columns, nullable, strict=True)))
    )
    row = st.fixed_dictionaries(
        {
            f"c{n}": (st.none() | values) if null else values
            for n, ((_, values), null) in enumerate(zip(columns, nullable, strict=True))
        }
    )
    groups = data.draw(st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=3))
    codec: Codec = data.draw(st.sampled_from(CODECS))
    entries, first = [], 0
    for group in groups:
        rows = [Row("t", b"", b"k", None, 5, check_values(shape, one)) for one in group]
        entry = encode_typed_rows(shape, rows, codec)
        assert entry.fields[:2] == [b"s", shape.fingerprint.encode()]
        entries.append(stored(entry, first))
        first += len(group)
    start = data.draw(st.integers(0, first - 1))

    batches = decode_entries(STREAM, entries, start, versions=Versions([shape]))

    assert all(batch.schema == shape.message_schema for batch in batches)
    found = [message for batch in batches for message in to_messages(batch)]
    assert [message.values for message in found] == [one for group in groups for one in group][start:]
    assert [message.offset for message in found] == list(range(start, first))
    assert {(message.payload, message.key) for message in found} == {(b"", b"k")}
    # The same as Arrow columns in and out.
    table = pa.RecordBatch.from_pylist([one for group in groups for one in group], schema=shape.arrow)
    whole = table.append_column("topic", pa.repeat("t", table.num_rows))
    (batch,) = decode_entries(
        STREAM, [stored(encode_batch(whole, codec, shape), 0)], versions=Versions([shape])
    )
    assert batch.select(shape.arrow.names).equals(table)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_text_of_json_and_csv_gives_the_same_values(data: st.DataObject) -> None:
    from streamlease.protocol.plain_values import plain

    name = data.draw(st.sampled_from([name for name in _LEAVES if not name.startswith("float")]))
    value = data.draw(_LEAVES[name])
    shape = schema(("x", name))
    as_json = json.loads(json.dumps({"x": plain(value)}))
    assert check_values(shape, as_json, text=True) == {"x": value}
    if name != "string":
        assert check_values(shape, {"x": str(as_json["x"])}, text=True) == {"x": value}


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("int64", 1.0),
        ("int64", "5"),
        ("int64", True),
        ("int8", 128),
        ("float64", "1.5"),
        ("float64", True),
        ("float64", 2**53 + 1),
        ("float32", 1e300),
        ("bool", 1),
        ("string", b"x"),
        ("string", 5),
        ("string", "\ud800"),
        ("binary", "x"),
        ("date", datetime(2026, 1, 1)),
        ("date", "2026-01-01"),
        ("timestamp[us, UTC]", datetime(2026, 1, 1)),
        ("timestamp[us]", datetime(2026, 1, 1, tzinfo=UTC)),
        ("timestamp[us]", 5),
        ("decimal(5, 2)", Decimal("1.234")),
        ("decimal(5, 2)", Decimal("1000")),
        ("decimal(5, 2)", Decimal("NaN")),
        ("decimal(5, 2)", 1.5),
        ("list<int8>", 5),
        ("list<string>", "ab"),
        ("list<int8>", [1, 300]),
        ("struct<a: int8>", {"b": 1}),
        ("struct<a: int8>", [1]),
        ("struct<a: int8>", {"a": "x"}),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_column(type: str, value: Any) -> None:
    with pytest.raises(SchemaMismatch, match="column x"):
        check_values(schema(("x", type)), {"x": value})


@pytest.mark.parametrize("text", ["", "x", "1.5", "1e3", "0x10", "99999999999999999999"])
def test_text_that_is_no_such_number_is_refused(text: str) -> None:
    with pytest.raises(SchemaMismatch, match="column x"):
        check_values(schema(("x", "int64")), {"x": text}, text=True)


def test_unknown_and_missing_columns_are_refused() -> None:
    shape = schema(("carrier", "string", False), ("delay", "float64"))
    with pytest.raises(SchemaMismatch, match="column carrier is null"):
        check_values(shape, {"delay": 1.0})
    with pytest.raises(SchemaMismatch, match="no column 'carier'"):
        check_values(shape, {"carrier": "UA", "carier": "UA"})
    assert check_values(shape, {"carrier": "UA", "delay": None}) == {"carrier": "UA"}


BATCHES: list[tuple[dict[str, pa.Array], str]] = [
    ({"n": pa.array([1.5])}, "n is int32"),
    ({"n": pa.array(["1"])}, "n is int32"),
    ({"n": pa.array([2**40])}, "does not fit"),
    ({"n": pa.array([None], pa.int32())}, "null in row 0"),
    ({}, "null in row 0"),
    ({"n": pa.array([1]), "m": pa.array([1])}, "unknown column 'm'"),
    ({"n": pa.array([1]), "payload": pa.array([b"x"])}, "unknown column 'payload'"),
    ({"n": pa.array([1]), "at": pa.array([5], pa.timestamp("us"))}, "at is timestamp"),
    ({"n": pa.array([1]), "s": pa.array([{"b": 1}])}, "s is struct"),
    ({"n": pa.array([1]), "s": pa.array([{"a": 1, "b": 1}])}, "s is struct"),
    ({"n": pa.array([1]), "l": pa.array([["x"]])}, "l is list"),
]
LOOSE = schema(
    ("n", "int32", False), ("at", "timestamp[us, UTC]"), ("s", "struct<a: int64>"), ("l", "list<int64>")
)


@pytest.mark.parametrize(("columns", "reason"), BATCHES)
def test_a_batch_of_another_schema_is_refused(columns: dict[str, pa.Array], reason: str) -> None:
    with pytest.raises(SchemaMismatch, match=reason):
        encode_batch(pa.record_batch({"topic": pa.array(["t"]), **columns}), schema=LOOSE)


def test_a_batch_is_widened_and_what_may_be_null_may_be_left_out() -> None:
    shape = schema(
        ("n", "int64"), ("f", "float64"), ("w", "string"), ("at", "timestamp[us, UTC]"), ("z", "date")
    )
    batch = pa.record_batch(
        {
            "f": pa.array([1, 2], pa.int16()),
            "topic": pa.array(["t", "t"]),
            "n": pa.array([1, None], pa.int8()),
            "w": pa.array(["a", "b"]).dictionary_encode(),
            "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("ms", "Europe/Berlin")),
        }
    )
    (out,) = decode_entries(
        STREAM, [stored(encode_batch(batch, schema=shape), 0)], versions=Versions([shape])
    )
    assert to_messages(out)[1].values == {
        "n": None,
        "f": 2.0,
        "w": "b",
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "z": None,
    }


def test_a_typed_row_may_not_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = schema(("s", "string"))
    monkeypatch.setattr(typed, "MAX_MESSAGE_BYTES", 100)
    monkeypatch.setattr(message_rows, "MAX_MESSAGE_BYTES", 100)
    small = pa.record_batch({"topic": ["t"] * 50, "s": ["x" * 50] * 50})
    assert encode_batch(small, schema=shape).rows == 50
    large = pa.record_batch({"topic": ["t"] * 3, "s": ["x", "x" * 101, "x"]})
    with pytest.raises(MessageTooLarge):
        encode_batch(large, schema=shape)
    with pytest.raises(MessageTooLarge):
        typed.check_size({"s": "x" * 101})


# ---------------------------------------------------------------------------------------------- evolution

BASE = [("a", "int32", False), ("b", "string", True)]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ([*BASE, ("c", "date", True)], ""),
        ([("c", "list<int8>", True), *BASE, ("d", "bool", True)], ""),
        ([BASE[1], BASE[0]], ""),
        ([*BASE, ("c", "date", False)], "new column c is not nullable"),
        ([BASE[0]], "column b would be dropped"),
        ([BASE[0], ("B", "string", True)], "column b would be dropped"),
        ([("a", "int64", False), BASE[1]], "change from int32 to int64"),
        ([("a", "int32", True), BASE[1]], "from not nullable to nullable"),
        ([BASE[0], ("b", "string", False)], "from nullable to not nullable"),
    ],
)
def test_a_schema_may_gain_nullable_columns_and_nothing_else(
    columns: list[tuple[str, str, bool]], reason: str
) -> None:
    old, new = schema(*BASE), schema(*columns)
    if reason:
        with pytest.raises(SchemaMismatch, match=reason):
            old.check_successor(new)
        return
    old.check_successor(new)
    values = {"a": 1, "b": "x"}
    entry = stored(encode_typed_rows(old, [Row("t", b"", values=values)]), 0)
    (batch,) = decode_entries(STREAM, [entry], versions=Versions([old, new]))
    assert batch.schema == new.message_schema
    assert to_messages(batch)[0].values == {**dict.fromkeys(new.arrow.names), **values}
    (narrow,) = decode_entries(STREAM, [entry], versions=Versions([old, new]), wanted=schema(("b", "string")))
    assert narrow.schema.names == [*MESSAGE_SCHEMA.names, "b"]


def _no_versions(entry: Encoded, shape: Schema) -> None:
    decode_entries(STREAM, [stored(entry, 0)])


def _other_version(entry: Encoded, shape: Schema) -> None:
    decode_entries(STREAM, [stored(entry, 0)], versions=Versions([schema(("n", "int64"))]))


def _other_type(entry: Encoded, shape: Schema) -> None:
    decode_entries(STREAM, [stored(entry, 0)], versions=Versions([shape]), wanted=schema(("n", "int64")))


def _typed_reader_of_payloads(entry: Encoded, shape: Schema) -> None:
    plain = encode_batch(pa.record_batch({"topic": ["t", "t"], "payload": [b"x", b"y"]}))
    decode_entries(STREAM, [stored(plain, 0)], wanted=shape)


def _forged(entry: Encoded, shape: Schema) -> None:
    """An entry that claims another schema than it has: never garbage."""
    other = schema(("n", "string"), ("m", "list<int64>"))
    fields = [b"s", other.fingerprint.encode(), *entry.fields[2:]]
    decode_entries(STREAM, [stored(Encoded(1, fields), 0)], versions=Versions([other]))


@pytest.mark.parametrize(
    "read", [_no_versions, _other_version, _other_type, _typed_reader_of_payloads, _forged]
)
def test_a_reader_with_another_schema_gets_an_error_and_no_rows(
    read: Callable[[Encoded, Schema], None],
) -> None:
    shape = schema(("n", "int32"))
    with pytest.raises(SchemaMismatch):
        read(encode_typed_rows(shape, [Row("t", b"", values={"n": 7})]), shape)


def test_what_a_reader_wants_is_compared_with_what_there_is() -> None:
    there = schema(("a", "int32", False), ("b", "string"))
    there.check_wanted(schema(("b", "string")), "space x")
    there.check_wanted(schema(("a", "int32")), "space x")
    for wanted in (schema(("c", "int8")), schema(("a", "int64")), schema(("b", "string", False))):
        with pytest.raises(SchemaMismatch, match="space x"):
            there.check_wanted(wanted, "space x")
