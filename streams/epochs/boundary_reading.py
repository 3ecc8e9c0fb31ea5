"""Following the boundaries of a space, and finding out if Redis lost one that was read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from streamlease.protocol.errors import EpochsTruncated, StreamleaseError
from streamlease.streams.entries.epoch_fields import epoch_text
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.beginning import Before, Began
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.core.whole import begins
from streamlease.streams.epochs.stored import bounds_command, newest_command, parse_bounds, parse_newest
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import Command, Redis, ask

AT_ONCE = 100
"""Boundaries that one reply has."""


class EpochsLost(StreamleaseError):
    """Redis lost boundaries that were recorded, or what they moved, as in a failover."""


class PartsLost(MissingOffsets):
    """Messages of a completed epoch were lost while they were staged: it is complete without them."""

    def _loss(self) -> str:
        return f"Redis lost messages for stream {self.stream}, which ends at {self.asked} now, while staged"

    def _usual_remedy(self) -> str:
        return "what is left of the epoch follows"


class FollowedSpace:
    """The boundaries of one space, in order, each once.

    Args:
        upto: the last one that is wanted; None: all that ever come.
    """

    def __init__(self, space: str, began: Began | Before, upto: int | None = None) -> None:
        self.space = space
        self.number = began.number
        """The last one that was read."""
        self.upto = upto
        self.has_failed_over = False
        """Whether the last `taken` found that Redis goes on with other data, as after a failover."""
        self._lineage = ""
        self._last = began.bound
        self._ends = dict(began.ends)

    @property
    def at_end(self) -> bool:
        """Whether all that are wanted were read."""
        return self.upto is not None and self.number >= self.upto

    def commands(self) -> list[Command]:
        """Asks for what `taken` takes."""
        return [newest_command(self.space), bounds_command(self.space, max(0, self.number - 1), AT_ONCE)]

    def taken(self, replies: Sequence[Any]) -> list[Boundary]:
        """The next boundaries.

        Raises:
            EpochsLost: what was read before is not there any more, or is another one.
            EpochsTruncated: retention was faster.
            Unsupported: one cannot be read.
        """
        newest, lineage = parse_newest(self.space, replies[0])
        found = parse_bounds(self.space, replies[1])
        self.has_failed_over = bool(lineage) and self._lineage not in ("", lineage)
        self._lineage = lineage or self._lineage
        if self.number and found and found[0].number == self.number:
            if self._last is not None and not is_same(found[0], self._last):
                raise self._lost()
            del found[0]
        elif newest < self.number:
            raise self._lost()
        next = found[0].number if found else newest + 1
        if next > self.number + 1:
            raise EpochsTruncated(
                f"boundary {self.number + 1} of space {self.space} is not there any more: "
                f"retention was faster than this reader; read from the earliest"
            )
        if self.upto is not None:
            found = [one for one in found if one.number <= self.upto]
        if found:
            self._last, self.number = found[-1], found[-1].number
        return found

    def is_current(self, reply: Any) -> bool:
        """Whether Redis still has what was taken, by a later reply to `newest_command`."""
        newest, lineage = parse_newest(self.space, reply)
        return newest >= self.number and (not lineage or self._lineage in ("", lineage))

    async def check_current(self, redis: Redis) -> None:
        """Whether what was taken is still there: behind reading what it says, and before handing that on.

        Raises:
            EpochsLost: it is not.
            StoreUnavailable, StoreRefused.
        """
        (reply,) = await ask(redis, [newest_command(self.space)])
        if self.is_current(reply):
            return
        if self._last is not None:
            remedy = "begin again at kept positions, or at the earliest"
            await check_there(redis, Vouched.of(self.space, self._last), remedy)
        elif parse_newest(self.space, reply).boundary < self.number:
            raise self._lost()

    def losses(self, bound: Boundary) -> list[MissingOffsets]:
        """What Redis lost of the messages of a boundary, which is the next one; to be told ahead of it.

        Raises:
            EpochsLost: its messages stand where others were read.
        """
        found: list[MissingOffsets] = []
        for stream, begin in begins(bound).items():
            known = self._ends.get(stream, 0)
            if begin < known:
                raise self._lost()
            if begin > known:
                found.append(MissingOffsets(str(stream), known, begin))
            found += [MissingOffsets(str(stream), *gap) for gap in bound.gaps.get(stream, ())]
            self._ends[stream] = bound.ends[stream]
        for part in bound.moved:
            if part.lost:
                what = (
                    f"epoch {epoch_text(part.epoch)} of publisher {part.name} lacks {part.lost} of "
                    f"{part.lost + part.rows} messages; what is left of it follows"
                )
                end = bound.ends[part.stream]
                found.append(PartsLost(str(part.stream), end, end, what))
        return found

    def _lost(self) -> EpochsLost:
        return EpochsLost(
            f"boundary {self.number} of space {self.space} is not there as it was read: Redis lost it, as in "
            f"a failover, or the space was deleted; begin again at kept positions, or at the earliest"
        )


def is_same(one: Boundary, other: Boundary) -> bool:
    """Whether two documents are of one boundary, whoever recorded them."""
    return _said(one) == _said(other)


def _said(bound: Boundary) -> tuple[object, ...]:
    return bound.upto, bound.lower, bound.ends, bound.moved, bound.gaps


class Vouched(NamedTuple):
    """A boundary by which somebody went, to see later whether Redis has lost it; with it all before it."""

    space: str
    number: int
    mark: str
    """Of all that `is_same` compares."""

    @classmethod
    def of(cls, space: str, bound: Boundary) -> Vouched:
        """That of a boundary that was read."""
        ends = sorted((str(stream), end) for stream, end in bound.ends.items())
        moved = [[*one[:3], str(one.stream), *one[4:]] for one in bound.moved]
        gaps = [sorted((str(stream), gaps) for stream, gaps in bound.gaps.items())] if bound.gaps else []
        said = json.dumps([bound.upto, bound.lower, ends, moved, *gaps]).encode()
        return cls(space, bound.number, hashlib.blake2b(said, digest_size=8).hexdigest())


async def check_there(redis: Redis, vouched: Vouched, remedy: str) -> None:
    """Whether a boundary is still there as it was read; one that was forgotten passes.

    Raises:
        EpochsLost: Redis lost it, as in a failover; it ends in `remedy`.
        StoreUnavailable, StoreRefused.
    """
    space, number, _ = vouched
    asked: list[Command] = [
        newest_command(space),
        ("XRANGE", keys.bounds(space), f"{number}-0", f"{number}-0"),
    ]
    newest, found = await ask(redis, asked)
    there = next((one for one in parse_bounds(space, found) if one.number == number), None)
    is_forgotten = there is None and parse_newest(space, newest).boundary > number
    if not is_forgotten and (there is None or Vouched.of(space, there) != vouched):
        raise EpochsLost(
            f"boundary {number} of space {space} is not there as it was read: Redis lost it, as in a "
            f"failover, or the space was deleted; {remedy}"
        )
