"""Commands: what a client of a channel subscribes to, and what not any more, first in, first out. Pure.

Every batch is checked as a whole before anything of it is done. A command that was taken before, by its
number, does nothing, so a client that got no answer sends the same batch again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from streamlease.channels.core.channel_limits import LIMIT, MOST_COMMANDS, MOST_LIMIT
from streamlease.channels.core.channel_polls import (
    CommandNumber,
    Key,
    RefusedCommand,
    check_numbers,
    malformed,
)
from streamlease.gateway.core.cursors import CursorCodec
from streamlease.gateway.core.questions import Point, parse_since
from streamlease.protocol.errors import InvalidInput, StreamleaseError
from streamlease.protocol.topics import SHARED_PREFIXES, check_filter

Policy = Literal["lossy", "critical"]


class ChannelCommand(BaseModel):
    """A command: a key is subscribed to, or unsubscribed. The last one for a key wins."""

    model_config = ConfigDict(extra="forbid")

    command: CommandNumber
    """Its number, above that of the one before."""
    subscribe: Key | None = None
    unsubscribe: Key | None = None
    filter: StrictStr | None = None
    since: StrictStr | None = None
    """A cursor, a time with its zone, earliest or latest. Without it a subscription that is there goes on,
    and a new one begins with latest."""
    policy: Policy = "critical"
    limit: Annotated[StrictInt, Field(ge=1, le=MOST_LIMIT)] = LIMIT
    """Messages that wait for the client; what happens to more of them is the policy."""


_COMMANDS: TypeAdapter[list[ChannelCommand]] = TypeAdapter(
    Annotated[list[ChannelCommand], Field(max_length=MOST_COMMANDS)]
)


@dataclass(frozen=True, slots=True)
class SubscribeKey:
    """A key is subscribed to."""

    command: int
    key: str
    filter: str
    since: Point | None
    policy: Policy
    limit: int


@dataclass(frozen=True, slots=True)
class UnsubscribeKey:
    """A key is not subscribed to any more."""

    command: int
    key: str


CheckedCommand = SubscribeKey | UnsubscribeKey


def parse_commands(
    body: bytes, cursors: CursorCodec, allow: Callable[[str], None]
) -> Sequence[CheckedCommand]:
    """The commands of a batch, all of them or none.

    Args:
        allow: raises for a filter that the client may not read.

    Raises:
        InvalidInput: the body is no batch.
        RefusedCommand: one of them cannot be done.
    """
    try:
        given = _COMMANDS.validate_json(body)
    except ValidationError as error:
        raise malformed("a list of commands", error) from None
    check_numbers(one.command for one in given)
    return [_checked(one, cursors, allow) for one in given]


def _checked(given: ChannelCommand, cursors: CursorCodec, allow: Callable[[str], None]) -> CheckedCommand:
    key = given.subscribe if given.subscribe is not None else given.unsubscribe
    try:
        if key is None or (given.subscribe is not None and given.unsubscribe is not None):
            raise InvalidInput('give either "subscribe" or "unsubscribe", with a key')
        if given.subscribe is None:
            return UnsubscribeKey(given.command, key)
        if given.filter is None:
            raise InvalidInput('give "filter", a topic filter such as flights/#')
        if check_filter(given.filter).partition("/")[0] in SHARED_PREFIXES:
            raise InvalidInput(
                f"{ascii(given.filter)[:80]} names a group: give a filter without one, or become a member of "
                f"the group"
            )
        allow(given.filter)
        since = None if given.since is None else parse_since(given.since, cursors)
        return SubscribeKey(given.command, key, given.filter, since, given.policy, given.limit)
    except RefusedCommand:
        raise
    except StreamleaseError as error:
        raise RefusedCommand(error, given.command, key or "") from None
