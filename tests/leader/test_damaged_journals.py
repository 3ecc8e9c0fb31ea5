"""A journal or a snapshot that somebody wrote into: it comes to a state, or to one clear line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamlease.leader.core import view
from streamlease.leader.core.state import outcomes as o
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.operated import Acted, RefusedAct
from streamlease.leader.core.state.records import (
    Attested,
    Committed,
    CutClosed,
    CutOpened,
    Expired,
    Failed,
    HandedOver,
    Leased,
    Record,
    Released,
    StreamsAdded,
    TermStarted,
    Truncated,
    encode_records,
)
from streamlease.leader.journal import recover
from streamlease.protocol.cuts import Ranges
from streamlease.protocol.errors import Unsupported
from streamlease.registry import keys
from streamlease.streams.redis.connection import BlockingRedis, Command, ask, connect_blocking, run_blocking

GROUP, S0, S1 = "g/a", "s.0.0", "s.0.1"

RECORDS: tuple[Record, ...] = (
    TermStarted(term=3, host="h", lineage="l"),
    StreamsAdded(starts={S0: 5, S1: 7}, waiting=(S1,)),
    Leased(stream=S0, lease_epoch=1, name="n", session="s"),
    CutOpened(session="s", cut=1, ranges=Ranges([S0], [1], [5], [9])),
    CutClosed(session="s", cut=1),
    CutOpened(session="s", cut=2, ranges=Ranges([S0], [1], [9], [12])),
    HandedOver(stream=S0, milliseconds=5, clean=True),
    Committed(offsets={S0: 10}),
    Failed(
        stream=S0, offset=10, lease_epoch=1, failure="f", borrower="n", cause="it is bad", fate="retry"
    ),
    Attested(streams={S1: (4, 8)}),
    Truncated(floors={S1: 9}),
    Acted(who="me@here", request="r", at=6, outcome=o.Reset(moves={S1: (9, 2)}, behind=())),
    Acted(who="me@here", request="q", at=6, outcome=o.GroupPaused(until=9)),
    RefusedAct(act="move", who="me@here", request="p", at=7, what=f"{S0} to n", error="no"),
    Released(stream=S0, lease_epoch=1),
    Expired(at=20, idle_ms=9, host="h"),
)  # fmt: skip


def made() -> GroupState:
    state = GroupState()
    for record in RECORDS:
        state.apply(record)
    return state


STATE = made().snapshot()
ENTRY = encode_records(RECORDS)


@pytest.fixture
def blocking(embedded_redis_url: str) -> Iterator[BlockingRedis]:
    client = connect_blocking(embedded_redis_url)
    yield client
    client.close()


def outcome(redis: BlockingRedis, *commands: Command) -> GroupState | str:
    """What Redis comes to if it holds what these commands write: a state that can be shown, or the line."""
    run_blocking(ask(redis, [("DEL", keys.journal(GROUP), keys.snapshot(GROUP)), *commands]))
    try:
        state = run_blocking(recover(redis, GROUP)).state
    except Unsupported as error:
        line = str(error)
        assert len(line.splitlines()) == 1
        assert len(line) < 400
        assert "is damaged" in line
        assert line.endswith(("journal from a backup", "snapshot from a backup")), line
        return line
    json.dumps(view.of_state(state))
    assert GroupState.restore(state.snapshot()) == state
    return state


def snapshot(text: bytes, id: bytes = b"5-1", t: bytes = b"3", n: bytes = b"1") -> Command:
    return ("HSET", keys.snapshot(GROUP), "id", id, "state", text, "t", t, "n", n)


def entry(text: bytes, t: bytes = b"3", n: bytes = b"2") -> Command:
    return ("XADD", keys.journal(GROUP), "6-1", "t", t, "n", n, "r", text)


def test_what_is_not_damaged_is_the_state(blocking: BlockingRedis) -> None:
    assert outcome(blocking, snapshot(STATE)) == outcome(blocking, entry(ENTRY)) == made()


NUMBERS = [
    "term", "lineage_term", "lease_epoch_floor", "lost_from", "expired_at", "moves", "longest_hand_over_ms",
    "longest_take_over_ms", "streams/s.0.1/committed", "streams/s.0.1/lease_epoch", "streams/s.0.1/truncated",
    "streams/s.0.1/dead_letters", "streams/s.0.1/pinned_end", "streams/s.0.1/held_since",
    "streams/s.0.1/follows", "streams/s.0.1/session_timeout_ms", "streams/s.0.0/failure/offset",
    "sessions/s/cut", "sessions/s/finished", "operated/paused/at", "operated/paused/until",
]  # fmt: skip


@pytest.mark.parametrize("value", [-1, 2**53, 10**30])
@pytest.mark.parametrize("path", NUMBERS)
def test_a_number_that_cannot_be_is_told(blocking: BlockingRedis, path: str, value: int) -> None:
    document = json.loads(STATE)
    *way, last = path.split("/")
    place = document
    for name in way:
        place = place[name]
    assert last in place
    place[last] = value
    line = outcome(blocking, snapshot(json.dumps(document).encode()))
    assert isinstance(line, str)
    assert "the snapshot of group g/a is damaged" in line
    assert path.replace("/", ".") in line
    assert f"restore key {keys.snapshot(GROUP)} from a backup" in line


@pytest.mark.parametrize(
    "record",
    [
        '{"type":"committed","offsets":{"s.0.0":-1}}',
        '{"type":"streams","starts":{"s.0.2":-5}}',
        '{"type":"streams","starts":{"nonsense":0}}',
        '{"type":"streams","starts":{"s.0.' + "9" * 5000 + '":0}}',
        '{"type":"truncated","floors":{"s.0.0":-1}}',
        '{"type":"attested","streams":{"s.0.0":[-1,0]}}',
        '{"type":"term","term":-3,"host":"h"}',
        '{"type":"handed_over","stream":"s.0.0","milliseconds":-1,"clean":true}',
        '{"type":"acted","who":"","request":"","at":1,"outcome":{"act":"reset","moves":{},"behind":[]}}',
        '{"type":"committed","offsets":{"s.0.9":1}}',
    ],
)
def test_a_record_that_cannot_be_is_told(blocking: BlockingRedis, record: str) -> None:
    line = outcome(blocking, snapshot(STATE), entry(f"[{record}]".encode()))
    assert isinstance(line, str)
    assert "entry 6-1 of the journal of group g/a is damaged" in line
    assert f"restore key {keys.journal(GROUP)} from a backup" in line


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (("id", "5-1"), "it has no state"),
        (("state", STATE), "it has no id"),
        (("id", "x", "state", STATE), "b'x' is not the id of an entry"),
        (("id", "5-1", "state", STATE, "t", "-1"), "b'-1' is not a number of at least 0"),
        (("id", "5-1", "state", STATE, "n", "9" * 5000), "digits"),
    ],
)
def test_half_a_snapshot_is_damage_and_not_an_empty_group(
    blocking: BlockingRedis, fields: tuple[str, ...], why: str
) -> None:
    line = outcome(blocking, ("HSET", keys.snapshot(GROUP), *fields))
    assert isinstance(line, str)
    assert "the snapshot of group g/a is damaged" in line
    assert why in line


@st.composite
def mutated(draw: st.DrawFn, whole: bytes) -> bytes:
    """`whole` with some bytes taken out, put in, or replaced; digits and signs more often than others."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.integers(0, 3))
        piece = draw(
            st.one_of(st.sampled_from([b"-", b"9", b"0", b'"', b"{}", b"null", b"."]), st.binary(max_size=3))
        )
        data[at : at + length] = piece
    return bytes(data)


quick = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(text=mutated(STATE))
@example(text=b"")
@example(text=STATE[:-1])
@example(text=STATE.decode().encode("utf-16"))
@example(text=b"[" * 100_000)
def test_any_snapshot_is_a_state_or_one_line(blocking: BlockingRedis, text: bytes) -> None:
    outcome(blocking, snapshot(text))


@quick
@given(text=mutated(ENTRY))
@example(text=b"")
@example(text=ENTRY[:-1])
@example(text=b"[" * 100_000)
def test_any_entry_is_a_state_or_one_line(blocking: BlockingRedis, text: bytes) -> None:
    outcome(blocking, entry(text))


@quick
@given(
    head=st.tuples(*[mutated(b"3")] * 3),
    id=st.one_of(st.just(b"5-1"), mutated(b"5-1")),
)
def test_any_head_is_a_state_or_one_line(
    blocking: BlockingRedis, head: tuple[bytes, bytes, bytes], id: bytes
) -> None:
    outcome(blocking, snapshot(STATE, id, head[0]), entry(ENTRY, *head[1:]))
