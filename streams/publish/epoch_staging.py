"""What makes a publisher stage what it is given, for a space with epochs, in place of appending it.

All else is as with any publisher: lanes, parts, rounds, retries, the buffer. An ordinary one refuses spaces
with epochs: what it appended would stand between whole epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from streamlease.protocol.errors import InvalidInput, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.epoch_fields import Stamp
from streamlease.streams.log.log import Append, Appended
from streamlease.streams.spaces.spaces import Space


class Incarnation(Protocol):
    """Who stages; known once it has entered."""

    @property
    def first_incarnation(self) -> int:
        """Under which the lanes begin."""


class Appends(Protocol):
    """Where parts are appended: the streams, or their staged logs."""

    async def append_many(
        self, appends: Sequence[Append], *, wait_seconds: float, evolve: bool
    ) -> list[Appended | StreamleaseError]:
        """See ``AsyncLog.append_many``."""


@dataclass(frozen=True, slots=True)
class EpochStaging:
    """How the parts of an epoch publisher are staged.

    Args:
        publisher: its id in the staged logs: its name.
        who: its incarnation.
        log: the staged logs.
        check: whether it may send to a space; raises ``InvalidInput`` if not.
        appended: told of each part that is staged: where from, and how many messages.
    """

    publisher: str
    who: Incarnation
    log: Appends
    check: Callable[[Space], None]
    appended: Callable[[Stamp, StreamId, int, int], None]


def check_own(own: Space, found: Space) -> None:
    """Whether a message that belongs to `found` may be sent by a publisher that entered `own`.

    Raises:
        InvalidInput: it may not.
    """
    if found.name != own.name:
        raise InvalidInput(
            f"a topic of space {found.name} cannot be sent to by a publisher of space {own.name}: "
            f"open a publisher of that space"
        )
    if found.born != own.born:
        raise InvalidInput(f"space {own.name} was made anew meanwhile: open the publisher again")
