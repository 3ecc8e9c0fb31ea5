"""What one gateway bears of channels. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from streamlease.protocol.errors import InvalidOption

LIMIT, MOST_LIMIT = 1000, 10_000
"""Messages that wait under one key, if nothing else is said, and at most."""

MOST_COMMANDS = 10_000
"""Of one batch."""


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """What one gateway bears of channels; it refuses nonsense when it is made.

    Raises:
        InvalidOption: a limit is below 1.
    """

    channels: int = 10_000
    """Of all clients."""
    client_channels: int = 1_000
    """Of one client: a token, or an address."""
    keys: int = 20_000
    """Of one client."""
    mailbox_bytes: int = 8 * 1024 * 1024
    """Messages of one client that wait, or were sent and are not acknowledged."""
    answer_messages: int = 1000
    answer_bytes: int = 1024 * 1024
    """An answer ends with the message that brings so much."""
    idle_seconds: float = 60.0
    """A client that has no poll open for so long is taken for dead."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InvalidOption(f"the limit {field.name} of channels is {value}: give more than 0")
