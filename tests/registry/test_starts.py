"""Where a group may begin, and how that is kept; what it comes to is in `test_groups`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from streamlease.protocol.errors import InvalidInput, InvalidOption
from streamlease.registry.starts import Start, check_start, shown_start

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        (7, "offset 7"),
        ({"s.0.0": 3}, "offsets"),
        (MOMENT, "2026-01-02T03:04:05+00:00"),
    ],
)
def test_a_start_is_kept_as_people_read_it(start: Start, shown: str) -> None:
    check_start(start)
    assert shown_start(start) == shown


@pytest.mark.parametrize("start", ["newest", "", True, 1.5, None, -1, {"s.0.0": -1}, {"s.0.0": True}])
def test_what_is_no_point_in_a_stream_is_refused(start: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^start (is|has)"):
        check_start(start)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidInput):
        check_start(MOMENT.replace(tzinfo=None))
