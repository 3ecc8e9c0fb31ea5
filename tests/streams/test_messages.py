"""The messages of a batch are a sequence, made once, when it is looked at; their times are made then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streamlease.agent.epochs.epoch_items import EpochBatch
from streamlease.agent.epochs.epoch_parts import PartRows
from streamlease.agent.plain.selecting import PlainBatch
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.delivered import Message, Messages, moment
from streamlease.streams.rows import few_messages, shared_rows
from streamlease.streams.rows.few_messages import FewMessages
from streamlease.streams.rows.shared_rows import Rows

STREAM = StreamId("s", 0, 3)
COUNT = 5


def few() -> FewMessages:
    payloads = [b"%d" % number for number in range(COUNT)]
    same = [None] * COUNT
    return FewMessages(
        STREAM, ["a"] * COUNT, same, payloads, range(7, 7 + COUNT), range(COUNT), [9] * COUNT, same
    )


def rows() -> Rows:
    return Rows(few().batch)


def some_of_shared_rows() -> Rows:
    return Rows.parts(few().batch, [1, COUNT - 1])[1]


def part() -> PartRows:
    return PartRows([few().slice(0, 2), rows().slice(2, COUNT)])


def epoch_batch() -> EpochBatch:
    return EpochBatch((4,), [few().batch])


def plain_batch() -> PlainBatch:
    return PlainBatch(STREAM, 7, 7 + COUNT, few().batch)


BATCHES: list[Callable[[], Any]] = [few, rows, some_of_shared_rows, part, epoch_batch, plain_batch]


@pytest.mark.parametrize("make", BATCHES)
def test_each_look_at_a_batch_finds_the_same_messages(make: Callable[[], Any]) -> None:
    batch = make()
    found = [batch.messages[place] for place in range(len(batch))]
    assert [message.offset for message in found] == [*range(7 + COUNT - len(batch), 7 + COUNT)]
    assert batch.messages is batch.messages
    assert all(batch.messages[place] is message for place, message in enumerate(found))


@pytest.mark.parametrize("make", BATCHES)
def test_messages_do_not_hold_their_batch(make: Callable[[], Any]) -> None:
    batch = make()
    before = sys.getrefcount(batch)
    kept = batch.messages
    assert sys.getrefcount(batch) == before
    assert len([*kept]) == len(batch)
    assert sys.getrefcount(batch) == before


def test_a_loop_over_places_makes_the_messages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    to_messages, of_columns = shared_rows.to_messages, few_messages._made

    def counted(batch: Any) -> list[Message]:
        nonlocal made
        made += 1
        return to_messages(batch)

    def counted_columns(stream: StreamId, columns: Any) -> list[Message]:
        nonlocal made
        made += 1
        return of_columns(stream, columns)

    monkeypatch.setattr(shared_rows, "to_messages", counted)
    monkeypatch.setattr(few_messages, "_made", counted_columns)
    for batch in (few(), rows(), part(), some_of_shared_rows()):
        made = 0
        assert [batch.messages[place].payload for place in range(len(batch))][-1] == b"4"
        assert [batch.offset(place) for place in range(len(batch))][-1] == 7 + COUNT - 1
        assert made == (2 if isinstance(batch, PartRows) else 1)


def test_messages_are_a_sequence() -> None:
    whole = few().messages
    every = [*whole]
    assert isinstance(every[0], Message)
    assert len(whole) == COUNT
    assert whole[-1] == whole[COUNT - 1] == every[-1]
    assert whole[1:3] == every[1:3]
    assert whole[::-1] == [*reversed(whole)] == every[::-1]
    assert whole[COUNT:] == []
    assert every[2] in whole
    assert whole.index(every[2]) == 2
    assert whole.count(every[2]) == 1
    for place in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError):
            whole[place]


def test_messages_equal_others_and_lists_of_the_same() -> None:
    whole = few().messages
    assert whole == few().messages
    assert whole == rows().messages
    assert whole == [*whole]
    assert whole != few().slice(0, 2).messages
    assert whole != (*whole,)
    assert repr(whole) == repr([*whole])
    with pytest.raises(TypeError):
        hash(whole)


def test_messages_are_not_made_before_they_are_looked_at() -> None:
    made: list[int] = []

    def make() -> list[Message]:
        made.append(1)
        return [*few().messages]

    whole = Messages(COUNT, make)
    assert len(whole) == COUNT
    assert not made
    assert whole[0].offset == 7
    assert [*whole] == [*whole]
    assert made == [1]


def test_times_are_made_when_they_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def counted(microseconds: int) -> datetime:
        looked.append(microseconds)
        return moment(microseconds)

    monkeypatch.setattr("streamlease.streams.entries.delivered.moment", counted)
    for whole in (few().messages, rows().messages):
        looked.clear()
        last = whole[-1]
        assert (last.timestamp_us, last.append_timestamp_us) == (COUNT - 1, 9)
        assert not looked
        assert last.timestamp == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=COUNT - 1)
        assert last.append_timestamp == datetime(1970, 1, 1, microsecond=9, tzinfo=UTC)
        assert looked == [COUNT - 1, 9]


def test_a_time_that_python_cannot_say_is_the_first_or_the_last_one() -> None:
    assert moment(-(2**62)) == datetime(1, 1, 1, tzinfo=UTC)
    assert moment(2**62) == datetime.max.replace(tzinfo=UTC)
