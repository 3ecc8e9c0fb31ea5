"""Keys whose messages come from the log: live, or catching up from a cursor. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from streamlease.channels.core.client_mailbox import MailboxKey


class KeyState(Enum):
    """Where the messages of a key come from."""

    CATCHING_UP = "catching up"
    """From the log: its cursor says from where on."""
    LIVE = "live"
    """As they are published."""
    ENDED = "ended"


class KeyEvent(Enum):
    """What happens to a key."""

    CAUGHT_UP = "caught up"
    FELL_BACK = "fell back"
    """It had no room, or what follows its space was interrupted."""
    LEFT = "left"
    """Unsubscribed, replaced, or failed."""


KEY_TABLE = {
    (KeyState.CATCHING_UP, KeyEvent.CAUGHT_UP): KeyState.LIVE,
    (KeyState.LIVE, KeyEvent.FELL_BACK): KeyState.CATCHING_UP,
    (KeyState.CATCHING_UP, KeyEvent.LEFT): KeyState.ENDED,
    (KeyState.LIVE, KeyEvent.LEFT): KeyState.ENDED,
}
"""All that can happen."""


class ChannelKey(MailboxKey):
    """A subscription of a client to a topic filter.

    Args:
        command: the number of the command that began it.
        cursor: from which it has to catch up.
    """

    __slots__ = ("begun", "cursor", "filter", "spaces", "state")

    def __init__(
        self,
        name: str,
        command: int,
        filter: str,
        policy: Literal["lossy", "critical"],
        limit: int,
        cursor: str,
    ) -> None:
        super().__init__(name, command, policy, limit)
        self.filter = filter
        self.state = KeyState.CATCHING_UP
        self.begun = cursor
        """Where it began."""
        self.cursor: str | None = cursor
        """From where on the log has to be read; None: it is live."""
        self.spaces: tuple[str, ...] = ()
        """Those in which it is live."""

    def step(self, event: KeyEvent, cursor: str | None = None) -> None:
        """Something happens to it.

        Args:
            cursor: from where on it has to catch up then.
        """
        self.state = KEY_TABLE[self.state, event]
        self.cursor = cursor

    def leave(self) -> None:
        """See ``MailboxKey``."""
        self.step(KeyEvent.LEFT)
