"""Which streams a poll reads, without a Redis and without a clock."""

from __future__ import annotations

import pytest

from streamlease.protocol.ids import StreamId
from streamlease.streams.log import poll_order
from streamlease.streams.log.poll_order import COMING_SECONDS, PollOrder

MANY = [StreamId("s", 0, shard) for shard in range(9)]


@pytest.fixture(autouse=True)
def _small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_order, "POLL_SHARE", 4)
    monkeypatch.setattr(poll_order, "LEAST_SHARE", 2)
    monkeypatch.setattr(poll_order, "MANY_NEW", poll_order.MANY_NEW)


def of(streams: list[StreamId], interval: float = 1.0) -> PollOrder:
    watched = dict.fromkeys(streams)
    order = PollOrder(watched.keys(), interval)
    order.changed()
    return order


def test_all_have_their_turn() -> None:
    order = of(MANY)
    polls = [order.next((), turn, trusted=True) for turn in range(9)]
    assert {len(poll) for poll in polls} == {2}
    assert sorted(stream for poll in polls for stream in poll) == sorted(MANY * 2)


def test_where_a_push_may_be_missing_more_have_their_turn() -> None:
    order = of(MANY)
    polls = [order.next((), turn, trusted=False) for turn in range(9)]
    assert sorted(stream for poll in polls for stream in poll) == sorted(MANY * 4)


def test_a_poll_that_comes_seldom_reads_more_but_never_more_than_it_may() -> None:
    assert len(of(MANY, interval=13.0).next((), 0, trusted=True)) == 3
    assert len(of(MANY, interval=1000.0).next((), 0, trusted=True)) == 4


def test_few_are_read_all() -> None:
    assert of(MANY[:2]).next((), 0, trusted=True) == MANY[:2]


def test_what_is_due_or_was_not_read_comes_beside_the_turn_and_once() -> None:
    order = of(MANY)
    order.due.update((MANY[0], MANY[7]))
    first = order.next([MANY[8]], 0, trusted=True)
    assert (first[:2], sorted(first[2:])) == (MANY[:2], [MANY[7], MANY[8]])


def test_what_is_due_and_watched_no_more_is_not_read() -> None:
    order = of(MANY)
    order.due.add(StreamId("gone", 0, 0))
    assert order.next((), 0, trusted=True) == MANY[:2]


def test_who_comes_gets_a_turn_and_who_goes_has_none() -> None:
    watched = dict.fromkeys(MANY[:6])
    order = PollOrder(watched.keys(), 1.0)
    order.changed()
    order.next((), 0, trusted=True)
    watched[MANY[6]] = None
    del watched[MANY[0]]
    order.changed()
    polls = [order.next((), 1 + turn, trusted=True) for turn in range(3)]
    assert {stream for poll in polls for stream in poll} == {*MANY[1:7]}


def test_who_is_due_before_the_time_comes_without_the_others() -> None:
    order = of(MANY)
    order.next((), 0, trusted=True)
    order.due.update((MANY[0], MANY[7]))
    assert sorted(order.next((), 0.4, trusted=True)) == [MANY[0], MANY[7]]
    assert sorted(order.next((), 0.5, trusted=True)) == [MANY[0], *MANY[2:4], MANY[7]]


def test_many_new_streams_are_read_once_their_news_are_pushed_or_that_takes_long() -> None:
    watched: dict[StreamId, None] = {}
    order = PollOrder(watched.keys(), 1.0)
    for stream in MANY:
        watched[stream] = None
        order.joins(stream, 0, pushed=True)
    assert not order.coming(0), "so few need not wait"
    poll_order.MANY_NEW = len(MANY) - 1
    assert [*order.coming(0)] == MANY
    order.is_pushed(MANY[0])
    assert [*order.coming(0)] == MANY[1:]
    assert [*order.coming(COMING_SECONDS - 0.01)] == MANY[1:]
    order.leaves(MANY[1])
    assert not order.coming(0), "these are not many any more"
    poll_order.MANY_NEW = 1
    assert [*order.coming(0)] == MANY[2:]
    assert not order.coming(COMING_SECONDS)
    assert order.due == {*MANY}
    order.joins(MANY[3], 0, pushed=False)
    assert not order.coming(0)


@pytest.mark.timeout(30)
def test_that_very_many_are_not_new_any_more_costs_as_much_for_each_as_for_a_few() -> None:
    """With a dictionary in place of an ordered one this takes minutes."""
    streams = [StreamId("s", 0, shard) for shard in range(500_000)]
    order = PollOrder(set(streams), 1.0)
    for stream in streams:
        order.joins(stream, 0.0, pushed=True)
    for stream in streams[:250_000]:
        order.is_pushed(stream)
        assert stream not in order.coming(0.5)
    assert not order.coming(COMING_SECONDS)
