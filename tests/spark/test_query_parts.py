"""When a query may read a cut in part: no Redis, no leader."""

from __future__ import annotations

from typing import Any

import pytest

from streamlease.spark.core.checkpoint import SlotRange
from streamlease.spark.query import resuming
from streamlease.spark.query.resuming import Resuming

LOST = [SlotRange("s.0.0", 0, 5, 1, 0)]


class Asked:
    """Stands for the questions to a leader, and for the query that looks for the streams it lost."""

    def __init__(self, *terms: int) -> None:
        self.terms = list(terms)
        self.looked = 0
        self._questions = self

    @property
    def term(self) -> int:
        return self.terms[min(self.looked, len(self.terms)) - 1]

    async def _wait_until_leased_again(self, lost: list[SlotRange]) -> None:
        assert lost == LOST
        self.looked += 1


@pytest.mark.parametrize(("terms", "for_good"), [((7, 7), True), ((7, 9000), False)])
async def test_a_take_over_counts_once_it_has_stood_for_longer_than_a_failover_takes_back(
    terms: tuple[int, ...], for_good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(resuming.asyncio, "sleep", sleep)
    asked: Any = Asked(*terms)
    assert await Resuming._is_lost_for_good(asked, 7, LOST) is for_good
    assert slept == [resuming.TAIL_SECONDS]
    assert asked.looked == 2  # before, and once more after
