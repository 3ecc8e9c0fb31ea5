"""Queries that join, leave, are killed and come back at random, while messages come in.

At the end nothing is missing. A message came twice only where a query was away, and then in the same part
of a cut both times. The seed is in the test's name: the order of events is the same each time, though not
the speed of what they meet.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.spark.world import Checkpoint, Phase, Query, World, run_together

PHASES: tuple[Phase, ...] = ("fixed", "logged", "read", "sunk", "committed")
QUERIES = 3
SHORT = 2000


class Schedule:
    """One run: the acts of three queries and a leader, in an order that the seed decides."""

    def __init__(self, world: World, seed: int, *, kills: bool) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.kills = kills
        self.checkpoints = [Checkpoint() for _ in range(QUERIES)]
        self.running: dict[int, Query] = {}
        self.at_risk: set[tuple[str, int]] = set()
        """Messages in cuts that were open when their query ended: only these may come twice."""
        self.host = world.lead()
        self.slots = [self.random.choice((1, 2, 3)) for _ in range(QUERIES)]

    def act(self) -> None:
        who = self.random.randrange(QUERIES)
        query = self.running.get(who)
        match self.random.choices(["publish", "trigger", "join", "leave", "leader"], [3, 12, 3, 1, 0.3])[0]:
            case "publish":
                self.publish()
            case "trigger" if query is not None:
                query.trigger()
            case "join" if query is None:
                self.running[who] = self.world.query(
                    self.checkpoints[who],
                    sessionTimeoutMs=SHORT if self.kills else 20_000,
                    slots=self.slots[who],
                    **self.options(),
                )
            case "leave" if query is not None:
                del self.running[who]
                if self.kills:
                    self._end(query)
                else:
                    query.run_to_the_end()
                    query.stop()
            case "leader" if self.kills:
                self.host.kill()
                self.host = self.world.lead()

    def publish(self) -> None:
        """Some messages come in."""
        for stream in self.world.streams:
            self.world.publish({stream: self.random.randrange(6)}, entry=self.random.randint(1, 4))

    def options(self) -> dict[str, Any]:
        """Those of the next query that joins."""
        limits: tuple[dict[str, Any], ...] = ({}, {"maxOffsetsPerTrigger": 5})
        return self.random.choice(limits)

    def _end(self, query: Query) -> None:
        """End a query in the middle of something."""
        query.trigger(self.random.choice(PHASES))
        cuts = query.session.query.machine.cuts
        if self.random.random() < 0.8:
            query.kill()
        else:
            query.stop()
        cut = cuts.open
        for part in cut.ranges if cut is not None else ():
            self.at_risk |= {(part.stream, offset) for offset in range(part.start, part.end)}

    def finish(self) -> None:
        """All come back, and everything is read."""
        for who, checkpoint in enumerate(self.checkpoints):
            if who not in self.running:
                self.running[who] = self.world.query(checkpoint, slots=self.slots[who], **self.options())
        run_together(*self.running.values(), done=self._is_done, seconds=60.0)
        run_together(*self.running.values(), done=lambda: self.world.all_committed, seconds=20.0)

    def _is_done(self) -> bool:
        seen = {row[:2] for checkpoint in self.checkpoints for row in checkpoint.rows}
        return len(seen) == self.world.total


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_queries_that_come_and_go_in_good_order_have_everything_once(world: World, seed: int) -> None:
    schedule = Schedule(world, seed, kills=False)
    for _ in range(150):
        schedule.act()
    schedule.finish()
    world.check(*schedule.checkpoints)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.slow
def test_queries_that_are_killed_lose_nothing_and_repeat_only_whole_parts(world: World, seed: int) -> None:
    schedule = Schedule(world, seed, kills=True)
    for _ in range(120):
        schedule.act()
    schedule.finish()
    assert world.check(*schedule.checkpoints, duplicates=True).keys() <= schedule.at_risk
