"""Requests of channels: commands, polls, and the end; as those of a gateway, see docs/channels.md."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from streamlease.admin.ui.board import Board
from streamlease.admin.ui.console_requests import json_body
from streamlease.admin.ui.live.console_states import Document, to_bytes
from streamlease.admin.ui.live.tab_channels import TabChannel, TabChannels, parse_state_commands
from streamlease.channels.core.channel_polls import check_client, parse_poll
from streamlease.channels.core.client_mailbox import MailboxKey, SentEntry
from streamlease.channels.long_poll import PollEnd

JSON = "application/json"


async def commands(request: Request, channels: TabChannels, who: str) -> Response:
    """``POST /v1/channels/{client}/commands``."""
    given = parse_state_commands(await json_body(request))
    channel = channels.of(_client(request), who, _address(request, who))
    return Response(to_bytes(_taken(channel, channels.command(channel, given))), media_type=JSON)


async def poll(request: Request, channels: TabChannels, board: Board, who: str) -> Response | None:
    """``POST /v1/channels/{client}/poll``; None: there is nobody to answer any more."""
    asked = parse_poll(await json_body(request))
    channel = channels.of(_client(request), who, _address(request, who))
    wait = asked.wait
    if asked.gateway == channel.gateway:
        channel.mailbox.acknowledge(asked.processed)
    elif asked.gateway is not None:
        wait = 0.0  # it must know that at once
    async with _leaving(request) as gone:
        with board.watched():
            ended = await channel.poll.wait(wait, gone)
    if ended is PollEnd.GONE:
        return None
    sent = channel.mailbox.take() if ended is PollEnd.ANSWER else []
    return Response(_answer(channel, sent), media_type=JSON)


def leave(request: Request, channels: TabChannels, who: str) -> Response:
    """``DELETE /v1/channels/{client}``."""
    channel = channels.get(_client(request), who)
    if channel is not None:
        channels.close(channel)
    return Response(status_code=204)


@contextlib.asynccontextmanager
async def _leaving(request: Request) -> AsyncIterator[asyncio.Future[None]]:
    """Done when nobody waits for the answer any more."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watching = asyncio.create_task(watch())
    try:
        yield watching
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


def _client(request: Request) -> str:
    return check_client(request.path_params["client"])


def _address(request: Request, who: str) -> str:
    return who or (request.client.host if request.client is not None else "")


def _taken(channel: TabChannel, keys: Sequence[MailboxKey]) -> Document:
    return {
        "gateway": channel.gateway,
        "command": channel.mailbox.command,
        "subscriptions": [{"key": key.name, "command": key.command, "cursor": None} for key in keys],
    }


def _answer(channel: TabChannel, sent: Sequence[SentEntry]) -> bytes:
    return b'{"gateway":"%b","command":%d,"messages":[%b],"failures":[],"cursor":null}' % (
        channel.gateway.encode(), channel.mailbox.command, b",".join(one.json for one in sent),
    )  # fmt: skip
