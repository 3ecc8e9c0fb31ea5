"""What is left of a stream."""

from __future__ import annotations

import pytest

from streamlease.protocol.errors import HistoryTruncated, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.state import LogState, meta_command, parse_meta

STREAM = StreamId("s", 0, 0)


def test_a_stream_is_from_its_floor_to_its_end() -> None:
    state = parse_meta(STREAM, [b"9", b"4", b"open", b"7", b"100"])
    assert state == LogState(4, 9, False, 7, False, 100)
    assert (state.floor, state.next, state.mean_bytes) == (4, 9, 20.0)


@pytest.mark.parametrize("offset", [4, 9])
def test_what_is_left_may_be_asked_for(offset: int) -> None:
    LogState(4, 9, False, 0).check_left(STREAM, offset)


def test_what_lies_below_what_is_left_is_truncated() -> None:
    with pytest.raises(HistoryTruncated) as raised:
        LogState(4, 9, False, 0).check_left(STREAM, 3)
    assert (raised.value.stream, raised.value.asked, raised.value.oldest) == (str(STREAM), 3, 4)


@pytest.mark.parametrize("place", [0, 1, 3, 4])
def test_each_damaged_number_is_told_with_its_key(place: int) -> None:
    reply = [b"9", b"4", b"open", b"7", b"100"]
    assert len(reply) == len(meta_command(STREAM)[2:])
    reply[place] = b"many"
    with pytest.raises(
        StreamleaseError, match=r"stream s\.0\.0 is damaged: restore key sl:\{s\.0\.0\}:meta from a backup"
    ):
        parse_meta(STREAM, reply)
