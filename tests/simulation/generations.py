"""The space of the simulated world: its generations are sealed and followed while everything else goes on.

Which stream follows which is asked of the real `Space`. Like messages, changes of a space count as made with
``replicated:K``: no failover loses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease.leader.core.events import StreamsListed
from streamlease.protocol.ids import StreamId
from streamlease.streams.spaces.definitions import Generation, Space

if TYPE_CHECKING:
    from tests.simulation.judge import Judge
    from tests.simulation.world import World

MOST_STREAMS = 14
MOST_GENERATIONS = 4


class Generations:
    """The space ``s``, all of whose generations are in the store."""

    def __init__(self, streams: dict[str, int]) -> None:
        self.streams = streams
        """Stream -> its next offset."""
        self.order: dict[str, tuple[str, ...]] = {}
        """Stream -> those of the generation before that may share a key with it."""
        self.sealed: set[str] = set()
        self._generations: list[Generation] = []

    def follow(self, size: int) -> None:
        """Seal the newest generation, if there is one, and begin the next with so many streams."""
        self.seal()
        number = self._generations[-1].number + 1 if self._generations else 0
        self._generations.append(Generation(number=number, streams=size))
        self._define()
        for stream in self.order:
            self.streams.setdefault(stream, 0)

    def seal(self) -> None:
        """Nothing more is taken by what there is."""
        self.sealed.update(stream for stream in self.streams if stream.startswith("s."))

    def drop_oldest(self) -> None:
        """Forget the oldest generation."""
        gone = self._generations.pop(0)
        for stream in [stream for stream in self.order if StreamId.parse(stream).generation == gone.number]:
            del self.streams[stream]
            self.sealed.discard(stream)
        self._define()

    def _define(self) -> None:
        space = Space(name="s", topics=("#",), generations=tuple(self._generations))
        self.order = {str(s): tuple(map(str, before)) for s, before in space.predecessors().items()}

    @property
    def oldest(self) -> list[str]:
        """The streams of the oldest generation, if another one follows it."""
        number = self._generations[0].number
        streams = [stream for stream in self.order if StreamId.parse(stream).generation == number]
        return streams if len(self._generations) > 1 else []

    @property
    def is_small(self) -> bool:
        """Whether there may be more."""
        return len(self._generations) < MOST_GENERATIONS and len(self.streams) < MOST_STREAMS

    def listing(self) -> StreamsListed:
        """See `streamlease.registry.groups.Groups.listing`."""
        names = sorted(self.streams)
        ends = {stream: self.streams[stream] for stream in names if stream in self.sealed}
        before = {stream: self.order.get(stream, ()) for stream in names}
        return StreamsListed(dict.fromkeys(names, 0), {}, ends, before)


def alter(world: World) -> None:
    """``space alter --streams N``, also with the same N; now and then ``space seal``; spent ones leave."""
    space, truth = world.store.space, world.judge.truth
    oldest = space.oldest
    if oldest and all(s in truth.streams and truth.streams[s].finished for s in oldest):
        world.sometimes["a generation is dropped"] += 1
        world.kernel.note("store", "drops", *oldest)
        space.drop_oldest()
    elif world.random.random() < 0.1:
        world.sometimes["a space is sealed"] += 1
        world.kernel.note("store", "the space is sealed")
        space.seal()
    elif space.is_small:
        size = world.random.randint(1, 6)
        world.sometimes["a generation follows another"] += 1
        world.kernel.note("store", "a generation of", size, "streams follows")
        space.follow(size)


def granted(judge: Judge, stream: str) -> None:
    """[6] A stream is leased: all that it follows is consumed."""
    for former in judge.store.space.order.get(stream, ()):
        known = judge.truth.streams.get(former)
        over = known is None or known.finished or _is_at_end(judge, former, known.committed)
        judge.demand(over, stream, "is granted before", former, "is finished")
        judge.sometimes["a stream is granted after those that it follows"] += 1


def _is_at_end(judge: Judge, stream: str, committed: int) -> bool:
    """Whether nothing is left of a sealed stream: after a reset it is finished again, in the same commit."""
    return stream in judge.store.space.sealed and committed >= judge.store.streams[stream]


def finished(judge: Judge, streams: tuple[str, ...]) -> None:
    """[5] Streams count as consumed to their end: they are."""
    for stream in streams:
        space, at = judge.store.space, judge.truth.streams[stream].committed
        if stream in space.streams:
            judge.demand(stream in space.sealed, stream, "is not sealed, but finished")
            judge.demand(
                at >= space.streams[stream], stream, "is finished at", at, "of", space.streams[stream]
            )
        judge.sometimes["a stream is finished"] += 1


def forgotten(judge: Judge, streams: tuple[str, ...]) -> None:
    """[5] Only what is not there any more is forgotten."""
    for stream in streams:
        judge.demand(stream not in judge.store.streams, stream, "is forgotten, but there")


def delivered(judge: Judge, session: str, stream: str, lease_epoch: int) -> None:
    """[6] Messages come out under the present lease: all of what they follow came out before."""
    lease = judge.truth.streams.get(stream)
    if lease is None or lease.owner is None or lease.lease_epoch != lease_epoch:
        return
    for former in judge.store.space.order.get(stream, ()):
        end, passed = judge.store.streams.get(former, 0), judge.passed.get(former, 0)
        judge.demand(
            passed >= end, session, "reads", stream, "before", former, "is consumed:", passed, "of", end
        )
