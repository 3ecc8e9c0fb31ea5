"""What a space says about its epochs: how many dimensions, and when a silent publisher is lost. Pure.

`docs/decisions/0268-epochs-are-staged-and-kept.md` says what the settings are for.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, cast, get_args

from streamlease.protocol.epochs.order import checked_dimensions
from streamlease.protocol.errors import InvalidInput, InvalidOption, SpaceConflict
from streamlease.protocol.quantities import MOST, format_duration

OnLoss = Literal["abort", "wait"]
"""Whether the open epochs of a publisher that is lost are dropped at once, or wait for a person."""

TIMEOUT_MS = 30_000
LEAST_TIMEOUT_MS = 100
"""A publisher gives a sign of life every third of it."""


class HasEpochs(Protocol):
    """A space, or what is told of one."""

    @property
    def name(self) -> str: ...
    @property
    def epochs(self) -> int: ...
    @property
    def epochs_timeout_ms(self) -> int: ...
    @property
    def epochs_on_loss(self) -> OnLoss: ...


class EpochSettings(NamedTuple):
    """What somebody asks for; None: what is usual, or, of a space that exists, what that one has."""

    dimensions: int
    """0: the space has no epochs."""
    timeout_ms: int | None
    on_loss: OnLoss | None

    @classmethod
    def checked(cls, name: str, epochs: object, timeout: float | None, on_loss: str | None) -> EpochSettings:
        """Those of a space `name`, as they are asked for.

        Args:
            timeout: in seconds.

        Raises:
            InvalidOption: one is out of range, or there are no epochs that it could be for.
        """
        dimensions = 0 if type(epochs) is int and epochs == 0 else checked_dimensions(epochs)
        if not dimensions and (timeout is not None or on_loss is not None):
            what = "epochs_on_loss" if timeout is None else "epochs_timeout"
            raise InvalidOption(f"space {name} has no epochs, so {what} means nothing: give epochs too")
        if on_loss not in (None, *get_args(OnLoss)):
            raise InvalidOption(f"epochs_on_loss {ascii(on_loss)[:80]} is unknown: use 'abort' or 'wait'")
        return cls(dimensions, None if timeout is None else _milliseconds(timeout), cast("OnLoss", on_loss))

    def check_same(self, existing: HasEpochs) -> None:
        """Whether `existing` has them.

        Raises:
            SpaceConflict: it has others.
        """
        if self.dimensions == existing.epochs:
            timeout, on_loss = existing.epochs_timeout_ms, existing.epochs_on_loss
            if self.timeout_ms in (None, timeout) and self.on_loss in (None, on_loss):
                return
        raise SpaceConflict(
            f"space {existing.name} exists {epochs_of(existing)}: "
            f"use it as it is, choose another name, or delete it first"
        )


def _milliseconds(seconds: float) -> int:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not LEAST_TIMEOUT_MS <= seconds * 1000 <= MOST:  # nor is what is no number
        raise InvalidOption(
            f"epochs_timeout {ascii(seconds)[:80]} is no time in which a publisher can give a sign of life: "
            f"give {LEAST_TIMEOUT_MS / 1000} seconds or more"
        )
    return round(seconds * 1000)


def epochs_of(space: HasEpochs) -> str:
    """The epochs of a space, for people."""
    if not space.epochs:
        return "without epochs"
    dimensions = "1 dimension" if space.epochs == 1 else f"{space.epochs} dimensions"
    fate = "is aborted" if space.epochs_on_loss == "abort" else "waits for an operator"
    return (
        f"with epochs of {dimensions}; what a publisher has open {fate} "
        f"after {format_duration(space.epochs_timeout_ms)} of silence"
    )


def check_not_merged(name: str, dimensions: int, compact_after_ms: int | None) -> None:
    """Whether small entries of a space of such epochs may be merged at that age.

    Raises:
        InvalidOption: an entry is of one epoch, so entries of a space with epochs stay as they are.
    """
    if dimensions and compact_after_ms is not None:
        raise InvalidOption(f"space {name} has epochs, so its entries are never merged: leave the age out")


def check_keeps_streams(space: HasEpochs) -> None:
    """Whether `space` may get other streams at any moment.

    Raises:
        SpaceConflict: it has epochs, which must be at rest then.
    """
    if space.epochs:
        raise SpaceConflict(
            f"space {space.name} has epochs, so it gets other streams while it has no publishers: "
            f"use client.alter_space, or 'streamlease space alter {space.name}'"
        )


def check_plain(space: HasEpochs) -> None:
    """Whether messages may be appended to `space` as they come.

    Raises:
        InvalidInput: it has epochs.
    """
    if space.epochs:
        raise InvalidInput(
            f"space {space.name} has epochs, so its messages come from publishers with a name: use "
            f"client.epoch_publisher({space.name!r}, NAME), or streamlease publish --publisher NAME"
        )
