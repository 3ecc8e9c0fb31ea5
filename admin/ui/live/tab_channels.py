"""The channels of those who look at one board: a tab's keys, its mailbox, and the poll that it has open.

A look of the board wakes the polls that are open; with none open, the board rests. A tab that has no poll
open for a while is forgotten, and when it comes again sees another id, and subscribes to its keys anew.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr, TypeAdapter, ValidationError

from streamlease.admin.ui.board import Board
from streamlease.admin.ui.live.console_states import BoardStates
from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.channels.core.channel_polls import CommandNumber, RefusedCommand, check_numbers, malformed
from streamlease.channels.core.client_mailbox import ClientMailbox, MailboxKey
from streamlease.channels.long_poll import LongPoll
from streamlease.protocol.errors import InvalidInput, InvalidOption, StreamleaseError
from streamlease.protocol.topics import MAX_BYTES

TAB_LIMITS = ChannelLimits(channels=2000, client_channels=200, keys=32, answer_bytes=8 * 1024 * 1024)
MOST_COMMANDS = 100
"""Of one batch."""

ConsoleKey = Annotated[StrictStr, Field(min_length=1, max_length=MAX_BYTES + 20)]


class TooManyTabs(StreamleaseError):
    """There are more channels than the console bears."""

    retriable = True


class StateCommand(BaseModel):
    """A command: a key is subscribed to, or unsubscribed. The last one for a key wins."""

    model_config = ConfigDict(extra="forbid")

    command: CommandNumber
    """Its number, above that of the one before."""
    subscribe: ConsoleKey | None = None
    unsubscribe: ConsoleKey | None = None
    policy: Literal["state"] = "state"


_COMMANDS: TypeAdapter[list[StateCommand]] = TypeAdapter(
    Annotated[list[StateCommand], Field(max_length=MOST_COMMANDS)]
)


def parse_state_commands(body: bytes) -> Sequence[StateCommand]:
    """The commands of a batch.

    Raises:
        InvalidInput: the body is no batch.
        RefusedCommand: one of them says nothing, or two things.
    """
    try:
        given = _COMMANDS.validate_json(body)
    except ValidationError as error:
        raise malformed("a list of commands", error) from None
    check_numbers(one.command for one in given)
    for one in given:
        if (one.subscribe is None) == (one.unsubscribe is None):
            why = InvalidInput('give either "subscribe" or "unsubscribe", with a key')
            raise RefusedCommand(why, one.command, one.subscribe or "")
    return given


class TabChannel:
    """One tab, from its first request until it is forgotten.

    Args:
        who: may use it.
        client: who began it, for limits.
        gateway: the id of this life of it.
    """

    def __init__(self, name: str, who: str, client: str, gateway: str, limits: ChannelLimits) -> None:
        self.name = name
        self.who = who
        self.client = client
        self.gateway = gateway
        self.mailbox: ClientMailbox[MailboxKey] = ClientMailbox(limits)
        self.poll = LongPoll(lambda: self.mailbox.has_news)


class TabChannels:
    """All that look at one board."""

    def __init__(self, board: Board, limits: ChannelLimits = TAB_LIMITS) -> None:
        self._limits = limits
        self._states = BoardStates(board)
        self._channels: dict[tuple[str, str], TabChannel] = {}
        self._of_client: Counter[str] = Counter()
        self._id = secrets.token_hex(8)
        self._begun = 0
        board.listeners.append(self._looked)

    def __len__(self) -> int:
        return len(self._channels)

    def of(self, name: str, who: str, client: str) -> TabChannel:
        """The channel of a tab, which begins if it has none.

        Raises:
            TooManyTabs: there are too many.
        """
        channel = self._channels.get((who, name))
        if channel is None:
            if len(self._channels) >= self._limits.channels:
                raise TooManyTabs(f"the console has {self._limits.channels} open tabs: close some")
            if self._of_client[client] >= self._limits.client_channels:
                raise TooManyTabs(f"you have {self._limits.client_channels} open tabs: close some")
            self._begun += 1
            self._of_client[client] += 1
            channel = TabChannel(name, who, client, f"{self._id}-{self._begun}", self._limits)
            self._channels[who, name] = channel
        channel.poll.last_seen = asyncio.get_running_loop().time()
        return channel

    def get(self, name: str, who: str) -> TabChannel | None:
        """The channel of a tab, if it has one."""
        return self._channels.get((who, name))

    def close(self, channel: TabChannel) -> None:
        """Forget a tab; its poll is answered with nothing."""
        if channel.poll.is_closed:
            return
        channel.poll.close()
        del self._channels[channel.who, channel.name]
        self._of_client[channel.client] -= 1
        if not self._of_client[channel.client]:
            del self._of_client[channel.client]

    def command(self, channel: TabChannel, commands: Sequence[StateCommand]) -> list[MailboxKey]:
        """Do what was not done before, all of it or nothing; the keys that were subscribed to, and are.

        Raises:
            RefusedCommand: there is no such key, or there would be too many.
        """
        mailbox = channel.mailbox
        new = [one for one in commands if one.command > mailbox.command]
        names = set(mailbox.keys)
        for one in new:
            names.discard(one.unsubscribe or "")
            if one.subscribe is not None:
                names.add(one.subscribe)
                try:
                    self._states.of(one.subscribe)
                    if len(names) > (most := self._limits.keys):
                        raise InvalidOption(f"a tab has at most {most} keys: unsubscribe from some")
                except StreamleaseError as why:
                    raise RefusedCommand(why, one.command, one.subscribe) from None
        for one in new:
            mailbox.command = one.command
            if one.subscribe is not None:
                key = MailboxKey(one.subscribe, one.command, "state", 1)
                mailbox.subscribe(key, self._states.of(one.subscribe))
            else:
                mailbox.unsubscribe(one.unsubscribe or "")
        channel.poll.wake()
        asked = dict.fromkeys(one.subscribe for one in commands if one.subscribe is not None)
        return [mailbox.keys[name] for name in asked if name in mailbox.keys]

    def forget_dead(self, now: float) -> None:
        """Forget the tabs that are dead at `now`, by the clock of the event loop."""
        for channel in [*self._channels.values()]:
            if not channel.poll.is_open and now - channel.poll.last_seen > self._limits.idle_seconds:
                self.close(channel)

    async def look_for_dead(self) -> None:
        """Forget dead tabs, as long as this runs."""
        while True:
            await asyncio.sleep(self._limits.idle_seconds / 4)
            self.forget_dead(asyncio.get_running_loop().time())

    def _looked(self) -> None:
        for channel in self._channels.values():
            channel.poll.wake()
