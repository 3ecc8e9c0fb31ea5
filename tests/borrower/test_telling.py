"""When a leader learns of what is committed already: soon, in few messages, and until it has heard."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.borrower.events import Effect, Progressed, ProgressedTogether, StreamGone, Tick
from streamlease.borrower.leases import CALM_STREAMS, MOST_TOLD, TELL_INTERVAL
from streamlease.borrower.life import BorrowerConfig
from streamlease.borrower.machine import Borrower
from streamlease.protocol.messages import LeaderToBorrower, Progress, UpdateProgress
from tests.borrower.make import (
    LEASE_EPOCH,
    STREAM,
    committed,
    connected,
    frozen,
    grant,
    hear,
    invalidate,
    progressed,
    revoke,
    revoked,
    sent,
)

SECOND, THIRD = "s.0.1", "s.0.2"
NO_PINGS = BorrowerConfig(ping_interval=50_000, ping_timeout=90_000, session_timeout=90_000)
RESEND = NO_PINGS.resend_interval
TAKEN = revoked().model_copy(update={"forced": True})


def holding(*streams: str) -> Borrower:
    """A borrower with these streams, each at 10, whose leader has heard so."""
    borrower = connected(*(grant(stream) for stream in streams), config=NO_PINGS)
    for stream in streams:
        hear(borrower, committed(10, stream))
    return borrower


def durable(offset: int, stream: str = STREAM, *, final: bool = False) -> Progressed:
    return Progressed(stream, LEASE_EPOCH, offset, final, durable=True)


def told(effects: list[Effect]) -> list[dict[str, int]]:
    """Stream -> offset, of each message to the leader."""
    return [{entry.stream: entry.offset for entry in one.progress} for one in sent(effects, UpdateProgress)]


# -- how soon, and in how many messages


def test_the_first_is_told_at_once() -> None:
    borrower = holding(STREAM, SECOND)
    assert told(borrower.step(durable(12), 7)) == [{STREAM: 12}]


def test_what_follows_waits_and_goes_in_one_message() -> None:
    borrower = holding(STREAM, SECOND, THIRD)
    borrower.step(durable(11), 1000)
    for now, event in ((1001, durable(12)), (1100, durable(13)), (1200, durable(14, SECOND))):
        assert borrower.step(event, now) == []
        assert borrower.step(Tick(), now) == []
    assert borrower.step(Tick(), 1000 + TELL_INTERVAL - 1) == []
    assert told(borrower.step(Tick(), 1000 + TELL_INTERVAL)) == [{STREAM: 13, SECOND: 14}]
    assert borrower.step(Tick(), 1000 + TELL_INTERVAL) == []


def test_what_comes_later_takes_along_what_waits() -> None:
    borrower = holding(STREAM, SECOND)
    borrower.step(durable(11), 1000)
    assert borrower.step(durable(12), 1100) == []
    assert told(borrower.step(durable(14, SECOND), 1000 + TELL_INTERVAL)) == [{STREAM: 12, SECOND: 14}]


def test_what_was_written_together_is_told_together() -> None:
    borrower = holding(STREAM, SECOND, THIRD)
    refused = borrower.refused
    together = ProgressedTogether((durable(11), durable(12, SECOND), durable(9, THIRD)))
    assert told(borrower.step(together, 1000)) == [{STREAM: 11}]  # as one by one; the third one is too late
    assert borrower.refused == refused + 1
    assert told(borrower.step(Tick(), 1000 + TELL_INTERVAL)) == [{SECOND: 12}]
    assert borrower.step(ProgressedTogether((durable(9), durable(9, SECOND))), 2000) == []
    assert borrower.refused == refused + 3


def test_each_message_puts_the_next_one_off() -> None:
    borrower = holding(STREAM)
    borrower.step(durable(11), 1000)
    borrower.step(durable(12), 1100)
    borrower.step(Tick(), 1300)
    assert borrower.step(durable(13), 1301) == []
    assert borrower.step(Tick(), 1300 + TELL_INTERVAL - 1) == []
    assert told(borrower.step(Tick(), 1300 + TELL_INTERVAL)) == [{STREAM: 13}]


def test_what_is_final_is_told_at_once() -> None:
    """The next owner waits for it."""
    borrower = holding(STREAM, SECOND)
    borrower.step(durable(11), 1000)
    assert borrower.step(durable(14, SECOND), 1001) == []
    hear(borrower, revoke(), 1002)
    (message,) = sent(borrower.step(durable(12, final=True), 1002), UpdateProgress)
    assert message.progress == (Progress(stream=STREAM, lease_epoch=LEASE_EPOCH, offset=12, final=True),)
    assert told(borrower.step(Tick(), 1000 + TELL_INTERVAL)) == [{SECOND: 14}]


def test_what_the_leader_makes_durable_is_told_at_once() -> None:
    """Somebody waits for the answer."""
    borrower = holding(STREAM)
    borrower.step(durable(11), 1000)
    assert told(borrower.step(progressed(12), 1001)) == [{STREAM: 12}]


def test_a_message_speaks_of_so_many_streams_at_most() -> None:
    streams = [f"s.0.{shard}" for shard in range(2 * MOST_TOLD + 1)]
    borrower = holding(*streams)
    borrower.step(durable(11, streams[0]), 1000)
    for stream in streams:
        assert borrower.step(durable(12, stream), 1001) == []
    messages = told(borrower.step(Tick(), 1000 + TELL_INTERVAL))
    assert [len(message) for message in messages] == [MOST_TOLD, MOST_TOLD, 1]
    assert {stream for message in messages for stream in message} == {*streams}


@given(st.lists(st.tuples(st.integers(0, 120), st.sampled_from([STREAM, SECOND, THIRD])), max_size=40))
def test_it_is_told_within_the_interval_and_never_more_often(commits: list[tuple[int, str]]) -> None:
    borrower, now = holding(STREAM, SECOND, THIRD), 1000
    known = dict.fromkeys((STREAM, SECOND, THIRD), 10)
    since: dict[str, int] = {}
    times: list[int] = []

    def take(effects: list[Effect]) -> None:
        for message in told(effects):
            times.append(now)
            for stream, offset in message.items():
                assert offset == known[stream], "the newest"
                since.pop(stream, None)
                hear(borrower, committed(offset, stream), now)

    for pause, stream in commits:
        for _ in range(pause):
            now += 10
            take(borrower.step(Tick(), now))
            assert all(now - began < TELL_INTERVAL for began in since.values())
        known[stream] += 1
        since.setdefault(stream, now)
        take(borrower.step(durable(known[stream], stream), now))
    assert all(after - before >= TELL_INTERVAL for before, after in pairwise(times))


# -- until the leader has heard


def test_it_is_told_again_until_the_leader_has_heard_of_all() -> None:
    borrower = holding(STREAM)
    borrower.step(durable(12), 1000)
    for again in (1, 2):
        assert borrower.step(Tick(), 1000 + again * RESEND - 1) == []
        assert told(borrower.step(Tick(), 1000 + again * RESEND)) == [{STREAM: 12}]
    assert hear(borrower, committed(11), 3100) == []
    assert told(borrower.step(Tick(), 1000 + 3 * RESEND)) == [{STREAM: 12}]
    assert hear(borrower, committed(12), 4100) == [], "nobody waits for what is durable already"
    assert borrower.step(Tick(), 20_000) == []


def test_with_many_streams_it_is_told_again_later() -> None:
    streams = [f"s.0.{shard}" for shard in range(2 * CALM_STREAMS)]
    borrower = holding(*streams)
    borrower.step(durable(12, streams[5]), 1000)
    assert borrower.step(Tick(), 1000 + 2 * RESEND - 1) == []
    assert told(borrower.step(Tick(), 1000 + 2 * RESEND)) == [{streams[5]: 12}]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(durable(9), id="less than before"),
        pytest.param(durable(12, THIRD), id="not held"),
        pytest.param(Progressed(STREAM, LEASE_EPOCH - 1, 12, durable=True), id="another lease"),
        pytest.param(durable(12, final=True), id="final, and not asked back"),
    ],
)
def test_what_is_refused_is_not_told(event: Progressed) -> None:
    borrower = holding(STREAM)
    before = frozen(borrower)
    assert borrower.step(event, 1000) == []
    assert (frozen(borrower), borrower.refused) == (before, 1)
    assert borrower.step(Tick(), 2000) == []


def test_a_stream_that_is_gone_meanwhile_is_not_told() -> None:
    borrower = holding(STREAM, SECOND)
    borrower.step(durable(11), 1000)
    borrower.step(durable(12), 1001)
    borrower.step(durable(14, SECOND), 1001)
    hear(borrower, TAKEN, 1002)
    assert told(borrower.step(Tick(), 1000 + TELL_INTERVAL)) == [{SECOND: 14}]


# -- what is known of a lease that is over


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(invalidate(), id="its borrower ends"),
        pytest.param(grant(lease_epoch=LEASE_EPOCH + 1, progress=12), id="it is granted anew"),
        pytest.param(TAKEN, id="an operator takes it"),
    ],
)
def test_what_was_durable_is_known_at_the_end_whether_or_not_the_leader_heard(end: LeaderToBorrower) -> None:
    borrower = holding(STREAM)
    borrower.step(durable(12), 1000)
    borrower.step(durable(15), 1001)  # the leader is not even told
    borrower.step(progressed(17), 1002)  # told, and not answered
    assert StreamGone(STREAM, LEASE_EPOCH, 15) in hear(borrower, end, 1003)


def test_of_the_final_progress_too() -> None:
    borrower = holding(STREAM)
    hear(borrower, revoke(), 1000)
    borrower.step(durable(15, final=True), 1000)
    assert hear(borrower, revoked(), 1001)[0] == StreamGone(STREAM, LEASE_EPOCH, 15), "nothing is new of it"
