"""One channel: what a client subscribed to at this gateway, its mailbox, and the poll that it has open."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.channels.core.client_mailbox import ClientMailbox
from streamlease.channels.long_poll import LongPoll, PollEnd
from streamlease.gateway.channels.core.log_keys import ChannelKey
from streamlease.gateway.core.bearer import ClientRights
from streamlease.gateway.http_calls import ClientGone
from streamlease.protocol.errors import StreamleaseError


class Channel:
    """A client at this gateway, from its first request until it is dead.

    Args:
        caller: who may use it: the name of a token.
        client: who began it, for limits.
        gateway: the id of the gateway for this client; another one for each life of a channel, so a client
            that was forgotten subscribes again.
        catch_up: starts to read for it from the log.
    """

    def __init__(
        self,
        name: str,
        caller: str | None,
        client: str,
        gateway: str,
        rights: ClientRights,
        limits: ChannelLimits,
        catch_up: Callable[[Channel], None],
    ) -> None:
        self.name = name
        self.caller = caller
        self.client = client
        self.gateway = gateway
        self.rights = rights
        self.mailbox: ClientMailbox[ChannelKey] = ClientMailbox(limits)
        self.poll = LongPoll(lambda: self.mailbox.has_news)
        self.behind: dict[ChannelKey, None] = {}
        """The keys that have to catch up."""
        self.spaces: Counter[str] = Counter()
        """How many keys are live, by space."""
        self.catching_up: asyncio.Task[None] | None = None
        self.commanding = asyncio.Lock()
        """Batches of commands are taken one after the other."""
        self.trouble: StreamleaseError | None = None
        """Why nothing can be read now."""
        self._catch_up = catch_up

    @property
    def is_closed(self) -> bool:
        """Whether the client is forgotten."""
        return self.poll.is_closed

    def wake(self) -> None:
        """There is something to answer."""
        self.poll.wake()

    def fell_back(self, key: ChannelKey) -> None:
        """A key has to catch up."""
        self.behind[key] = None
        self.go_on()

    def go_on(self) -> None:
        """Catch up, if there is something to and room for it."""
        if not self.is_closed and self.catching_up is None and self.ready_behind():
            self._catch_up(self)

    def ready_behind(self) -> list[ChannelKey]:
        """The keys that have to catch up, and have half of their room: so that a reading is worth it."""
        if not self.mailbox.has_half_room():
            return []
        return [key for key in self.behind if key.waiting <= key.limit // 2]

    async def wait(self, seconds: float, gone: asyncio.Future[None]) -> bool:
        """Wait until there is something to say; whether this is still the newest poll.

        Raises:
            ClientGone: nobody waits for the answer.
        """
        ended = await self.poll.wait(seconds, gone)
        if ended is PollEnd.GONE:
            raise ClientGone
        return ended is PollEnd.ANSWER
