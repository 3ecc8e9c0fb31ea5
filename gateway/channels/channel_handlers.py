"""Requests of channels: commands and polls; see docs/channels.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from pydantic_core import to_json

from streamlease.channels.core.channel_polls import check_client, parse_poll
from streamlease.channels.core.client_mailbox import SentEntry
from streamlease.gateway.between.gateway_lines import PassedAnswer
from streamlease.gateway.between.passing_on import passed_headers
from streamlease.gateway.channels.all_channels import Channels
from streamlease.gateway.channels.channel import Channel
from streamlease.gateway.channels.channel_places import ChannelPlaces
from streamlease.gateway.channels.core.channel_commands import parse_commands
from streamlease.gateway.channels.core.log_keys import ChannelKey
from streamlease.gateway.channels.metrics import CHANNEL_COUNTS, FAILED, SENT
from streamlease.gateway.core.cursors import CursorCodec
from streamlease.gateway.core.rates import OpenPolls
from streamlease.gateway.http_calls import HttpCall
from streamlease.gateway.metrics import COUNTS
from streamlease.protocol.errors import InvalidInput

CHANNELS = "/v1/channels/"
LONGEST_POLL = 4096
JSON = b"application/json"


class ChannelHandlers:
    """Answers requests of channels.

    Args:
        polls: counts those that wait.
        body_bytes: most of a batch of commands.
    """

    channels: Channels
    places: ChannelPlaces
    _cursors: CursorCodec

    def __init__(self, polls: OpenPolls, body_bytes: int) -> None:
        self._polls = polls
        self._body_bytes = body_bytes

    def begin(self, channels: Channels, places: ChannelPlaces, cursors: CursorCodec) -> None:
        """From now on there are requests."""
        self.channels = channels
        self.places = places
        self._cursors = cursors

    async def delete(self, call: HttpCall) -> None:
        """``DELETE /v1/channels/{client}``: the client ends, which needs no time-out then."""
        client = _client(call)
        await self.places.elsewhere(call, client)
        channel = self.channels.get(client, call.rights)
        if channel is not None:
            self.channels.close(channel)
        await call.answer(204, b"", JSON)

    async def commands(self, call: HttpCall) -> None:
        """``POST /v1/channels/{client}/commands``."""
        client = _client(call, b"/commands")
        body = await call.body(self._body_bytes)
        commands = parse_commands(body, self._cursors, call.rights.check_consume)
        channel = await self.places.find(call, client, body)
        if isinstance(channel, PassedAnswer):
            await _pass_back(call, channel)
            return
        keys = await self.channels.command(channel, commands)
        await call.answer(200, to_json(_taken(channel, keys)), JSON)

    async def poll(self, call: HttpCall) -> None:
        """``POST /v1/channels/{client}/poll``."""
        client = _client(call, b"/poll")
        body = await call.body(LONGEST_POLL)
        asked = parse_poll(body)
        self._polls.enter(call.client)
        try:
            with COUNTS.waiting(call):
                async with call.leaving() as gone:
                    channel = await self.places.find(call, client, body, gone, asked.gateway)
                    if isinstance(channel, PassedAnswer):
                        await _pass_back(call, channel)
                        return
                    wait = asked.wait
                    if asked.gateway == channel.gateway:
                        channel.mailbox.acknowledge(asked.processed)
                        channel.go_on()
                    elif asked.gateway is not None:
                        wait = 0.0  # it must know that at once
                    newest = await channel.wait(wait, gone)
        finally:
            self._polls.leave(call.client)
        call.renew_rights()
        self.channels.renew_rights(channel, call.rights)
        if newest and channel.trouble is not None and not channel.mailbox.has_news:
            raise channel.trouble
        sent = channel.mailbox.take() if newest else []
        CHANNEL_COUNTS.totals[SENT] += len(sent)
        CHANNEL_COUNTS.totals[FAILED] += sum(one.is_failure for one in sent)
        channel.go_on()
        await call.answer(200, self._answer(channel, sent, newest), JSON)

    def _answer(self, channel: Channel, sent: Sequence[SentEntry], newest: bool) -> bytes:
        settled = newest and not channel.behind and channel.mailbox.is_drained and channel.spaces
        cursor = b'"%b"' % self.channels.live.point(channel.spaces).encode() if settled else b"null"
        return b'{"gateway":"%b","command":%d,"messages":[%b],"failures":[%b],"cursor":%b}' % (
            channel.gateway.encode(),
            channel.mailbox.command,
            b",".join(one.json for one in sent if not one.is_failure),
            b",".join(one.json for one in sent if one.is_failure),
            cursor,
        )


async def _pass_back(call: HttpCall, passed: PassedAnswer) -> None:
    type = passed.headers.get(b"content-type", JSON)
    await call.answer(passed.status, passed.body, type, *passed_headers(passed))


def _taken(channel: Channel, keys: Sequence[ChannelKey]) -> dict[str, Any]:
    return {
        "gateway": channel.gateway,
        "command": channel.mailbox.command,
        "subscriptions": [{"key": key.name, "command": key.command, "cursor": key.begun} for key in keys],
    }


def _client(call: HttpCall, behind: bytes = b"") -> str:
    raw = call.raw_below(CHANNELS).removesuffix(behind)
    try:
        name = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            f"the client {raw[:80]!r} is no UTF-8: escape each byte of its name as %XX"
        ) from None
    return check_client(name)
