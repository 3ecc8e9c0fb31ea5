"""Where cuts of whole epochs end: at boundaries, all streams at the same one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlease.spark.core.epoch_ends import Bound, BoundsFound, EpochEnds, shown

A, B, C = "s.0.0", "s.0.1", "s.0.2"


def bound(number: int, *epochs: int, **ends: int) -> Bound:
    """A boundary that moved these epochs into streams `a`, `b`, `c`, which end there then."""
    named = {{"a": A, "b": B, "c": C}[name]: end for name, end in ends.items()}
    parts = frozenset(((epoch,), stream) for epoch in epochs for stream in named)
    return Bound(number, ((max(epochs, default=number) + 1,),), named, parts)


def ends(*bounds: Bound, more: bool = False, base: Bound | None = None) -> EpochEnds:
    made = EpochEnds()
    made.found(BoundsFound((), True, base or Bound(0, ((0,),), {})))
    made.found(BoundsFound(bounds, more))
    return made


FIVE = (
    bound(1, 0, a=2, b=1),
    bound(2, 1, b=3),
    bound(3),
    bound(4, 2, 3, a=5),
    bound(5, 4, a=6, b=4, c=1),
)
NOWHERE = {A: 0, B: 0, C: 0}


def test_without_a_limit_it_is_the_newest_boundary() -> None:
    assert ends(*FIVE).next(NOWHERE, {}, None) == (FIVE[4], {A: 6, B: 4, C: 1})


def test_a_limit_counts_epochs_and_allows_one_boundary() -> None:
    assert ends(*FIVE).next(NOWHERE, {}, 1) == (FIVE[0], {A: 2, B: 1})
    assert ends(*FIVE).next({A: 2, B: 1, C: 0}, {}, 1) == (FIVE[2], {B: 3}), "one without messages goes along"
    assert ends(*FIVE).next({A: 2, B: 3, C: 0}, {}, 1) == (FIVE[3], {A: 5}), "two epochs, but one boundary"
    assert ends(*FIVE).next(NOWHERE, {}, 3) == (FIVE[2], {A: 2, B: 3})
    assert ends(*FIVE).next(NOWHERE, {}, 4) == (FIVE[3], {A: 5, B: 3})


def test_only_the_streams_that_are_held_count() -> None:
    assert ends(*FIVE).next({B: 0}, {}, 2) == (FIVE[3], {B: 3})


def test_nothing_is_read_beyond_the_targets() -> None:
    assert ends(*FIVE).next(NOWHERE, {}, None, {A: 5, B: 3, C: 0}) == (FIVE[3], {A: 5, B: 3})
    assert ends(*FIVE).next({A: 5, B: 3, C: 0}, {}, None, {A: 5, B: 3, C: 0}) is None


def test_a_stream_that_is_behind_catches_up_first() -> None:
    behind = {A: 6, B: 1, C: 1}
    assert ends(*FIVE).next(behind, {}, 1) == (FIVE[3], {B: 3})


def test_a_pinned_part_ends_where_it_ended_and_the_others_at_its_boundary() -> None:
    assert ends(*FIVE).next(NOWHERE, {B: 3}, None) == (FIVE[1], {A: 2, B: 3})
    assert ends(*FIVE).next(NOWHERE, {A: 4}, None) == (FIVE[3], {A: 4, B: 3}), "whoever pinned it, keep it"


def test_more_is_asked_for_before_a_cut_is_made_that_could_be_larger() -> None:
    assert ends(*FIVE[:2], more=True).next(NOWHERE, {}, None) is None
    assert ends(*FIVE[:2], more=True).next(NOWHERE, {}, 2) == (FIVE[1], {A: 2, B: 3})


def test_who_is_before_all_that_is_known_must_begin_anew() -> None:
    known = ends(*FIVE)
    assert EpochEnds().is_behind(NOWHERE)
    assert not known.is_behind(NOWHERE)
    assert known.next({A: 2, B: 3}, {}, 1) == (FIVE[3], {A: 5})
    assert known.newest_read == FIVE[2]
    assert known.is_behind({A: 2, B: 1})
    assert not known.is_behind({A: 2, B: 3, C: 0})


def test_what_the_progress_shows() -> None:
    assert shown(None) is None
    assert shown(FIVE[4]) == {"boundary": 5, "lower": [[5]]}
    assert shown(Bound(7, None, {})) == {"boundary": 7, "lower": None}


@given(
    st.lists(st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 3)), max_size=12),
    st.integers(1, 4) | st.none(),
    st.data(),
)
def test_cut_by_cut_everything_comes_and_each_cut_ends_at_one_boundary(
    moved: list[dict[str, int]], most: int | None, data: st.DataObject
) -> None:
    at, bounds = dict(NOWHERE), list[Bound]()
    for number, rows in enumerate(moved, 1):
        at |= {stream: at[stream] + count for stream, count in rows.items()}
        parts = frozenset(((number,), stream) for stream in rows)
        bounds.append(Bound(number, ((number + 1,),), {stream: at[stream] for stream in rows}, parts))
    whole = [NOWHERE]
    for one in bounds:
        whole.append({**whole[-1], **one.ends})
    known, positions, left = ends(more=True), dict(NOWHERE), list(bounds)
    while True:
        found = known.next(positions, {}, most)
        if found is None:
            if not left:
                break
            page, left = left[:2], left[2:]
            known.found(BoundsFound(tuple(page), bool(left)))
            continue
        last, cut = found
        positions |= cut
        assert positions == whole[last.number]
    assert positions == at
