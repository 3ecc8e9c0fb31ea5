"""At which gateway a channel is: requests that come to another one are passed on.

So a load balancer may send them in turns.

::

    request --> is the channel here? --yes--> answered here
                      | no
                the record in Redis --names a gateway that lives--> passed on, and its answer back
                      | nobody, or one that is dead, cannot be reached, or knows nothing of the client
                the record names this one --> the channel begins here

A client sees no more of it than the id of the gateway that has its channel. Where gateways do not reach each
other, the channel would move with the requests, and its client subscribe again each time: there a load
balancer has to send all of them to one gateway.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from types import TracebackType
from weakref import WeakValueDictionary

from streamlease.gateway.between.gateway_lines import PassedAnswer, Unreachable
from streamlease.gateway.between.gateway_presence import GatewayPresence
from streamlease.gateway.between.passing_on import FORWARDED, MISDIRECTED, PassingOn
from streamlease.gateway.channels.all_channels import Channels
from streamlease.gateway.channels.channel import Channel
from streamlease.gateway.http_calls import HttpCall
from streamlease.gateway.members.core.member_refusals import Misdirected
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.seldom import Seldom
from streamlease.registry.members.channel_homes import ChannelHome, ChannelHomes, ChannelName
from streamlease.registry.members.member_records import ServedElsewhere
from streamlease.streams.tasks import Supervisor

KEPT_MS = 120_000
KEEP_SECONDS = 20.0
"""How often the records of the channels that are here are kept."""

TOGETHER = 1000
ATTEMPTS = 5

_logger = logging.getLogger(__name__)


class ChannelPlaces:
    """Finds the channels of clients; a context manager within that of `channels`."""

    def __init__(
        self, channels: Channels, homes: ChannelHomes, presence: GatewayPresence, passing: PassingOn
    ) -> None:
        self._channels = channels
        self._homes = homes
        self._presence = presence
        self._passing = passing
        self._here: dict[ChannelName, tuple[Channel, ChannelHome]] = {}
        self._settling: WeakValueDictionary[ChannelName, asyncio.Lock] = WeakValueDictionary()
        """While it is found out where a channel is, who else asks for it waits."""
        self._tasks = Supervisor("channels", lambda _, error: _logger.error("gateway: channels: %s", error))
        self._seldom = Seldom(_logger)

    async def __aenter__(self) -> ChannelPlaces:
        self._tasks.start("keep records", self._keep(), endless=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()

    async def find(
        self,
        call: HttpCall,
        name: str,
        body: bytes,
        gone: asyncio.Future[None] | None = None,
        told: str | None = None,
    ) -> Channel | PassedAnswer:
        """The channel of a client, which begins here if it is nowhere; or the answer of who has it.

        Args:
            body: of the request.
            gone: done when nobody waits for the answer any more.
            told: the id of the gateway from which the client had its last answer.

        Raises:
            TooMuch: there are too many. Misdirected: it was passed on, and the channel is not here.
            ServedElsewhere: it moves all the time.
            ClientGone, StoreUnavailable, StoreRefused, Indefinite.
        """
        channel = ChannelName(call.rights.name, name)
        for _ in range(ATTEMPTS):
            home = await self._settled(call, channel, told)
            if isinstance(home, Channel):
                return home
            passed = await self._passed(call, home, body, gone)
            if passed is not None:
                return passed
            async with self._alone(channel):
                taken = self._got(call, channel) or await self._taken(call, channel, home)
            if taken is not None:
                return taken
        raise ServedElsewhere("the channel moves from gateway to gateway now: repeat the request")

    async def elsewhere(self, call: HttpCall, name: str) -> PassedAnswer | None:
        """The answer of the gateway that has a channel, if another one has it; nothing begins by that.

        Raises:
            Misdirected, StoreUnavailable, StoreRefused.
        """
        channel = ChannelName(call.rights.name, name)
        async with self._alone(channel):
            if self._channels.get(name, call.rights) is not None or call.header(FORWARDED) is not None:
                return None
            home = await self._homes.read(channel)
        return None if home is None else await self._passed(call, home, b"", None)

    # ------------------------------------------------------------ inside

    def _alone(self, channel: ChannelName) -> asyncio.Lock:
        return self._settling.setdefault(channel, asyncio.Lock())

    async def _settled(self, call: HttpCall, channel: ChannelName, told: str | None) -> Channel | ChannelHome:
        async with self._alone(channel):
            found = self._got(call, channel)
            if found is not None and told in (None, found.gateway):
                return found
            if call.header(FORWARDED) is not None:
                if found is not None:
                    return found
                raise Misdirected("this gateway does not have the channel: the one that asks begins it anew")
            home = await self._homes.read(channel)
            if home is not None and home.gateway != self._presence.id:
                if found is not None:  # it was taken over, as this gateway could not be reached
                    self._channels.close(found)
                return home
            if found is not None:
                return found
            taken = await self._taken(call, channel, home)
            return taken or await self._homes.read(channel) or ChannelHome("", "")

    def _got(self, call: HttpCall, channel: ChannelName) -> Channel | None:
        if self._channels.get(channel.name, call.rights) is None:
            return None
        return self._channels.of(channel.name, call.rights, call.client)

    async def _taken(self, call: HttpCall, channel: ChannelName, seen: ChannelHome | None) -> Channel | None:
        """The channel begins here, unless another gateway was faster."""
        await self._presence.show()
        home = ChannelHome(self._presence.id, self._passing.address(call))
        if not await self._homes.take(channel, seen, home, KEPT_MS):
            return None
        begun = self._channels.of(channel.name, call.rights, call.client)
        self._here[channel] = begun, home
        return begun

    async def _passed(
        self, call: HttpCall, home: ChannelHome, body: bytes, gone: asyncio.Future[None] | None
    ) -> PassedAnswer | None:
        """None: that gateway does not answer, or has no such channel."""
        try:
            passed = await self._passing.ask(call, home.gateway, home.address, body, gone)
        except Unreachable as error:  # whatever is asked of a channel may be asked again
            _logger.info("gateway: %s does not answer for a channel: %s", home.gateway, error)
            return None
        return None if passed is None or passed.ends or passed.status == MISDIRECTED else passed

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            self._here = {name: one for name, one in self._here.items() if not one[0].is_closed}
            try:
                await self.keep_records()
            except StreamleaseError as error:
                self._seldom.warning("gateway: the records of channels are kept later: %s", error)

    async def keep_records(self) -> None:
        """Keep the records of what is here, and close what another gateway has by now.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite.
        """
        here = iter([*self._here.items()])
        while some := dict(islice(here, TOGETHER)):
            homes = {name: home for name, (_, home) in some.items()}
            for name in await self._homes.keep(homes, KEPT_MS):
                self._channels.close(some[name][0])
