"""What a query says of itself in words."""

from __future__ import annotations

import pytest

from streamlease.spark.core.query_report import said


@pytest.mark.parametrize(
    ("held", "lag", "rebalances", "words"),
    [
        (None, None, 2, "has no leader yet"),
        (0, 0, 0, "holds no stream"),
        (1, 0, 1, "holds 1 stream, nothing waits in it, after 1 rebalance"),
        (3, 0, 0, "holds 3 streams, nothing waits in them"),
        (3, 1, 2, "holds 3 streams, 1 message behind, after 2 rebalances"),
        (3, 1200, 0, "holds 3 streams, 1200 messages behind"),
        (2, None, 0, "holds 2 streams, nobody knows how far behind"),
    ],
)
def test_held_streams_lag_and_rebalances_in_words(
    held: int | None, lag: int | None, rebalances: int, words: str
) -> None:
    assert said(held, lag, rebalances) == words
