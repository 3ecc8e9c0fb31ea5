"""How a limit is divided over streams."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streamlease.spark.core.limits import Limits, shares

waiting = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 10**6), max_size=20)
limits = st.one_of(st.integers(0, 50), st.integers(0, 10**8))


@given(waiting, limits)
def test_the_whole_limit_is_used_and_kept(waiting: dict[str, int], limit: int) -> None:
    assert sum(shares(waiting, limit).values()) == min(limit, sum(waiting.values()))


@given(waiting, st.one_of(st.none(), limits))
def test_no_stream_gets_more_than_waits_or_an_empty_share(waiting: dict[str, int], limit: int | None) -> None:
    assert all(0 < share <= waiting[stream] for stream, share in shares(waiting, limit).items())


@given(waiting)
def test_no_limit_takes_all(waiting: dict[str, int]) -> None:
    assert shares(waiting, None) == {stream: count for stream, count in waiting.items() if count}


@given(waiting, limits)
def test_no_stream_starves_if_the_limit_has_one_for_each(waiting: dict[str, int], limit: int) -> None:
    active = {stream for stream, count in waiting.items() if count}
    if limit >= len(active):
        assert shares(waiting, limit).keys() == active


@given(waiting, limits)
def test_a_scarce_limit_goes_to_the_longest_backlogs(waiting: dict[str, int], limit: int) -> None:
    chosen = shares(waiting, limit)
    left_out = [count for stream, count in waiting.items() if count and stream not in chosen]
    assert min((waiting[stream] for stream in chosen), default=10**9) >= max(left_out, default=0)


@given(waiting, limits)
def test_shares_are_proportional_but_for_rounding(waiting: dict[str, int], limit: int) -> None:
    chosen = shares(waiting, limit)
    total = sum(waiting.values())
    if chosen and limit <= total:
        for stream, share in chosen.items():
            exact = Fraction(waiting[stream] * limit, total)
            assert abs(share - exact) <= len(waiting)


@given(waiting, limits)
def test_a_longer_backlog_gets_no_less(waiting: dict[str, int], limit: int) -> None:
    """But for the rounding: the one message that a short stream gets comes from the longest."""
    chosen = shares(waiting, limit)
    order = sorted(waiting, key=lambda stream: waiting[stream])
    sizes = [chosen.get(stream, 0) for stream in order]
    assert all(small <= large + len(waiting) for small, large in pairwise(sizes))


@given(waiting, limits)
def test_the_order_of_the_streams_does_not_matter(waiting: dict[str, int], limit: int) -> None:
    reordered = dict(sorted(waiting.items(), reverse=True))
    assert shares(waiting, limit) == shares(reordered, limit)


def test_a_limit_below_the_number_of_streams_serves_each_in_turn() -> None:
    waiting = {"a": 1000, "b": 900, "c": 1, "d": 2}
    passed_over: dict[str, int] = {}
    served: set[str] = set()
    for _ in range(2):
        chosen = shares(waiting, 2, passed_over)
        passed_over = {stream: passed_over.get(stream, 0) + 1 for stream in waiting if stream not in chosen}
        served |= chosen.keys()
    assert served == waiting.keys()


@given(waiting, st.integers(1, 10**6), st.integers(1, 500))
def test_a_limit_of_bytes_is_kept_but_for_one_message_each(
    waiting: dict[str, int], most: int, mean: int
) -> None:
    sizes = Limits(max_bytes=most).sizes(waiting, dict.fromkeys(waiting, float(mean)), {})
    assert all(0 < size <= waiting[stream] for stream, size in sizes.items())
    assert sum(sizes.values()) * mean <= most + mean * len(sizes)
    if most >= sum(waiting.values()) * mean:
        assert sizes == {stream: count for stream, count in waiting.items() if count}


def test_a_small_cut_waits_until_it_is_large_or_late() -> None:
    limits = Limits(min_rows=10, max_delay_ms=1000)
    assert not limits.is_worth_a_cut(9, 999)
    assert limits.is_worth_a_cut(10, 0)
    assert limits.is_worth_a_cut(1, 1000)
    assert not limits.is_worth_a_cut(0, 9999)
    assert Limits().is_worth_a_cut(1, 0)
