"""What Spark's pages and metrics show of a query's sources: words, and numbers."""

from __future__ import annotations

import json

import pytest

from streamlease.spark.setup.spark_metrics import UNKNOWN, gauges_of
from streamlease.spark.setup.spark_ui import LONGEST, told_of


def report(**changes: object) -> str:
    given = {"said": "holds 2 streams", "held": 2, "lag": 5, "rebalances": 1, "error": None, "streams": {}}
    return json.dumps(given | changes)


FOREIGN = [None, "", "17", "not JSON {", "[]", "null", '{"held": 3}', '{"said": 7}']


@pytest.mark.parametrize("other", FOREIGN)
def test_sources_of_others_are_left_out(other: str | None) -> None:
    assert (told_of([other]), gauges_of([other])) == ("", {})
    assert told_of([other, report(), other]) == "holds 2 streams"
    assert gauges_of([other, report()]) == {"held": 2, "lag": 5, "rebalances": 1, "failing": 0}


def test_several_sources_are_summed_and_told_one_after_the_other() -> None:
    both = [report(), report(said="holds 1 stream", held=1, lag=7, rebalances=0)]
    assert told_of(both) == "holds 2 streams; holds 1 stream"
    assert gauges_of(both) == {"held": 3, "lag": 12, "rebalances": 1, "failing": 0}


def test_what_one_source_does_not_know_is_unknown_and_never_nothing() -> None:
    without = report(said="x" * 2 * LONGEST, held=None, lag=None, error="no leader")
    assert gauges_of([report(), without]) == {
        "held": UNKNOWN,
        "lag": UNKNOWN,
        "rebalances": 2,
        "failing": 1,
    }
    assert len(told_of([without])) == LONGEST
