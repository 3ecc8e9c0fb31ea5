"""The messages of a piece, chosen by filter: the same ones, few or many, as columns or as objects."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamlease.gateway.pages.chosen_rows import FEW, ChosenRows
from streamlease.streams.entries.delivered import to_messages
from streamlease.streams.entries.message_rows import MESSAGE_SCHEMA, filter_batch

FILTERS = ("a/1", "a/2", "a/#", "+/1", "b", "b/#", "#", "nothing", "$hidden/1", "$hidden/#")
TOPICS = ("a/1", "b", "a/2", "a/1", "$hidden/1", "b/1")


def piece(topics: list[str], first: int = 100) -> pa.RecordBatch:
    rows = [
        {
            "topic": topic, "payload": b"%d" % offset, "stream": "s.0.0", "offset": offset,
            "timestamp": offset, "append_timestamp": offset,
        }
        for offset, topic in enumerate(topics, first)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, MESSAGE_SCHEMA)


@pytest.mark.parametrize("count", [1, 5, 40, FEW + 50])
@pytest.mark.parametrize("topics", [TOPICS, ("a/1",)], ids=["several", "one"])
@pytest.mark.parametrize("as_dictionary", [False, True])
def test_a_filter_chooses_what_it_matches(count: int, topics: tuple[str, ...], as_dictionary: bool) -> None:
    whole = piece([topics[place % len(topics)] for place in range(count)])
    given = whole
    if as_dictionary:
        # as a piece that was cut out of a larger one: some topics of its dictionary are in none of its rows
        longer = piece(["else/0", *whole.column("topic").to_pylist()], first=99)
        given = longer.set_column(0, "topic", longer.column("topic").dictionary_encode()).slice(1)
    chosen = ChosenRows(given)
    for filter in FILTERS:
        wanted = to_messages(filter_batch(whole, filter))
        for start in (0, 100, 102, 100 + count // 2, 100 + count):
            rows, messages = chosen.rows(filter, start)
            expected = [one for one in wanted if one.offset >= start]
            assert to_messages(rows) == expected, (filter, start)
            assert messages is None or list(messages) == expected


def test_few_messages_are_at_hand() -> None:
    chosen = ChosenRows(piece(["a/1", "a/2", "a/1"]))
    rows, messages = chosen.rows("a/1", 0)
    assert rows.column("offset").to_pylist() == [100, 102]
    assert messages is not None
    assert [one.offset for one in messages] == [100, 102]
    assert chosen.size > rows.nbytes
