"""What members ask for, what they were handed, and their ids: without any I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.gateway.members.core.handed_out import HandedOut
from streamlease.gateway.members.core.member_ids import MemberId, MemberIdCodec
from streamlease.gateway.members.core.member_refusals import UnknownMember
from streamlease.gateway.members.core.member_requests import GroupStart, parse_start, start_text
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription

ONE, TWO = StreamId("s", 0, 0), StreamId("s", 0, 1)
MEMBER = MemberId("0123456789abcdef01234567", SharedSubscription("g", "a/+/ä"))
CODEC = MemberIdCodec(b"key")


@dataclass(eq=False)
class Some:
    stream: StreamId
    start: int
    end: int
    size: int = 10

    def __len__(self) -> int:
        return self.end - self.start


def test_an_id_comes_back_from_its_text() -> None:
    assert CODEC.parse(CODEC.text(MEMBER, "c"), "g", "c") == MEMBER


@pytest.mark.parametrize(
    ("key", "group", "client"), [(b"key", "g", "d"), (b"key", "h", "c"), (b"other", "g", "c")]
)
def test_an_id_is_none_elsewhere(key: bytes, group: str, client: str) -> None:
    with pytest.raises(UnknownMember):
        MemberIdCodec(key).parse(CODEC.text(MEMBER, "c"), group, client)


@given(st.text(max_size=60))
def test_no_other_text_is_an_id(text: str) -> None:
    with pytest.raises(UnknownMember):
        CODEC.parse(text, "g", "c")


@given(st.integers(0, 200), st.sampled_from("ABCDwxyz0189-_"))
def test_a_changed_id_is_none(place: int, letter: str) -> None:
    text = CODEC.text(MEMBER, "c")
    place %= len(text) - 1  # of the last letter some bits count for nothing
    changed = text[:place] + letter + text[place + 1 :]
    if changed != text:
        with pytest.raises(UnknownMember):
            CODEC.parse(changed, "g", "c")


@pytest.mark.parametrize(
    "start", ["earliest", "latest", 0, 17, {"s.0.0": 3}, datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)]
)
def test_a_start_comes_back_from_its_text(start: GroupStart) -> None:
    assert parse_start(start_text(start)) == start


def test_where_a_commit_ends() -> None:
    handed: HandedOut[Some] = HandedOut(100, 1000)
    pieces = [Some(ONE, 0, 10), Some(TWO, 5, 8), Some(ONE, 12, 20)]
    for piece in pieces:
        handed.put(piece)
    assert handed.end_of(ONE) == 20
    assert handed.end_of(StreamId("s", 0, 2)) is None
    assert handed.ending(ONE, 10) is pieces[0]
    assert handed.ending(ONE, 11) is pieces[0]  # in a gap: what is not for the member is done with it
    assert handed.ending(ONE, 13) is pieces[2]
    assert handed.ending(TWO, 5) is None
    assert handed.holding(ONE, 11) is None
    assert handed.holding(TWO, 7) is pieces[1]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50), st.integers(1, 500)), max_size=30))
def test_it_counts_what_it_has(some: list[tuple[bool, int, int]]) -> None:
    handed: HandedOut[Some] = HandedOut(100, 1000)
    for first, messages, size in some:
        handed.put(Some(ONE if first else TWO, 0, messages, size))
        assert handed.has_room == (handed.messages < 100 and handed.bytes < 1000)
    handed.keep(lambda piece: piece.stream == TWO)
    assert [piece.stream for piece in handed] == [TWO for first, _, _ in some if not first]
    assert handed.messages == sum(len(piece) for piece in handed)
    assert handed.bytes == sum(piece.size for piece in handed)
    assert {piece.stream for piece in handed} <= {TWO}
