"""All channels of a gateway: they begin with a client's first request, and end when it is dead.

::

    commands --> keys --behind--> catching up (the log) --> live (the feeds)
                                        |                       |
                                        +------> mailbox <------+
                                                    |
    poll ------------------ acknowledged <----------+----------> an answer

A client that has no poll open for a while is forgotten, with all that waits for it. When it comes again, here
or at another gateway, it sees another id, and subscribes again from its cursors: the log has what it missed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType

from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.channels.core.channel_polls import RefusedCommand
from streamlease.gateway.channels.catching_up import CatchingUp
from streamlease.gateway.channels.channel import Channel
from streamlease.gateway.channels.core.channel_commands import (
    CheckedCommand,
    SubscribeKey,
)
from streamlease.gateway.channels.core.log_keys import ChannelKey
from streamlease.gateway.channels.live_keys import LiveKey, LiveKeys
from streamlease.gateway.channels.metrics import CHANNEL_COUNTS, DEAD, DROPPED
from streamlease.gateway.core.bearer import ClientRights, NotAllowed
from streamlease.gateway.core.cursors import Cursor, CursorCodec
from streamlease.gateway.core.questions import Point
from streamlease.gateway.core.rates import TooMuch
from streamlease.gateway.feeds import Feeds
from streamlease.gateway.problems import problem
from streamlease.gateway.since_reading import SinceReading
from streamlease.protocol.errors import InvalidOption, StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.streams.tasks import Supervisor

LOOK_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class Channels:
    """The channels of one gateway; a context manager within that of `feeds`."""

    def __init__(
        self, feeds: Feeds, reading: SinceReading, cursors: CursorCodec, limits: ChannelLimits | None = None
    ) -> None:
        self._limits = limits or ChannelLimits()
        self.feeds = feeds
        self._reading = reading
        self._cursors = cursors
        self.live = LiveKeys(feeds, cursors)
        feeds.tell(self.live)
        self._catching_up = CatchingUp(feeds, reading, self.live, cursors)
        self._channels: dict[tuple[str | None, str], Channel] = {}
        self._of_client: Counter[str] = Counter()
        self._id = secrets.token_hex(8)
        self._begun = 0
        self._tasks = Supervisor("channels", self._failed)

    async def __aenter__(self) -> Channels:
        self._tasks.start("looking for dead clients", self._look(), endless=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in [*self._channels.values()]:
            self.close(channel)
        await self._tasks.close()

    def __len__(self) -> int:
        return len(self._channels)

    @property
    def everybody(self) -> Sequence[Channel]:
        """All that are open."""
        return [*self._channels.values()]

    def get(self, name: str, rights: ClientRights) -> Channel | None:
        """The channel of a client, if it has one."""
        return self._channels.get((rights.name, name))

    def of(self, name: str, rights: ClientRights, client: str) -> Channel:
        """The channel of a client, which begins if it has none.

        Args:
            client: who that is, for limits.

        Raises:
            TooMuch: there are too many.
        """
        channel = self.get(name, rights)
        if channel is None:
            if len(self._channels) >= self._limits.channels:
                raise TooMuch(
                    f"this gateway has {self._limits.channels} channels: use another gateway", 5.0, "channels"
                )
            if self._of_client[client] >= self._limits.client_channels:
                raise TooMuch(
                    f"this client has {self._limits.client_channels} channels at this gateway: use those, or "
                    f"end one by DELETE",
                    5.0,
                    "client_channels",
                )
            self._begun += 1
            self._of_client[client] += 1
            gateway = f"{self._id}-{self._begun}"
            channel = Channel(name, rights.name, client, gateway, rights, self._limits, self._start)
            self._channels[rights.name, name] = channel
            CHANNEL_COUNTS.mailboxes.add(channel.mailbox)
        self.renew_rights(channel, rights)
        channel.poll.last_seen = asyncio.get_running_loop().time()
        return channel

    def close(self, channel: Channel) -> None:
        """Forget a client; its poll is answered with nothing."""
        if channel.is_closed:
            return
        channel.poll.close()
        del self._channels[channel.caller, channel.name]
        self._of_client[channel.client] -= 1
        if not self._of_client[channel.client]:
            del self._of_client[channel.client]
        for key in [*channel.mailbox.keys.values()]:
            self._leave(channel, key)
        if channel.catching_up is not None:
            channel.catching_up.cancel()
        CHANNEL_COUNTS.mailboxes.discard(channel.mailbox)
        CHANNEL_COUNTS.totals[DROPPED] += channel.mailbox.dropped

    def forget_dead(self, now: float) -> None:
        """Forget the clients that are dead at `now`, by the clock of the event loop."""
        for channel in [*self._channels.values()]:
            if not channel.poll.is_open and now - channel.poll.last_seen > self._limits.idle_seconds:
                CHANNEL_COUNTS.totals[DEAD] += 1
                self.close(channel)

    # ------------------------------------------------------------ commands

    async def command(self, channel: Channel, commands: Sequence[CheckedCommand]) -> list[ChannelKey]:
        """Do what was not done before; the keys that were subscribed to, and are.

        Raises:
            RefusedCommand: there would be too many keys.
            StoreUnavailable, StoreRefused: nothing was done.
        """
        async with channel.commanding:
            new = [one for one in commands if one.command > channel.mailbox.command]
            self._check_keys(channel, new)
            places = await self._places(channel, new)
            for one in new if not channel.is_closed else ():
                channel.mailbox.command = one.command
                if isinstance(one, SubscribeKey):
                    self._subscribe(channel, one, places)
                else:
                    self._unsubscribe(channel, one.key)
            channel.go_on()
            channel.wake()
        keys = channel.mailbox.keys
        asked = {one.key: one for one in commands if isinstance(one, SubscribeKey)}
        return [keys[name] for name in asked if name in keys]

    def _check_keys(self, channel: Channel, commands: Sequence[CheckedCommand]) -> None:
        names = set(channel.mailbox.keys)
        for one in commands:
            if isinstance(one, SubscribeKey):
                names.add(one.key)
                if len(names) > self._limits.keys:
                    why = InvalidOption(
                        f"a client has at most {self._limits.keys} keys: "
                        f"unsubscribe from some, or use another client name"
                    )
                    raise RefusedCommand(why, one.command, one.key)
            else:
                names.discard(one.key)

    async def _places(
        self, channel: Channel, commands: Sequence[CheckedCommand]
    ) -> Mapping[tuple[str, Point], str | StreamleaseError]:
        """Where the subscriptions begin, by filter and point, or why they cannot."""
        found: dict[tuple[str, Point], str | StreamleaseError] = {}
        by_spaces: dict[tuple[tuple[str, ...], Point], str] = {}
        touched: set[str] = set()
        known = await self.feeds.known_for(one.filter for one in commands if isinstance(one, SubscribeKey))
        for one in commands:
            goes_on = one.key not in touched and isinstance(one, SubscribeKey) and _goes_on(channel, one)
            touched.add(one.key)
            if goes_on or not isinstance(one, SubscribeKey):
                continue
            since = one.since or "latest"
            if (one.filter, since) in found:
                continue
            if isinstance(since, Cursor):
                found[one.filter, since] = self._cursors.text(since)
                continue
            try:
                spaces = tuple(sorted(space.name for space in known.for_filter(one.filter)))
                if (spaces, since) not in by_spaces:
                    await self.feeds.follow(spaces)
                    place = await self._reading.place(one.filter, since)
                    by_spaces[spaces, since] = self._cursors.text(place)
                found[one.filter, since] = by_spaces[spaces, since]
            except (StoreUnavailable, StoreRefused):
                raise
            except StreamleaseError as error:
                found[one.filter, since] = error
        return found

    def _subscribe(
        self,
        channel: Channel,
        command: SubscribeKey,
        places: Mapping[tuple[str, Point], str | StreamleaseError],
    ) -> None:
        mailbox = channel.mailbox
        if _goes_on(channel, command):
            former = mailbox.keys[command.key]
            former.policy, former.limit = command.policy, command.limit
            return
        place = places.get((command.filter, command.since or "latest"))
        if place is None:  # meanwhile it failed
            place = InvalidOption("the subscription that was to go on has failed: subscribe with 'since'")
        self._unsubscribe(channel, command.key)
        cursor = place if isinstance(place, str) else ""
        key = ChannelKey(command.key, command.command, command.filter, command.policy, command.limit, cursor)
        mailbox.subscribe(key)
        if isinstance(place, str):
            channel.behind[key] = None
        else:
            mailbox.fail(key, problem(place))

    def _unsubscribe(self, channel: Channel, name: str) -> None:
        key = channel.mailbox.keys.get(name)
        if key is not None:
            self._leave(channel, key)
            channel.mailbox.unsubscribe(name)

    def _leave(self, channel: Channel, key: ChannelKey) -> None:
        self.live.leave(LiveKey(channel, key))
        channel.behind.pop(key, None)

    def renew_rights(self, channel: Channel, rights: ClientRights) -> None:
        """What its token may do now; keys that it may not have any more fail."""
        if channel.rights is rights:
            return
        channel.rights = rights
        for key in [*channel.mailbox.keys.values()]:
            try:
                channel.rights.check_consume(key.filter)
            except NotAllowed as error:
                self._leave(channel, key)
                channel.mailbox.revoke(key, problem(error))

    # ------------------------------------------------------------ tasks

    def _start(self, channel: Channel) -> None:
        channel.catching_up = self._tasks.start(channel.name, self._catch_up(channel))

    async def _catch_up(self, channel: Channel) -> None:
        try:
            await self._catching_up.run(channel)
        except StreamleaseError:
            raise
        except Exception:
            _logger.exception("gateway: channel %s is closed by a defect", ascii(channel.name)[:80])
            self.close(channel)
        finally:
            channel.catching_up = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(min(LOOK_SECONDS, self._limits.idle_seconds / 4))
            self.forget_dead(asyncio.get_running_loop().time())

    def _failed(self, task: str, error: StreamleaseError) -> None:
        _logger.error("gateway: channels: %s ended: %s", task, error)


def _goes_on(channel: Channel, command: SubscribeKey) -> bool:
    """Whether the subscription is there, and is to go on where it is."""
    former = channel.mailbox.keys.get(command.key)
    return former is not None and command.since is None and former.filter == command.filter
