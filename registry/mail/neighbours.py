"""Letters between owners of mailboxes on one event loop: they go from hand to hand, not through Redis.

So an embedded leader and the consumers beside it need Redis for what must be durable, and for nothing else.
To the protocol it is a mailbox like any other: letters come in order. A letter is taken in the next turn of
the event loop, so nobody is called in the middle of what he does, and no more of them wait than one turn
posts. A leader takes itself what is for it: that does not pass through its host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import NamedTuple

from streamlease.registry.mail.mailbox import Letter
from streamlease.streams.tasks import Supervisor


class Taker(NamedTuple):
    """Who takes letters, and what it is about."""

    take: Callable[[Letter], object]
    tasks: Supervisor
    """Of the owner; it is told of a defect."""
    context: Context


class Neighbours:
    """Who lives on this event loop, and shares what is made of this class."""

    def __init__(self) -> None:
        self.takers: dict[tuple[str, str], Taker] = {}
        """By owner and group; with no group stands who takes all else."""

    def move_in(
        self, owner: str, take: Callable[[Letter], object], tasks: Supervisor, group: str = ""
    ) -> None:
        """From now on, letters of neighbours for `owner` go to `take`.

        Args:
            take: called in the next turn of the event loop, whatever the sender is about.
            tasks: told if it raises.
            group: only those for its leader.
        """
        self.takers[owner, group] = Taker(take, tasks, Context())

    def move_out(self, owner: str, group: str = "") -> None:
        """These letters go where they went before."""
        self.takers.pop((owner, group), None)
