"""The fold of the lines of a space: who holds which epochs, what they gave up, and what is complete. Pure.

It is a function of the lines, so a keeper that takes over, a publisher that enters, and whoever looks come to
the same. What is complete is taken at boundaries only: a boundary is the number of the line up to which it
folds.

A line of an incarnation that is not the present one of its name changes nothing: the script that writes lines
refuses those, so it was written before the newer one entered, and came to nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, assert_never

from streamlease.protocol.epochs.antichains import Antichain, is_open, maximal
from streamlease.protocol.epochs.holding import HeldFrontier
from streamlease.protocol.epochs.order import Epoch, bottom
from streamlease.protocol.errors import NotCapable, Unsupported
from streamlease.streams.epochs.core.lines import (
    AdvanceLine,
    EnterLine,
    LeaveLine,
    Line,
    LoseLine,
    SealLine,
    StagedPart,
    frontier_of,
    load_staged,
)


class Owned(NamedTuple):
    """What was staged, and by whom."""

    staged: StagedPart
    name: str
    inc: int


class Dropped(NamedTuple):
    """What an incarnation staged at or above an element of `frontier` is dropped: it had not given it up."""

    name: str
    inc: int
    frontier: Antichain
    lost: bool
    """The publisher itself is given up; else a newer incarnation goes on, and sends it again."""


class Present(NamedTuple):
    """A publisher that is there."""

    inc: int
    host: str


class Fold:
    """What the lines up to `line` come to.

    Args:
        dimensions: of the epochs of the space.
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.line = 0
        """The number of the last line."""
        self.boundary = 0
        """The number of the last boundary."""
        self.sealed = False
        self.upper: Antichain = ()
        """The maximal epochs of which something was given up: they had messages, or were announced to."""
        self.present: dict[str, Present] = {}
        self._held = HeldFrontier(self.bottom)
        self._waiting: list[Owned] = []
        self.dropped: list[Dropped] = []
        """What is to be dropped since the last boundary."""
        self._taken_at: Antichain = self.lower
        """The lower frontier of the last boundary."""

    @property
    def lower(self) -> Antichain:
        """The lower frontier, merged over all publishers; empty in a sealed space that nobody holds open."""
        return () if self.sealed and not self.present else self._held.lower

    @property
    def bottom(self) -> Antichain:
        """The lower frontier of a space in which nothing is completed."""
        return (bottom(self.dimensions),)

    @property
    def waiting(self) -> list[Owned]:
        """What was given up, and is not complete or not moved."""
        return self._waiting

    def frontier_of(self, name: str) -> Antichain:
        """What the publisher `name` holds.

        Raises:
            KeyError: it is not there.
        """
        return self._held.holders[name]

    def holding_back(self) -> dict[str, Antichain]:
        """Who holds the frontier where it is, and by which epochs."""
        return self._held.holding_back()

    def apply(self, number: int, line: Line) -> None:
        """One more line.

        Raises:
            ValueError: it is not the next one.
        """
        if number != self.line + 1:
            raise ValueError(f"line {number} does not follow line {self.line}")
        self.line = number
        match line:
            case EnterLine(name, inc, host):
                self._enter(name, inc, host)
            case AdvanceLine(name, inc, to, parts):
                if self._is_present(name, inc):
                    self._advance(name, inc, to, parts)
            case LeaveLine(name, inc, upper, parts):
                if self._is_present(name, inc):
                    self._take(name, inc, parts)
                    self._held.leave(name, maximal([*upper, *(part.epoch for part in parts)]))
                    del self.present[name]
            case LoseLine(name, inc):
                if self._is_present(name, inc):
                    self.dropped.append(Dropped(name, inc, self._held.holders[name], lost=True))
                    self._held.lose(name)
                    del self.present[name]
            case SealLine():
                self.sealed = True
            case _:
                assert_never(line)

    def take_completed(self, number: int) -> list[Owned]:
        """What boundary `number` moves: all that is complete, in linear order of the epochs, then by name.

        Raises:
            ValueError: it is not the next boundary.
        """
        if number != self.boundary + 1:
            raise ValueError(f"boundary {number} does not follow boundary {self.boundary}")
        self.boundary = number
        self.dropped = []
        lower = self._taken_at = self.lower
        complete = [one for one in self._waiting if not is_open(lower, one.staged.epoch)]
        self._waiting = [one for one in self._waiting if is_open(lower, one.staged.epoch)]
        return sorted(complete, key=_in_order)

    @property
    def due(self) -> bool:
        """Whether a boundary would say something new: nothing completes while the frontier stays."""
        return bool(self.dropped) or self.lower != self._taken_at

    # ------------------------------------------------------------ inside

    def _is_present(self, name: str, inc: int) -> bool:
        there = self.present.get(name)
        return there is not None and there.inc == inc

    def _enter(self, name: str, inc: int, host: str) -> None:
        there = self.present.get(name)
        if there is not None and inc <= there.inc:
            return
        if there is None:
            self._held.enter(name)
        else:
            self.dropped.append(Dropped(name, there.inc, self._held.holders[name], lost=False))
        self.present[name] = Present(inc, host)

    def _advance(self, name: str, inc: int, to: Antichain, parts: Iterable[StagedPart]) -> None:
        try:
            self._held.advance(name, to)
        except NotCapable:
            return  # its publisher checks before it writes; a line that nobody should have written is none
        self._take(name, inc, parts)

    def _take(self, name: str, inc: int, parts: Iterable[StagedPart]) -> None:
        for part in parts:
            self._waiting.append(Owned(part, name, inc))
        self.upper = maximal([*self.upper, *{part.epoch for part in parts}])

    # ------------------------------------------------------------ snapshots

    def dump(self) -> str:
        """The state as JSON; right after a boundary was taken, and its drops are done."""
        held = self._held.holders
        return json.dumps(
            {
                "line": self.line,
                "boundary": self.boundary,
                "sealed": self.sealed,
                "lower": self._held.lower,
                "finished": self._held.finished,
                "upper": self.upper,
                "present": {
                    name: [one.inc, one.host, held[name]] for name, one in sorted(self.present.items())
                },
                "waiting": [
                    [one.staged.epoch, str(one.staged.stream), one.staged.ranges, one.name, one.inc]
                    for one in self._waiting
                ],
            },
            separators=(",", ":"),
        )

    @classmethod
    def load(cls, dimensions: int, text: bytes | str) -> Fold:
        """The state that `dump` wrote.

        Raises:
            Unsupported: it is damaged, or of another version.
        """
        try:
            document = json.loads(text)
            made = cls(dimensions)
            made.line, made.boundary = int(document["line"]), int(document["boundary"])
            made.sealed, made.upper = bool(document["sealed"]), frontier_of(document["upper"])
            present: dict[str, Any] = document["present"]
            made.present = {name: Present(int(inc), str(host)) for name, (inc, host, _) in present.items()}
            made._held = HeldFrontier(
                frontier_of(document["lower"]),
                {name: frontier_of(held) for name, (_, _, held) in present.items()},
                frontier_of(document["finished"]),
            )
            made._waiting = [
                Owned(load_staged((epoch, stream, ranges)), str(name), int(inc))
                for epoch, stream, ranges, name, inc in document["waiting"]
            ]
            made._taken_at = made.lower
        except (KeyError, TypeError, ValueError) as error:
            raise Unsupported(
                f"a snapshot of epochs cannot be read ({type(error).__name__}): "
                f"all processes must run the same version"
            ) from None
        return made


def _in_order(one: Owned) -> tuple[Epoch, str, int, str]:
    return one.staged.epoch, one.name, one.inc, str(one.staged.stream)
