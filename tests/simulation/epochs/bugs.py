"""Defects planted into the product, each for the time of a ``with``: the rig must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest import mock

from streamlease.protocol.epochs.antichains import is_open
from streamlease.protocol.epochs.counting import CountedFrontier
from streamlease.protocol.epochs.holding import HeldFrontier
from streamlease.streams.epochs import keeping, keys, writing
from streamlease.streams.epochs.boundary_reading import FollowedSpace
from streamlease.streams.epochs.core.boundaries import MovedPart
from streamlease.streams.epochs.core.fold import Fold, Owned
from streamlease.streams.epochs.keeping import Keeper

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

    def forgetful(reply: Any) -> Any:
        return real(reply)._replace(pending=None)

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
