"""What exists of a stream, and what of it is in memory."""

from __future__ import annotations

import pytest

from streamlease.protocol.errors import HistoryTruncated
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.state import LogState, Segment, parse_meta

STREAM = StreamId("s", 0, 0)


def test_memory_is_all_there_is() -> None:
    state = parse_meta(STREAM, [b"9", b"4", b"open", b"7", b"100"])
    assert state == LogState(Segment(4, 9), False, 7, False, 100)
    assert (state.floor, state.next, state.mean_bytes) == (4, 9, 20.0)


@pytest.mark.parametrize("offset", [4, 9])
def test_what_exists_may_be_asked_for(offset: int) -> None:
    LogState(Segment(4, 9), False, 0).check_exists(STREAM, offset)


def test_what_lies_below_what_exists_is_truncated() -> None:
    with pytest.raises(HistoryTruncated) as raised:
        LogState(Segment(4, 9), False, 0).check_exists(STREAM, 3)
    assert (raised.value.stream, raised.value.asked, raised.value.oldest) == (str(STREAM), 3, 4)
