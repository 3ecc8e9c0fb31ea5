"""Defects planted into the product, each for the time of a ``with``: the rig must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from streamlease.agent.collections import collection
from streamlease.agent.collections.collection import Collection
from streamlease.agent.epochs.eager import EagerReader
from streamlease.hosts import snapshot_maker, trimming
from streamlease.protocol.epochs.antichains import is_open
from streamlease.protocol.epochs.counting import CountedFrontier
from streamlease.protocol.epochs.holding import HeldFrontier
from streamlease.streams.collections.core.multiset import Multiset
from streamlease.streams.collections.points import Point
from streamlease.streams.epochs import keeping, keys, writing
from streamlease.streams.epochs.boundary_reading import EpochsLost, FollowedSpace
from streamlease.streams.epochs.core import early
from streamlease.streams.epochs.core.boundaries import MovedPart
from streamlease.streams.epochs.core.early import EarlyEpochs
from streamlease.streams.epochs.core.fold import Fold, Owned
from streamlease.streams.epochs.core.late import MergedSpaces
from streamlease.streams.epochs.core.lines import AdvanceLine, LeaveLine
from streamlease.streams.epochs.epoch_publisher import EpochPublisher
from streamlease.streams.epochs.keeping import Keeper
from streamlease.streams.log.log import AsyncLog

PLANTED: dict[str, Callable[[], Any]] = {}


def planted(bug: Callable[[], Iterator[None]]) -> Callable[[], Any]:
    """Put it on the list."""
    made = contextmanager(bug)
    PLANTED[bug.__name__] = made
    return made


@planted
def a_keeper_forgets_what_it_has_moved() -> Iterator[None]:
    """A move is remembered under another id each time: one whose answer was lost is done again."""
    real, numbers = keeping._move_call, count()

    def forgetful(*args: Any) -> Any:
        with mock.patch.object(keys, "MOVER", f"!epochs-{next(numbers)}"):
            return real(*args)

    with mock.patch.object(keeping, "_move_call", forgetful):
        yield


@planted
def a_keeper_forgets_what_was_decided() -> Iterator[None]:
    """The next keeper does not look for a pending boundary."""
    real = keeping.parse_state

    def forgetful(space: str, reply: Any) -> Any:
        return real(space, reply)._replace(pending=None)

    with mock.patch.object(keeping, "parse_state", forgetful):
        yield


@planted
def a_boundary_is_recorded_before_it_is_moved() -> Iterator[None]:
    """What a crash between the two leaves is a boundary without its messages."""

    async def turn(self: Keeper) -> bool:
        if self._open is None:
            self._apply(await self._lines())
            if not self._fold.due:
                return False
            await self._decide()
        opened = self._open
        assert opened is not None
        opened.moved = []
        for owned in opened.complete:
            staged = owned.staged
            opened.moved.append(MovedPart(staged.epoch, owned.name, owned.inc, staged.stream, staged.rows))
            opened.ends[staged.stream] = self._ends.get(staged.stream, 0) + staged.rows
            self._ends[staged.stream] = opened.ends[staged.stream]
        await self._record(opened, opened.moved)
        self._open = None
        await self._move(opened)
        await self._drop(opened.dropped)
        return True

    with mock.patch.object(Keeper, "turn", turn), mock.patch.object(Keeper, "_ends", {}, create=True):
        yield


@planted
def who_gave_an_epoch_up_completes_it() -> Iterator[None]:
    """An epoch completes with its own publisher, whoever else holds it open."""
    real = Fold.take_completed

    def hasty(self: Fold, number: int) -> list[Owned]:
        found = real(self, number)
        mine = [one for one in self._waiting if not is_open(self._own(one.name), one.staged.epoch)]
        self._waiting = [one for one in self._waiting if one not in mine]
        return sorted([*found, *mine], key=lambda one: (one.staged.epoch, one.name, one.inc))

    def own(self: Fold, name: str) -> Any:
        return self.frontier_of(name) if name in self.present else ()

    with (
        mock.patch.object(Fold, "take_completed", hasty),
        mock.patch.object(Fold, "_own", own, create=True),
    ):
        yield


@planted
def epochs_are_a_set_and_not_counted() -> Iterator[None]:
    """Two publishers hold one epoch; when one of them gives it up, it completes."""
    real = CountedFrontier.update

    def as_a_set(self: CountedFrontier, steps: Any) -> Any:
        wanted = list(steps)
        for epoch, step in wanted:
            if step < 0:
                self._counts[epoch] = 1
        gone = {epoch for epoch, step in wanted if step < 0}
        came = {epoch for epoch, step in wanted if step > 0}
        return real(self, [*((epoch, -1) for epoch in gone), *((epoch, 1) for epoch in came)])

    with mock.patch.object(CountedFrontier, "update", as_a_set):
        yield


@planted
def a_newcomer_holds_everything() -> Iterator[None]:
    """A publisher that comes late is given epochs that are completed."""
    real = HeldFrontier.enter

    def generous(self: HeldFrontier, name: str) -> Any:
        lower, self.lower = self.lower, ((0,) * len(self.lower[0]),) if self.lower else self.lower
        try:
            return real(self, name)
        finally:
            if self._holders.keys() != {name}:
                self.lower = self._held.frontier if self._holders else lower

    with mock.patch.object(HeldFrontier, "enter", generous):
        yield


@planted
def a_range_is_not_named() -> Iterator[None]:
    """A line leaves out what was staged last."""
    real = writing.LineWriter.advance

    async def forgetful(self: Any, to: Any, parts: Any) -> int:
        return await real(self, to, [*parts][:-1])

    with mock.patch.object(writing.LineWriter, "advance", forgetful):
        yield


@planted
def a_reader_looks_at_the_newest_boundary_only() -> Iterator[None]:
    """Those that came meanwhile are passed over."""
    real = FollowedSpace.taken

    def hasty(self: FollowedSpace, replies: Any) -> Any:
        return real(self, replies)[-1:]

    with mock.patch.object(FollowedSpace, "taken", hasty):
        yield


# ------------------------------------------------------------ readers


@planted
def an_eager_reader_gets_what_was_active() -> Iterator[None]:
    """Who begins at the latest is handed out the rest of epochs that had begun."""
    with mock.patch.object(MergedSpaces, "passes", lambda self, space, epoch: True):
        yield


@planted
def an_abort_is_told_to_nobody() -> Iterator[None]:
    """What was handed out of a publisher that was given up stands for ever."""
    real = EarlyEpochs.boundary

    def silent(self: EarlyEpochs, space: str, bound: Any) -> Any:
        return real(self, space, bound)._replace(dropped=[])

    with mock.patch.object(EarlyEpochs, "boundary", silent):
        yield


@planted
def what_was_moved_unseen_is_left_out() -> Iterator[None]:
    """An eager reader hands out what it finds staged, and nothing else."""
    with mock.patch.object(early, "missing", lambda part, stretch, seen: []):
        yield


@planted
def what_was_seen_staged_comes_again() -> Iterator[None]:
    """An eager reader hands out all that a boundary moved."""
    with mock.patch.object(
        early, "missing", lambda part, stretch, seen: [stretch] if stretch.first < stretch.to else []
    ):
        yield


@planted
def a_frontier_is_told_ahead_of_what_it_completes() -> Iterator[None]:
    """An eager reader reads what it has not seen behind the frontier."""
    real = EagerReader._boundary

    async def hasty(self: EagerReader, space: Any, bound: Any) -> Any:
        told = [one async for one in real(self, space, bound)]
        for one in reversed(told):
            yield one

    with mock.patch.object(EagerReader, "_boundary", hasty):
        yield


@planted
def epochs_are_moved_the_other_way_round() -> Iterator[None]:
    """A stream has the later epochs of a boundary first."""
    real = Fold.take_completed
    with mock.patch.object(Fold, "take_completed", lambda self, number: real(self, number)[::-1]):
        yield


# ------------------------------------------------------------ collections


@planted
def the_diff_of_a_change_is_forgotten() -> Iterator[None]:
    """Behind the first message of an epoch."""
    real = EpochPublisher.submit

    async def forgetful(self: EpochPublisher, *args: Any, epoch: Any) -> Any:
        return await real(self, *(args if self._known is None else args[:5]), epoch=epoch)

    with mock.patch.object(EpochPublisher, "submit", forgetful):
        yield


@planted
def items_below_nothing_are_left_out() -> Iterator[None]:
    """A count below 0 is not shown."""

    def counts(self: Multiset) -> Any:
        return {item: count for item, count in self._counts.items() if count > 0}

    with mock.patch.object(Multiset, "counts", property(counts)):
        yield


@planted
def a_snapshot_counts_a_change_twice() -> Iterator[None]:
    """The last one of the snapshot that it was made of."""
    real = snapshot_maker.make_snapshot

    async def generous(redis: Any, space: Any, stream: Any, upto: int, former: Any) -> Any:
        return await real(redis, space, stream, upto, former._replace(upto=max(0, former.upto - 1)))

    with mock.patch.object(snapshot_maker, "make_snapshot", generous):
        yield


@planted
def a_snapshot_leaves_out_a_part_of_the_former_one() -> Iterator[None]:
    """It is made of all its entries but the last one."""
    real = snapshot_maker.make_snapshot

    async def careless(redis: Any, space: Any, stream: Any, upto: int, former: Any) -> Any:
        return await real(redis, space, stream, upto, former._replace(entries=max(0, former.entries - 1)))

    with mock.patch.object(snapshot_maker, "make_snapshot", careless):
        yield


@planted
def retention_passes_the_snapshot() -> Iterator[None]:
    """Changes are removed that are in none."""
    real = trimming.look_at_snapshots

    async def blind(redis: Any, streams: Any) -> Any:
        found, damaged = await real(redis, streams)
        return {stream: one._replace(upto=10**9) for stream, one in found.items()}, damaged

    with mock.patch.object(trimming, "look_at_snapshots", blind):
        yield


@planted
def a_collection_does_not_wait_for_boundaries() -> Iterator[None]:
    """The point is where the streams end."""
    real = collection.newest_point

    async def hasty(redis: Any, space: Any) -> Point:
        point = await real(redis, space)
        return Point(await AsyncLog(redis).next_offsets(space.streams()), point.bound)

    with mock.patch.object(collection, "newest_point", hasty):
        yield


@planted
def a_collection_is_further_than_it_was_read() -> Iterator[None]:
    """The positions lead past the changes that follow."""
    real = Collection._reached

    def hasty(self: Collection, space: Any, point: Any) -> None:
        further = {stream: end + (end > self._done.get(stream, 0)) for stream, end in point.ends.items()}
        real(self, space, point._replace(ends=further))

    with mock.patch.object(Collection, "_reached", hasty):
        yield


@planted
def a_collection_stands_still_over_skipped_epochs() -> Iterator[None]:
    """A boundary without data does not move its frontier."""
    real, ends = Collection._stands, WeakKeyDictionary[Collection, Any]()

    def still(self: Collection, space: Any, point: Any) -> None:
        if ends.get(self) != point.ends:
            ends[self] = point.ends
            real(self, space, point)

    with mock.patch.object(Collection, "_stands", still):
        yield


# ------------------------------------------------------------ a failover


@planted
def a_lost_boundary_is_passed_over() -> Iterator[None]:
    """Who has read what Redis lost is not told."""
    taken, losses = FollowedSpace.taken, FollowedSpace.losses

    def forgiving(self: FollowedSpace, replies: Any) -> Any:
        try:
            return taken(self, replies)
        except EpochsLost:
            self.number, self._last = max(0, self.number - 1), None
            return []

    def careless(self: FollowedSpace, bound: Any) -> Any:
        try:
            return losses(self, bound)
        except EpochsLost:
            self._ends.update(bound.ends)
            return []

    with (
        mock.patch.object(FollowedSpace, "taken", forgiving),
        mock.patch.object(FollowedSpace, "losses", careless),
    ):
        yield


@planted
def a_line_that_is_written_again_names_nothing() -> Iterator[None]:
    """What a publisher had given up before Redis lost its line is dropped in silence."""
    real = writing.LineWriter._again

    async def forgetful(self: Any, last: int, below: int | None = None) -> None:
        self._kept = [
            replace(one, parts=()) if isinstance(one, AdvanceLine | LeaveLine) else one for one in self._kept
        ]
        await real(self, last, below)

    with mock.patch.object(writing.LineWriter, "_again", forgetful):
        yield


@planted
def what_was_lost_while_staged_is_not_told() -> Iterator[None]:
    """A completed epoch lacks messages, and readers do not hear of it."""
    real = FollowedSpace.losses
    with mock.patch.object(FollowedSpace, "losses", lambda self, bound: real(self, bound) and []):
        yield


@planted
def incarnations_do_not_leap() -> Iterator[None]:
    """One that a failover took is issued again."""
    with mock.patch.multiple(writing, SHORTEST_LEAP=0, LONGEST_LEAP=1):
        yield


AFTER_A_FAILOVER = {
    "incarnations_do_not_leap",
    "a_lost_boundary_is_passed_over",
    "a_line_that_is_written_again_names_nothing",
    "what_was_lost_while_staged_is_not_told",
}
