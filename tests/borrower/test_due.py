"""When a borrower is due: its slot leaves out ticks before that."""

from __future__ import annotations

import random

import pytest

from streamlease.borrower.events import Event, Failed, LeaderFound, Received, Started, Tick, Unsubscribed
from streamlease.borrower.life import STOOD_STILL, BorrowerState
from tests.borrower.make import (
    LEASE_EPOCH,
    STREAM,
    TERM,
    committed,
    connect_response,
    frozen,
    grant,
    new,
    pong,
    progressed,
    revoke,
    revoked,
)


@pytest.mark.parametrize("seed", range(50))
def test_before_something_is_due_a_tick_changes_nothing(seed: int) -> None:
    rolls, now = random.Random(seed), 0
    borrower = new()
    borrower.step(Started(), now)
    events: list[Event] = [
        LeaderFound("box", TERM),
        *map(Received, [connect_response(), pong(), grant(), committed(20), revoke(), revoked()]),
        progressed(20),
        progressed(20, final=True),
        Failed(STREAM, LEASE_EPOCH, 20, "f", "boom"),
    ]
    quiet = 0
    for _ in range(200):
        now += rolls.choice([1, 99, 200, 450])
        if now < borrower.due_at:
            before = frozen(borrower)
            assert borrower.step(Tick(STOOD_STILL - 1), now) == []
            assert frozen(borrower) == before
            quiet += 1
        else:
            borrower.step(Tick(), now)
        borrower.step(Unsubscribed() if rolls.random() < 0.01 else rolls.choice(events), now)
        if borrower.state is BorrowerState.ENDED:
            borrower = new()
            borrower.step(Started(), now)
    assert quiet > 5
