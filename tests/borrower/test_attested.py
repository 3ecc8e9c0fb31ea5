"""What a session attests of its streams, one by one and cut by cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlease.borrower.attested import Attestations

Row = tuple[str, int, int]
SLOTS = range(2)

rows = st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.integers(0, 5))
cuts = st.lists(rows, max_size=3, unique_by=lambda row: row[0])


def attest(attested: Attestations, cut: list[Row]) -> None:
    streams, lease_epochs, offsets = zip(*cut, strict=True) if cut else ((), (), ())
    attested.add_cut(streams, lease_epochs, offsets)


def all_of(attested: Attestations) -> list[list[Row]]:
    """Of each slot stream, lease epoch and offset."""
    return [[(one.stream, one.lease_epoch, one.offset) for one in attested.of(slot)] for slot in SLOTS]


@given(st.lists(cuts, max_size=8), st.data())
def test_a_cut_says_the_same_as_its_streams_one_by_one(said: list[list[Row]], data: st.DataObject) -> None:
    """Whenever somebody asks, and whether or not a cut is of the same leases as the one before."""
    at_once, one_by_one = Attestations(2), Attestations(2)
    for stream, slot in (("a", 0), ("b", 1), ("c", 1)):
        for attested in (at_once, one_by_one):
            attested.add(slot, stream, 1, 0)
    for cut in said:
        attest(at_once, cut)
        for stream, lease_epoch, offset in cut:
            one_by_one.add(one_by_one.slot_of(stream), stream, lease_epoch, offset)
        if data.draw(st.booleans()):
            assert all_of(at_once) == all_of(one_by_one)
    assert all_of(at_once) == all_of(one_by_one)


def test_streams_of_a_checkpoint_that_were_not_granted_yet_are_spread_over_the_slots() -> None:
    attested = Attestations(2)
    attest(attested, [("a", 1, 5), ("b", 1, 7), ("c", 1, 9)])
    assert all_of(attested) == [[("a", 1, 5), ("c", 1, 9)], [("b", 1, 7)]]


def test_a_cut_that_ends_lower_under_the_same_leases_takes_nothing_back() -> None:
    attested = Attestations(1)
    attest(attested, [("a", 1, 5), ("b", 1, 7)])
    attest(attested, [("a", 1, 6), ("b", 1, 3)])
    assert all_of(attested)[0] == [("a", 1, 6), ("b", 1, 7)]
