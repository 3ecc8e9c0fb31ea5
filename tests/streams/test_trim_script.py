"""What the script of retention removes, compared with a few lines of Python that say the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import stream_log, stream_merged, stream_meta
from streamlease.streams.redis.connection import BlockingRedis, ask, connect_blocking, run_blocking
from streamlease.streams.redis.scripts import load_script

STREAM = StreamId("space", 0, 0)
META, LOG, MERGED = stream_meta(STREAM), stream_log(STREAM), stream_merged(STREAM)
TRIM = load_script("streamlease.streams.spaces", "trim")
HOUR = 3_600_000_000
AGE = 24 * HOUR


@pytest.fixture
def blocking(embedded_redis_url: str) -> Iterator[BlockingRedis]:
    """On one kind of server: all of them run the script in other tests, and each example takes some calls."""
    client = connect_blocking(embedded_redis_url)
    yield client
    client.close()


class Entry(NamedTuple):
    """One of a log."""

    count: int
    old: bool | None
    """Older than the age; None: its time cannot be read, or is none that the stream has had."""
    payload: int


class Wanted(NamedTuple):
    """What a caller wants removed."""

    limit: int
    age: bool
    bytes: int
    messages: int


ENTRIES = st.lists(
    st.builds(Entry, st.integers(1, 3), st.sampled_from([True, True, True, False, None]), st.integers(0, 30)),
    max_size=8,
)
WANTED = st.builds(
    Wanted,
    st.integers(0, 26),
    st.booleans(),
    st.sampled_from([-1, 0, 20, 60, 120]),
    st.sampled_from([-1, -1, 0, 1, 3, 9]),
)


class Said(NamedTuple):
    """What comes of it."""

    floor: int
    bytes: int
    entries: int
    messages: int
    held: bool


def fields_of(entry: Entry, now: int) -> list[str]:
    time = f"{now - (48 if entry.old else 1) * HOUR}"
    if entry.old is None:
        time = ("x", "-5", f"{now + HOUR}")[entry.payload % 3]
    return ["a", time, "p", "." * entry.payload]


def expected(entries: list[Entry], sizes: list[int], wanted: Wanted, archived: int | None) -> Said:
    """Whole entries from the oldest on, as long as they are surplus and below the limit."""
    limit = wanted.limit if archived is None else min(wanted.limit, archived)
    next, size = sum(entry.count for entry in entries), sum(sizes)
    floor = gone = end = waiting = 0
    for place, (entry, own) in enumerate(zip(entries, sizes, strict=True)):
        end += entry.count
        left = size - waiting
        surplus = (
            (wanted.age and entry.old is True)
            or (wanted.messages >= 0 and end <= next - wanted.messages)
            or (wanted.bytes >= 0 and size > wanted.bytes)
        )
        if surplus and end > limit:
            return Said(floor, size, gone, floor, True)
        if surplus:
            floor, size, gone, waiting = end, left - own, place + 1, 0
        elif entry.old is None and wanted.age and end <= limit:
            waiting += own
        else:
            break
    return Said(floor, size, gone, floor, False)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    entries=ENTRIES,
    wanted=WANTED,
    merged=st.integers(0, 8),
    archived=st.none() | st.integers(0, 26),
    budget=st.none() | st.integers(1, 4),
    term=st.integers(1, 2),
    held_before=st.booleans(),
)
def test_what_is_removed(
    blocking: BlockingRedis,
    entries: list[Entry],
    wanted: Wanted,
    merged: int,
    archived: int | None,
    budget: int | None,
    term: int,
    held_before: bool,
) -> None:
    ((seconds, _),) = run_blocking(ask(blocking, [("TIME",)]))
    now = int(seconds) * 1_000_000
    parts = [fields_of(entry, now) for entry in entries]
    sizes = [sum(map(len, part)) for part in parts]
    ends = [sum(entry.count for entry in entries[: place + 1]) for place in range(len(entries))]
    ids = [f"{end - 1}-{entry.count}" for end, entry in zip(ends, entries, strict=True)]
    border = ends[merged - 1] if 0 < merged <= len(entries) else 0
    meta = {"next": ends[-1] if ends else 0, "bytes": sum(sizes), "last_append": now - HOUR, "trim_term": 1}
    meta |= {"merged": border} if border else {}
    meta |= {} if archived is None else {"archived": archived}
    before = {"held_by": "before", "held_since": 5} if held_before else {}
    flat = [word for pair in (meta | before).items() for word in pair]
    places = [MERGED if end <= border else LOG for end in ends]
    run_blocking(
        ask(
            blocking,
            [
                ("DEL", META, LOG, MERGED),
                ("HSET", META, *flat),
                *(("XADD", key, id, *part) for key, id, part in zip(places, ids, parts, strict=True)),
            ],
        )
    )
    say = expected(entries, sizes, wanted, archived)
    age = AGE if wanted.age else -1
    undated = any(entry.old is None for entry in entries)
    most = len(entries) + 1 if budget is None or undated else budget
    gone = messages = 0
    for _ in range(len(entries) + 2):
        args = (wanted.limit, age, wanted.bytes, wanted.messages, term, "who", most, 10**9, 0)
        what, floor, left, removed, rows, more, held = run_blocking(
            TRIM.run(blocking, [META, LOG, MERGED], args)
        )
        assert removed <= most
        gone, messages = gone + removed, messages + rows
        if not more:
            break
        assert removed, "a call that looks at entries of which none goes says that it is through"
    assert what == b"trimmed"
    assert Said(floor, left, gone, messages, bool(held)) == say
    log, was_merged, found = run_blocking(
        ask(blocking, [("XRANGE", LOG, "-", "+"), ("XRANGE", MERGED, "-", "+"), ("HGETALL", META)])
    )
    there = [id.decode() for id, _ in [*was_merged, *log]]
    assert there == ids[say.entries :]
    kept = dict(found) if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
    assert kept[b"trim_term"] == b"%d" % term
    assert int(kept[b"bytes"]) == say.bytes
    assert int(kept.get(b"floor", 0)) == say.floor
    assert kept.get(b"held_by") == (b"who" if say.held else None)
    dated = [place for place, entry in enumerate(entries[:gone]) if entry.old is not None]
    times = [int(parts[place][1]) for place in dated]
    assert int(kept.get(b"trimmed_at", 0)) == max(times, default=0)
    if term > 1:
        late = (wanted.limit, age, 0, 0, 1, "who", 9, 10**9, 0)
        assert run_blocking(TRIM.run(blocking, [META, LOG, MERGED], late)) == [b"fenced", term]


def test_a_stream_that_is_not_there_is_unknown(blocking: BlockingRedis) -> None:
    args = (9, -1, -1, -1, 1, "who", 9, 9, 0)
    assert run_blocking(TRIM.run(blocking, [META, LOG, MERGED], args)) == [b"unknown"]
