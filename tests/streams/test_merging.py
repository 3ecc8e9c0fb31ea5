"""Neighbouring entries into one: which are merged, and that they say the same afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import entry_id
from streamlease.streams.entries.append_times import appended_until, stored_times, times_of
from streamlease.streams.entries.decoding import DamagedEntry, Entry, decode_entries
from streamlease.streams.entries.entries import Encoded, Row, encode_rows, encode_typed_rows
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.log import merging
from streamlease.streams.log.merging import LogRun, NotMerged, RunSoFar, merged

STREAM = StreamId("space", 0, 0)
BEGAN = 1_700_000_000_000_000

FIRST = Schema.of(pa.schema([pa.field("speed", pa.float64()), pa.field("seen", pa.timestamp("us", "UTC"))]))
SECOND = Schema.of(
    pa.schema(
        [
            pa.field("speed", pa.float64()),
            pa.field("seen", pa.timestamp("us", "UTC")),
            pa.field("gate", pa.string()),
        ]
    )
)
VERSIONS = Versions([FIRST, SECOND])

moments = st.lists(st.integers(0, 3), min_size=1, max_size=40).map(
    lambda steps: [
        BEGAN + sum(10 ** (5 * step) for step in steps[: place + 1]) for place in range(len(steps))
    ]
)


@settings(deadline=None)
@given(moments, st.lists(st.integers(1, 9), min_size=40, max_size=40), st.integers(-1, 1))
def test_each_message_keeps_the_time_of_its_append(times: list[int], often: list[int], beside: int) -> None:
    each = [at for at, rows in zip(times, often, strict=False) for _ in range(rows)]
    fields = [part for some in stored_times(pa.array(each, pa.int64())) for part in some]
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    assert times_of(named, len(each)).cast(pa.int64()).to_pylist() == each
    for at in times:
        assert appended_until(named, len(each), at + beside) == sum(one <= at + beside for one in each)


@pytest.mark.parametrize(
    "damage",
    [
        {b"A": b"\0" * 8},
        {b"A": b""},
        {b"A": b"\xff" * 12},
        {b"A": b"\0" * 8, b"R": b"\1\0\0\0\1\0\0\0"},
        {b"A": b"\0" * 8, b"R": b"\3\0\0\0\0\0\0\0"},
        {b"A": b"", b"R": b""},
    ],
)
def test_times_that_are_damaged_are_not_believed(damage: dict[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="append"):
        times_of({b"a": b"5", **damage}, 3)
    ((id, fields),) = entries([encode_rows([Row("t", b"x")] * 3)])
    with pytest.raises(DamagedEntry):
        decode_entries(STREAM, [(id, [*fields, *(part for one in damage.items() for part in one)])])


def entries(encoded: Sequence[Encoded], first: int = 0) -> list[Entry]:
    found: list[Entry] = []
    for number, one in enumerate(encoded):
        fields = [b"a", b"%d" % (BEGAN + 1000 * number), *one.fields]
        found.append((entry_id(first, one.rows).encode(), fields))
        first += one.rows
    return found


def singles(count: int) -> list[Encoded]:
    return [encode_rows([Row("t", b"%d" % number)]) for number in range(count)]


def begin(of: Sequence[Entry], before: int = 2**60) -> RunSoFar:
    found = RunSoFar(before)
    for one in of:
        if not found.over:
            found.add(*one)
    return found


def ids(run: LogRun | None) -> list[bytes]:
    return [id for id, _ in run.entries] if run is not None else []


@pytest.fixture
def ten_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten messages are worth an entry of their own."""
    monkeypatch.setattr(merging, "ENOUGH_ROWS", 10)


@pytest.mark.usefixtures("ten_rows")
def test_a_run_is_whole_when_it_is_worth_an_entry() -> None:
    log = entries(singles(12))
    assert ids(begin(log).run) == [b"%d-1" % n for n in range(10)]
    assert (begin(log[:7]).run, begin(log[:7]).wanted_end) == (None, 10)
    assert ids(begin(entries([*singles(3), encode_rows([Row("t", b"")] * 9)])).run) == [
        b"0-1", b"1-1", b"2-1", b"11-9",
    ]  # fmt: skip


def test_a_run_is_whole_when_it_has_enough_bytes() -> None:
    large = entries([encode_rows([Row("t", bytes(300_000))]) for _ in range(6)])
    assert len(ids(begin(large).run)) == 4
    assert 2 < begin(large[:2]).wanted_end < 5


@pytest.mark.usefixtures("ten_rows")
def test_nothing_stands_behind_what_is_too_young() -> None:
    log = entries(singles(12))
    assert begin(log, BEGAN + 9 * 1000).run is None
    assert len(ids(begin(log, BEGAN + 9 * 1000 + 1).run)) == 10


@pytest.mark.usefixtures("ten_rows")
def test_a_run_ends_before_a_hole_a_large_entry_another_schema_and_what_is_no_entry() -> None:
    three = entries(singles(3))
    typed = encode_typed_rows(FIRST, [Row("t", b"", None, None, None, {"speed": 1.0})])
    for behind in (
        entries(singles(1), first=4),
        entries([encode_rows([Row("t", b"")] * 10)], first=3),
        entries([typed], first=3),
        [(b"3-1", [b"t", b"t", b"p", b""])],
        [(b"3-9", [b"a", b"1"])],
        [(b"9-0", [b"a", b"1"])],
    ):
        assert ids(begin([*three, *behind]).run) == [b"0-1", b"1-1", b"2-1"]
    large = entries([encode_rows([Row("t", b"")] * 10)])
    assert ids(begin(large).run) == [b"9-10"], "it is moved as it is"
    assert ids(begin([(b"3-1", [b"t", b"t"])]).run) == [b"3-1"], "and so is one without a time"
    nobody = begin([(b"3-9", [b"a", b"1"])])
    assert nobody.over and nobody.run is None


def same(one: Sequence[pa.RecordBatch], other: Sequence[pa.RecordBatch]) -> bool:
    mine, theirs = pa.Table.from_batches(one), pa.Table.from_batches(other)
    return mine.schema == theirs.schema and repr(mine.to_pylist()) == repr(theirs.to_pylist())


rows = st.builds(
    Row,
    st.sampled_from(["a", "b", "c/d"]),
    st.binary(max_size=20),
    st.none() | st.binary(max_size=5),
    st.none() | st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=3).map(tuple),
    st.none() | st.integers(-(2**50), 2**50),
    st.none(),
    st.just(1),
)


@settings(deadline=None)
@given(st.lists(st.lists(rows, min_size=1, max_size=6), min_size=2, max_size=12))
@pytest.mark.slow
def test_a_merged_entry_says_what_its_messages_said(given: list[list[Row]]) -> None:
    log = entries([encode_rows(some) for some in given])
    run, fields = merged(STREAM, LogRun(log), None)
    one = [(entry_id(0, len(run.offsets)).encode(), fields)]
    assert same(decode_entries(STREAM, log), decode_entries(STREAM, one))
    assert max(map(int, (dict(zip(f[::2], f[1::2], strict=True))[b"a"] for _, f in log))) == int(fields[1])
    later = entries(singles(20))[-1][1]
    again, twice = merged(STREAM, LogRun([*one, (entry_id(len(run.offsets), 1).encode(), later)]), None)
    assert len(again.entries) == 2 and len(twice) >= 2, "one that was merged is merged again"


def test_typed_columns_and_their_version_are_kept() -> None:
    values = [{"speed": math.nan}, {"speed": 2.5}, {"speed": -0.0}]
    for version in VERSIONS:
        each = [encode_typed_rows(version, [Row("t", b"", b"k", None, 7, one)]) for one in values]
        log = entries(each)
        _, fields = merged(STREAM, LogRun(log), VERSIONS)
        assert (fields[2], fields[3]) == (b"s", version.fingerprint.encode())
        one = [(b"2-3", fields)]
        for wanted in (None, version):
            before = decode_entries(STREAM, log, versions=VERSIONS, wanted=wanted)
            assert same(before, decode_entries(STREAM, one, versions=VERSIONS, wanted=wanted))


def test_what_is_damaged_stays_what_it_is() -> None:
    log = entries([*singles(3), encode_rows([Row("t", b"x")] * 2), *singles(2)])
    log[3] = (log[3][0], [*log[3][1][:-1], b"nothing"])
    run, fields = merged(STREAM, LogRun(log), None)
    assert ids(run) == [b"0-1", b"1-1", b"2-1"] and b"A" in fields
    run, fields = merged(STREAM, LogRun(log[3:]), None)
    assert (ids(run), fields) == ([b"4-2"], log[3][1])
    unknown = entries([encode_typed_rows(SECOND, [Row("t", b"", None, None, None, {"speed": 1.0})])] * 2)
    run, fields = merged(STREAM, LogRun(unknown), Versions([FIRST]))
    assert (ids(run), fields) == ([b"0-1"], unknown[0][1])


def test_nobody_gets_an_entry_that_says_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "stored_times", lambda times: ([b"a", b"5"], []))
    with pytest.raises(NotMerged, match="offsets 0 to 2 of stream space"):
        merged(STREAM, LogRun(entries(singles(3))), None)
