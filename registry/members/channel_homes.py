"""At which gateway the channel of a client is: the others pass its requests on.

Nothing hangs on it but time: a channel that is lost, or is at two gateways for a while, costs its client new
subscriptions from its cursors. So the record is a hint that expires, and no fence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from redis.exceptions import ResponseError

from streamlease.protocol.errors import StreamleaseError
from streamlease.registry import keys
from streamlease.streams.redis.connection import Argument, AsyncRedis, ask, refusal
from streamlease.streams.redis.scripts import load_script, run_each

_HOLD = load_script("streamlease.registry.members", "hold_channel")


class ChannelName(NamedTuple):
    """Whose channel, and which."""

    caller: str | None
    """The name of a token; None: it was made where no token is needed."""
    name: str

    @property
    def key(self) -> str:
        """That of its record."""
        whole = f"{'' if self.caller is None else 't' + self.caller}\0{self.name}"
        return keys.channel(hashlib.sha256(whole.encode()).hexdigest()[:32])


class ChannelHome(NamedTuple):
    """Where a channel is."""

    gateway: str
    address: str
    """Where others reach that gateway; empty: they do not."""

    @property
    def text(self) -> str:
        """As it stands in Redis."""
        return f"{self.gateway} {self.address}"


class ChannelHomes:
    """The records of one Redis."""

    def __init__(self, redis: AsyncRedis) -> None:
        self._redis = redis

    async def read(self, channel: ChannelName) -> ChannelHome | None:
        """Where a channel is; None: nowhere that is known.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        (found,) = await ask(self._redis, [("GET", channel.key)])
        if found is None:
            return None
        gateway, _, address = found.decode("utf-8", "replace").partition(" ")
        return ChannelHome(gateway, address)

    async def take(
        self, channel: ChannelName, seen: ChannelHome | None, home: ChannelHome, milliseconds: int
    ) -> bool:
        """Have a channel, in place of who had it when it was read; whether nobody else was faster.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite.
        """
        args: list[Argument] = ["" if seen is None else seen.text, home.text, milliseconds]
        return bool(await _HOLD.run(self._redis, [channel.key], args))

    async def keep(self, homes: Mapping[ChannelName, ChannelHome], milliseconds: int) -> set[ChannelName]:
        """Keep the records of channels that are here; those that another gateway has by now.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        calls = [_HOLD.call([name.key], [home.text, home.text, milliseconds]) for name, home in homes.items()]
        replies = await run_each(self._redis, calls)
        for reply in replies:
            if isinstance(reply, StreamleaseError):
                raise reply
            if isinstance(reply, ResponseError):
                raise refusal(reply)
        return {name for name, reply in zip(homes, replies, strict=True) if reply == 0}
