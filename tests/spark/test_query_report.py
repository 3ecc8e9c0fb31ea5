"""What a query says of itself in words."""

from __future__ import annotations

import pytest

from streamlease.spark.core.query_report import said
from streamlease.spark.setup.spark_ui import LONGEST, described, told_of


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


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (['{"said": "holds 3 streams", "lag": 0}'], "holds 3 streams"),
        (
            ['{"said": "holds 3 streams"}', '{"topic": {"0": 7}}', None, "7", "[]", "rate: 7", '{"said": 7}'],
            "holds 3 streams",
        ),
        (
            ['{"said": "holds 3 streams"}', '{"said": "has no leader yet"}'],
            "holds 3 streams; has no leader yet",
        ),
        (['{"said": "%s"}' % ("x" * 2 * LONGEST)], "x" * LONGEST),
        ([], ""),
    ],
)
def test_what_the_sources_of_a_query_said_is_told_in_sparks_ui(
    reported: list[str | None], words: str
) -> None:
    assert told_of(reported) == words


def test_a_description_keeps_what_spark_wrote() -> None:
    assert described("flights\nbatch = 7", "holds no stream") == "flights\nbatch = 7\nholds no stream"
    assert described("", "holds no stream") == "holds no stream"
