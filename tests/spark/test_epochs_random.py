"""Queries of whole epochs that join, leave, are killed and come back at random; the seed is in the name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from streamlease.hosts.keepers import Keepers
from tests.spark.test_epochs_source import Play
from tests.spark.test_query_random import Schedule
from tests.spark.world import World


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


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kills", [False, True], ids=["in good order", "killed"])
def test_what_a_query_has_of_an_epoch_is_in_one_micro_batch(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, seed: int, kills: bool
) -> None:
    async def none(_: Keepers) -> None:
        """The keeper is the test's."""

    monkeypatch.setattr(Keepers, "round", none)
    schedule = EpochSchedule(Play(make_world(epochs=1)), seed, kills=kills)
    for _ in range(100):
        schedule.act()
    schedule.play.epoch()
    schedule.finish()
    schedule.check()
    twice = schedule.world.check(*schedule.checkpoints, duplicates=kills)
    assert twice.keys() <= schedule.at_risk
