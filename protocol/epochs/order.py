"""One epoch and another: the product order, and what is acceptable from outside."""

from __future__ import annotations

from collections.abc import Iterable
from operator import le

from streamlease.protocol.errors import InvalidEpoch, InvalidOption

Epoch = tuple[int, ...]
"""D integers, each 0 to `HIGHEST_EPOCH`."""

HIGHEST_EPOCH = (1 << 63) - 1
"""Epochs stand in columns of signed 64-bit integers."""

MOST_DIMENSIONS = 8
"""A frontier can have very many elements in more dimensions, and nobody has asked for them."""


def checked_dimensions(value: object) -> int:
    """`value`, if it is a number of dimensions.

    Raises:
        InvalidOption: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_DIMENSIONS:
        raise InvalidOption(f"epochs of {ascii(value)[:80]} dimensions: give 1 to {MOST_DIMENSIONS}")
    return value


def checked_epoch(value: object, dimensions: int) -> Epoch:
    """An epoch from outside: an integer where there is one dimension, else as many integers as there are.

    Raises:
        InvalidEpoch: it is no epoch of so many dimensions.
    """
    parts = tuple(value) if isinstance(value, list | tuple) else (value,)
    if len(parts) != dimensions:
        wanted = (
            "one integer, such as 0"
            if dimensions == 1
            else f"{dimensions} integers, such as {bottom(dimensions)}"
        )
        raise InvalidEpoch(
            f"epoch {_shown(value)} has {len(parts)} dimension{'s' * (len(parts) != 1)}, and the space "
            f"{dimensions}: give {wanted}"
        )
    for part in parts:
        if not isinstance(part, int) or isinstance(part, bool) or not 0 <= part <= HIGHEST_EPOCH:
            raise InvalidEpoch(f"epoch {_shown(value)}: give integers from 0 to {HIGHEST_EPOCH}")
    return parts


def bottom(dimensions: int) -> Epoch:
    """The epoch that is at most every other."""
    return (0,) * dimensions


def at_most(one: Epoch, other: Epoch) -> bool:
    """Whether `one` is at most `other`, in each dimension."""
    return all(map(le, one, other))


def join(one: Epoch, other: Epoch) -> Epoch:
    """The least epoch that both are at most of."""
    return tuple(map(max, one, other))


def in_linear_order(epochs: Iterable[Epoch]) -> list[Epoch]:
    """`epochs` in an order in which none stands behind one that it is at most of.

    By dimensions, the first one first: whatever is at most an epoch in each dimension is not behind it there.
    """
    return sorted(epochs)


def _shown(value: object) -> str:
    return ascii(value)[:80]
