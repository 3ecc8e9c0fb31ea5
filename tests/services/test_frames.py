"""What travels, and what does when it is damaged; what is new; whose turn it is."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.services.core.admission import REMEMBERED_SECONDS, Admission
from streamlease.services.core.frames import (
    AnswerFrame,
    CancelFrame,
    FailureFrame,
    Frame,
    RefusalFrame,
    RequestFrame,
    answer_head,
    cancel_head,
    failure_head,
    parse_entry,
    refusal_head,
    request_head,
)
from streamlease.services.core.rotation import Rotation

GENERIC = "Page[dict[str, int]]"
FRAMES: list[tuple[bytes, bytes, Frame]] = [
    (request_head(7, 9, "o", "j", "s", "Score"), b"{}", RequestFrame(7, 9, "o", "j", "s", "Score", b"{}")),
    (request_head(7, 9, "o", "j", "s", GENERIC), b"{}", RequestFrame(7, 9, "o", "j", "s", GENERIC, b"{}")),
    (cancel_head(1), b"", CancelFrame(1)),
    (answer_head(2, "own"), b"\x00\xff", AnswerFrame(2, "own", b"\x00\xff")),
    (failure_head(3), b"why", FailureFrame(3, b"why")),
    (refusal_head(4, "busy"), "später".encode(), RefusalFrame(4, "busy", "später")),
]  # fmt: skip


def test_frames_come_as_they_were_sent() -> None:
    fields = [b"f", b"sender", b"n", b"12"]
    for head, payload, _ in FRAMES:
        fields += [head, payload]
    entry = parse_entry(fields)
    assert entry is not None
    assert (entry.sender, entry.number, entry.damaged) == ("sender", 12, 0)
    assert entry.frames == [frame for _, _, frame in FRAMES]


@pytest.mark.parametrize(
    "head",
    [b"", b"C", b"C 1 2 a b c", b"C x 2 a b c d", b"C 1 x a b c d", b"X", b"X 1 2", b"X one", b"Y 1", b"A 1",
     b"R 1", b"R 1 unheard-of", b"E", b"\xff 1", b"CC 1 2 a b c d", b"A\t1 own"],
)  # fmt: skip
def test_a_damaged_frame_is_counted_and_the_others_are_read(head: bytes) -> None:
    entry = parse_entry([b"f", b"s", b"n", b"1", head, b"", b"X 5", b""])
    assert entry is not None
    assert entry.damaged == 1
    assert entry.frames == [CancelFrame(5)]


@pytest.mark.parametrize(
    "fields",
    [[], [b"f"], [b"f", b"s", b"n"], [b"f", b"s", b"n", b"x"], [b"f", b"s", b"n", b"-1"],
     [b"n", b"1", b"f", b"s"], [b"a", b"b", b"c", b"d"]],
)  # fmt: skip
def test_an_entry_of_a_stranger_is_none(fields: list[bytes]) -> None:
    assert parse_entry(fields) is None


@given(st.lists(st.binary(max_size=30), max_size=12))
def test_no_bytes_break_the_reader(fields: list[bytes]) -> None:
    parse_entry(fields)
    parse_entry([b"f", b"s", b"n", b"1", *fields])


def test_an_entry_is_taken_once() -> None:
    admission = Admission()
    assert [admission.is_new("a", number, 0.0) for number in (1, 1, 3, 2, 3, 4)] == [
        True,
        False,
        True,
        False,
        False,
        True,
    ]
    assert admission.is_new("b", 1, 0.0), "each sender has numbers of its own"
    assert admission.is_new("b", 2, REMEMBERED_SECONDS)
    admission.forget(REMEMBERED_SECONDS + 1.0)
    assert len(admission) == 1, "who was silent for long is forgotten"
    assert not admission.is_new("b", 2, REMEMBERED_SECONDS + 1.0)


def test_turns_go_round() -> None:
    turns = Rotation("b")
    assert [turns.next("abc") for _ in range(4)] == [2, 0, 1, 2]
    assert turns.next(["a"]) == 0
    assert turns.next(["a", "b"]) == 1


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True), st.text(max_size=3))
def test_each_has_as_many_turns_as_the_others(addresses: list[str], last: str) -> None:
    turns, there = Rotation(last), sorted(addresses)
    counted = Counter(turns.next(there) for _ in range(3 * len(there)))
    assert counted == dict.fromkeys(range(len(there)), 3)
