"""What exists of a stream, and what of it is in memory."""

from __future__ import annotations

import pytest

from streamlease.protocol.errors import HistoryTruncated, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.state import Extent, LogState, meta_command, parse_meta

STREAM = StreamId("s", 0, 0)


def test_memory_is_all_there_is() -> None:
    state = parse_meta(STREAM, [b"9", b"4", b"open", b"7", b"100", None, None])
    assert state == LogState(Extent(4, 9), False, 7, False, 100)
    assert (state.floor, state.next, state.mean_bytes) == (4, 9, 20.0)


@pytest.mark.parametrize("offset", [4, 9])
def test_what_exists_may_be_asked_for(offset: int) -> None:
    LogState(Extent(4, 9), False, 0).check_exists(STREAM, offset)


def test_what_lies_below_what_exists_is_truncated() -> None:
    with pytest.raises(HistoryTruncated) as raised:
        LogState(Extent(4, 9), False, 0).check_exists(STREAM, 3)
    assert (raised.value.stream, raised.value.asked, raised.value.oldest) == (str(STREAM), 3, 4)


def test_another_source_may_hold_what_is_below_the_memory() -> None:
    state = parse_meta(STREAM, [b"9", b"4", b"open", b"7", b"100", b"1", None])
    assert state is not None
    assert (state.floor, state.memory, state.mean_bytes) == (1, (4, 9), 20.0)
    state.check_exists(STREAM, 1)
    state.check_in_memory(STREAM, 4)
    with pytest.raises(HistoryTruncated) as gone:
        state.check_exists(STREAM, 0)
    with pytest.raises(HistoryTruncated) as elsewhere:
        state.check_in_memory(STREAM, 1)
    assert (gone.value.oldest, elsewhere.value.oldest) == (1, 4)


@pytest.mark.parametrize("place", [0, 1, 3, 4, 5, 6])
def test_each_damaged_number_is_told_with_its_key(place: int) -> None:
    reply = [b"9", b"4", b"open", b"7", b"100", b"1", b"2"]
    assert len(reply) == len(meta_command(STREAM)[2:])
    reply[place] = b"many"
    with pytest.raises(
        StreamleaseError, match=r"stream s\.0\.0 is damaged: restore key sl:\{s\.0\.0\}:meta from a backup"
    ):
        parse_meta(STREAM, reply)
