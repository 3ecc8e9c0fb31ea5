"""Queries of whole epochs that join, leave, are killed and come back at random; the seed is in the name.

Beside others, a query has what it has of an epoch and a stream in one micro-batch: streams that come to it
may be behind its own. Alone, it has each epoch in one micro-batch, whatever happens to it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from streamlease.hosts.keepers import Keepers
from tests.spark.test_epochs_source import Play, ahead_of_its_cut, atomic, move
from tests.spark.test_query_random import PHASES, SHORT, Schedule
from tests.spark.world import Checkpoint, Query, World, wait_for


class EpochSchedule(Schedule):
    """The same acts, in a space with epochs."""

    def __init__(self, play: Play, seed: int, *, kills: bool) -> None:
        self.play = play
        super().__init__(play.world, seed, kills=kills)

    def publish(self) -> None:
        """Some epochs complete, one by one or together."""
        for _ in range(self.random.randint(0, 2)):
            self.play.epoch(keep=False)
        self.play.epoch(complete=self.random.random() < 0.8)

    def options(self) -> dict[str, Any]:
        """Those of the next query that joins."""
        return {"epochs": "atomic", **self.random.choice(({}, {"maxEpochsPerTrigger": 1}))}

    def check(self) -> None:
        """What a query has of an epoch and a stream is all of it, in one micro-batch."""
        whole = Counter((stream, epoch) for (stream, _), epoch in self.play.epochs.items())
        for checkpoint in self.checkpoints:
            for rows in checkpoint.sink.values():
                found = Counter((row.stream, self.play.epochs[row.stream, row.offset]) for row in rows)
                assert found == {key: whole[key] for key in found}


@pytest.fixture
def play(make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> Play:
    async def none(_: Keepers) -> None:
        """The keeper is the test's."""

    monkeypatch.setattr(Keepers, "round", none)
    return Play(make_world(epochs=1))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kills", [False, True], ids=["in good order", "killed"])
@pytest.mark.slow
def test_what_a_query_has_of_an_epoch_is_in_one_micro_batch(play: Play, seed: int, kills: bool) -> None:
    schedule = EpochSchedule(play, seed, kills=kills)
    for _ in range(100):
        schedule.act()
    schedule.play.epoch()
    schedule.finish()
    schedule.check()
    twice = schedule.world.check(*schedule.checkpoints, duplicates=kills)
    assert twice.keys() <= schedule.at_risk


class Alone:
    """A query whose streams are moved between its slots, and that is killed and comes back, late or soon."""

    def __init__(self, play: Play, seed: int) -> None:
        self.play, self.world = play, play.world
        self.random = random.Random(seed)
        self.checkpoint = Checkpoint()
        self.host = self.world.lead()
        self.query = self.start()

    def start(self) -> Query:
        more = self.random.choice(({}, {"maxEpochsPerTrigger": 1}))
        return atomic(self.play, self.checkpoint, slots=3, sessionTimeoutMs=SHORT, **more)

    def act(self) -> None:
        match self.random.choices(["epoch", "trigger", "move", "kill", "leader"], [4, 8, 4, 0.7, 0.3])[0]:
            case "epoch":
                self.play.epoch()
            case "trigger":
                self.query.trigger()
            case "move":
                self.query.run(lambda: len(self.query.held) == len(self.world.streams))
                streams = self.random.sample(self.world.streams, 2)
                to = partial(move, self.world, self.query, streams, self.random.randrange(3))
                if self.random.random() < 0.5:
                    to()
                else:
                    ahead_of_its_cut(self.query, to)
            case "kill":
                self.query.trigger(self.random.choice(PHASES))
                self.query.kill()
                if self.random.random() < 0.5:
                    wait_for(lambda: not self.is_held())
                self.query = self.start()
            case "leader":
                self.host.kill()
                self.host = self.world.lead()

    def is_held(self) -> bool:
        """Whether the leader counts a stream as the query's."""
        return any(one.session is not None for one in self.world.state().streams.values())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_a_query_that_is_alone_has_each_epoch_in_one_micro_batch(play: Play, seed: int) -> None:
    alone = Alone(play, seed)
    for _ in range(40):
        alone.act()
    play.epoch()
    alone.query.run(lambda: len({row[:2] for row in alone.checkpoint.rows}) == play.world.total)
    epochs = [epoch for batch in play.micro_batches(alone.checkpoint) for epoch in batch]
    assert epochs == [*range(play.next)]
    play.world.check(alone.checkpoint)
