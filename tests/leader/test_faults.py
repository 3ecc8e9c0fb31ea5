"""A group under loss, duplicates, reordering, crashes and restarts keeps its promises, and recovers."""

from __future__ import annotations

import pytest

from streamlease.leader.core.events import StreamsListed
from streamlease.leader.core.lease import LeaseState
from streamlease.streams.spaces.spaces import Generation, Space
from tests.leader.world import World

pytestmark = pytest.mark.thorough

STEPS = 250
CONVERGE_WITHIN = 600
SEEDS_PER_TEST = 20


class ManyGenerations(World):
    """A world in which the number of streams changes now and then, and old generations are dropped."""

    SIZES = (6, 4, 9, 1, 3)

    def __init__(self, seed: int) -> None:
        super().__init__(seed, self.SIZES[0])
        self.generations = [Generation(number=0, streams=self.SIZES[0])]
        self.opened = dict.fromkeys(self.streams, 0)
        self.ends: dict[str, int] = {}
        self.dropped = 0
        self.predecessors: dict[str, tuple[str, ...]] = {}
        self.arrange()

    def arrange(self) -> None:
        """Say which streams follow which, since generations came or went."""
        space = Space(name="s", topics=("s",), generations=tuple(self.generations[self.dropped :]))
        self.predecessors = {
            str(one): tuple(map(str, before)) for one, before in space.predecessors().items()
        }

    def listing(self) -> StreamsListed:
        ends = {stream: end for stream, end in self.ends.items() if stream in self.streams}
        return StreamsListed(self.streams, {}, ends, self.predecessors)

    def available(self, stream: str) -> int:
        return self.ends.get(stream, self.length - self.opened[stream])

    def to_be_leased(self) -> set[str]:
        return set(self.streams) - set(self.ends)

    def reading(self, stream: str, offsets: range) -> None:
        # Of a stream that was dropped already, only a session that is lost without knowing it reads.
        for before in self.predecessors.get(stream, ()) if offsets else ():
            assert self.committed[before] == self.ends[before], f"{stream} is read before {before}"
            assert self.seen[before] >= set(range(self.ends[before])), f"{before} was not read to its end"

    def misbehave(self) -> None:
        super().misbehave()
        if self.random.random() < 0.025 and len(self.generations) < len(self.SIZES):
            self.alter()
        if self.random.random() < 0.01:
            self.drop()
        if self.random.random() < 0.1:
            self.step_leader(self.listing())

    def alter(self) -> None:
        for stream in self.streams:
            self.ends.setdefault(stream, self.available(stream))
        number = len(self.generations)
        self.generations.append(Generation(number=number, streams=self.SIZES[number]))
        for shard in range(self.SIZES[number]):
            stream = f"s.{number}.{shard}"
            self.streams[stream] = self.committed[stream] = self.delivered_from[stream] = 0
            self.opened[stream] = self.length
            self.seen[stream] = set()
        self.arrange()

    def drop(self) -> None:
        """Drop the oldest generation once the group has consumed it, as retention does."""
        oldest = [stream for stream in self.streams if stream.startswith(f"s.{self.dropped}.")]
        if self.dropped < len(self.generations) - 1 and all(
            self.committed[stream] == self.ends[stream] for stream in oldest
        ):
            self.dropped += 1
            for stream in oldest:
                del self.streams[stream]
            self.arrange()

    def heal(self) -> None:
        super().heal()
        self.step_leader(self.listing())


def survive(seed: int, kind: type[World] = World) -> World:
    world = kind(seed)
    world.lead()
    for n in range(3):
        world.join(f"n{n}")
    for _ in range(STEPS):
        world.misbehave()
        world.tick()
    world.heal()
    for _ in range(CONVERGE_WITHIN):
        if world.converged():
            break
        world.tick()
    else:
        assert world.leader is not None
        pytest.fail(f"seed {seed} did not converge: {world.leader.leases} {world.leader.peers}")
    assert world.leader is not None
    assert world.replay() == world.leader.durable
    return world


@pytest.mark.parametrize("first", range(0, 200, SEEDS_PER_TEST))
def test_a_group_under_faults_keeps_its_promises_and_converges(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        world = survive(seed)
        assert world.leader is not None
        assert set(world.leader.leases) == set(world.streams), "every stream has an owner"
        assert all(lease.state is LeaseState.GRANTED for lease in world.leader.leases.values())


@pytest.mark.parametrize("first", range(1000, 1200, SEEDS_PER_TEST))
def test_no_generation_overtakes_another_under_faults(first: int) -> None:
    altered = dropped = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        world = survive(seed, ManyGenerations)
        assert isinstance(world, ManyGenerations)
        assert world.leader is not None
        altered += len(world.generations) - 1
        dropped += world.dropped
        over = {s for s, held in world.leader.durable.streams.items() if held.finished}
        assert over == set(world.ends) & set(world.streams)
    assert altered > SEEDS_PER_TEST
    assert dropped > 0


def test_the_faults_are_real() -> None:
    """The driver's own test: seeds must lead through what they are there for."""
    worlds = [survive(seed) for seed in range(5)]
    assert sum(world.terms for world in worlds) > 10
    assert sum(len(world.sessions) for world in worlds) > 20
    assert all(world.length > 100 for world in worlds)
    assert any(world.leader is not None and world.leader.ledger.refused for world in worlds)


def test_a_seed_gives_the_same_run_each_time() -> None:
    one, two = survive(7), survive(7)
    assert one.journal == two.journal
    assert one.now == two.now
