"""A short run of the chaos command, on two kinds of servers.

Where the tests run, processes may stand still for seconds without a fault; so each repetition counts as
explained, and what is judged is loss, order, content, late commits and the way back to calm.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.run import run
from tests.chaos.stage import SESSION_SECONDS, Shape
from tests.servers import Kind

SMALL = Shape(hosts=2, consumers=(2,), producers=1, rate=30.0, epoch_readers=("atomic", "eager"))
FAULTS = 6


@pytest.mark.chaos
@pytest.mark.quiet
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "seed"), [(Kind.EMBEDDED, 5), (Kind.REDIS7, 6)], ids=str)
def test_nothing_is_lost_and_everything_stays_in_order(kind: Kind, seed: int, tmp_path: Path) -> None:
    result = asyncio.run(run(kind, FAULTS, seed, tmp_path, print, SMALL, slack=SESSION_SECONDS))
    assert result.wrong == []
    assert result.faults.total() == FAULTS
    assert result.verdict.delivered >= result.verdict.messages > 0
    assert result.epochs.handed_out >= result.epochs.messages > 0
