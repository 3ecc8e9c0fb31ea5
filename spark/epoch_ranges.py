"""A part of the history by epochs: ``startingEpoch``, ``endingEpoch``, ``asOfEpoch`` of the batch reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamlease.agent.epochs.opening import check_epochs
from streamlease.protocol.epochs.order import Epoch, checked_epoch
from streamlease.protocol.errors import InvalidEpoch, InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.spark import option_values as read
from streamlease.streams.epochs.completed import Completed, completed, newest_ends
from streamlease.streams.redis.connection import BlockingRedis, run_blocking
from streamlease.streams.spaces.definitions import Space

_CONTRARY = (
    ("startingEpoch", "startingOffsets"),
    ("startingEpoch", "startingTimestamp"),
    ("endingEpoch", "endingOffsets"),
    ("endingEpoch", "endingTimestamp"),
    ("asOfEpoch", "endingOffsets"),
    ("asOfEpoch", "endingTimestamp"),
    ("asOfEpoch", "endingEpoch"),
)


@dataclass(frozen=True, slots=True)
class EpochRange:
    """Epochs from `first` to `last`, both inclusive; or all that was there when `at` was completed."""

    first: Epoch | None = None
    last: Epoch | None = None
    at: Epoch | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> EpochRange | None:
        """Read the options, by their names in lower case; None: no epochs are named.

        Raises:
            InvalidOption: one is no epoch, or contradicts another.
        """
        for one, other in _CONTRARY:
            if one.lower() in given and other.lower() in given:
                raise InvalidOption(f"options '{one}' and '{other}' contradict each other: give one")
        found = cls(*(read.epoch(name, given) for name in ("startingEpoch", "endingEpoch", "asOfEpoch")))
        if found == cls():
            return None
        if found.first is not None and found.last is not None and found.last < found.first:
            raise InvalidOption(
                f"option 'endingEpoch' is below 'startingEpoch' {_shown(found.first)}, so nothing would be "
                f"read: give at least that"
            )
        return found


def epoch_ends(
    redis: BlockingRedis, filter: str, spaces: Sequence[Space], wanted: EpochRange
) -> tuple[dict[StreamId, int], dict[StreamId, int]]:
    """Where the epochs begin in their streams, if there is a first one; and where they end.

    Raises:
        InvalidOption: a space has no epochs, or others; or an epoch is not completed yet.
        EpochsTruncated: nobody knows any more where one stood.
        StoreUnavailable, StoreRefused.
    """
    check_epochs(filter, list(spaces))
    starts: dict[StreamId, int] = {}
    ends: dict[StreamId, int] = {}
    for space in spaces:
        newest, _ = run_blocking(newest_ends(redis, space))
        if wanted.first is not None:
            began = _found(redis, space, "startingEpoch", wanted.first, alone=True)
            starts |= newest if began is None else began.before
        if wanted.at is not None:
            ends |= _done(redis, space, "asOfEpoch", wanted.at).ends
        elif wanted.last is not None:
            ends |= _done(redis, space, "endingEpoch", wanted.last, alone=True).behind
        else:
            ends |= newest
    return starts, ends


def _done(redis: BlockingRedis, space: Space, name: str, epoch: Epoch, *, alone: bool = False) -> Completed:
    found = _found(redis, space, name, epoch, alone=alone)
    if found is None:
        _, lower = run_blocking(newest_ends(redis, space))
        raise InvalidOption(
            f"option '{name}' is {_shown(epoch)}, which is not completed in space {space.name}: only what is "
            f"not at or above {' or '.join(map(_shown, lower))} is; try again later, or name such an epoch"
        )
    return found


def _found(
    redis: BlockingRedis, space: Space, name: str, epoch: Epoch, *, alone: bool = False
) -> Completed | None:
    if alone and space.epochs > 1:
        raise InvalidOption(
            f"option '{name}' needs epochs that are integers, which follow each other in a stream, and "
            f"those of space {space.name} have {space.epochs} dimensions: use 'asOfEpoch'"
        )
    try:
        checked_epoch(epoch if space.epochs > 1 or len(epoch) > 1 else epoch[0], space.epochs)
    except InvalidEpoch as error:
        raise InvalidOption(f"option '{name}': {error}") from None
    return run_blocking(completed(redis, space, epoch))


def _shown(epoch: Epoch) -> str:
    return str(epoch[0]) if len(epoch) == 1 else str(list(epoch))
