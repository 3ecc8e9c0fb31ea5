"""One channel: what a client subscribed to at this gateway, its mailbox, and the poll that it has open."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from streamlease.gateway.channels.core.channel_limits import ChannelLimits
from streamlease.gateway.channels.core.client_mailbox import ChannelKey, ClientMailbox
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
        self.mailbox = ClientMailbox(limits)
        self.behind: dict[ChannelKey, None] = {}
        """The keys that have to catch up."""
        self.spaces: Counter[str] = Counter()
        """How many keys are live, by space."""
        self.catching_up: asyncio.Task[None] | None = None
        self.commanding = asyncio.Lock()
        """Batches of commands are taken one after the other."""
        self.trouble: StreamleaseError | None = None
        """Why nothing can be read now."""
        self.is_closed = False
        self.last_seen = asyncio.get_running_loop().time()
        self._catch_up = catch_up
        self._poll = 0
        """The number of the newest poll."""
        self._open = 0
        self._woken: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a poll is open."""
        return self._open > 0

    def wake(self) -> None:
        """There is something to answer."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

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
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        self._poll += 1
        mine = self._poll
        self.wake()  # the former poll is answered with nothing
        self._open += 1
        try:
            while not self.mailbox.has_news and self._poll == mine and not self.is_closed:
                left = deadline - loop.time()
                if left <= 0:
                    break
                self._woken = woken = loop.create_future()
                await asyncio.wait((woken, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    raise ClientGone
        finally:
            self._open -= 1
            self.last_seen = loop.time()
        return self._poll == mine and not self.is_closed
