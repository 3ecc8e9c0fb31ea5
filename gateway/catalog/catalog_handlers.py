"""``/v1/catalog/{name}``: what there is of one kind, and, with `follow`, each change as a server-sent event.

The id of an event is a cursor: a client that comes back with ``Last-Event-ID`` misses nothing, wherever it
comes. An event without data, behind the items, is the cursor of all of them.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING

from pydantic_core import to_json

from streamlease.catalog.items import check_collection
from streamlease.gateway.core.accepting import EVENTS, JSON, chosen
from streamlease.gateway.core.rates import OpenPolls
from streamlease.gateway.core.refusals import NotAcceptable, NotFound
from streamlease.gateway.event_streams import HEADERS, QUIET_SECONDS, STUCK_SECONDS
from streamlease.gateway.http_calls import ClientGone, HttpCall
from streamlease.gateway.metrics import COUNTS
from streamlease.gateway.problems import problem
from streamlease.protocol.errors import InvalidInput, InvalidOption, StreamleaseError
from streamlease.streams.tasks import stop

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.catalog.feed import CatalogChange
    from streamlease.catalog.followed import Catalog
    from streamlease.catalog.items import CatalogItem

CATALOG = "/v1/catalog/"
PARAMETERS = {"follow", "from"}


class CatalogHandlers:
    """Answers requests for the catalog.

    Args:
        polls: counts the event streams that are open.
    """

    def __init__(self, client: Client, polls: OpenPolls) -> None:
        self._client = client
        self._polls = polls

    async def catalog(self, call: HttpCall) -> None:
        """``GET /v1/catalog/{name}``."""
        try:
            name = check_collection(call.below(CATALOG))
        except InvalidInput as error:
            raise NotFound(str(error)) from None
        follow, start = _question(call)
        call.rights.check_consume(f"$catalog/{name}")
        accepted = EVENTS if follow else JSON
        if chosen(call.header(b"accept"), [accepted]) is None:
            raise NotAcceptable(
                f"the catalog cannot be {ascii(call.header(b'accept'))[:80]}: accept {accepted}, with "
                f"'?follow' {EVENTS}"
            )
        if not follow:
            async with self._client.catalog(name) as found:
                items = [{**item.model_dump(), "count": count} for item, count in found.items.items()]
                body = to_json({"items": items, "at": found.at})
            await call.answer(200, body, b"application/json")
            return
        self._polls.enter(call.client)
        try:
            async with self._client.catalog(name, start=start) as followed:
                with COUNTS.waiting(call):
                    async with call.leaving() as gone:
                        await _send(call, name, followed, gone, whole=start is None)
        except TimeoutError:
            raise ClientGone from None
        finally:
            self._polls.leave(call.client)


def _question(call: HttpCall) -> tuple[bool, str | None]:
    given = call.parameters()
    if unknown := given.keys() - PARAMETERS:
        raise InvalidInput(f"there is no parameter {ascii(min(unknown))[:80]}: there are follow and from")
    follow = given.get("follow", "false")
    if follow not in ("", "true", "false"):
        raise InvalidInput(f"follow is {ascii(follow)[:80]}: leave it out, or write follow=true")
    start = call.header(b"last-event-id") or given.get("from")
    if start is not None and follow == "false":
        raise InvalidOption("from says where to go on, so it needs follow=true")
    return follow != "false", start


async def _send(
    call: HttpCall, name: str, followed: Catalog, gone: asyncio.Future[None], *, whole: bool
) -> None:
    await call.send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    out = b"retry: 1000\n\n"
    if whole:
        out = b"retry: 1000\n" + b"".join(_event(item, 1, None) for item in followed.items)
        out += b"id: %b\n\n" % followed.at.encode()
    change: asyncio.Task[CatalogChange] | None = None
    try:
        while True:
            call.check_still_consumes(f"$catalog/{name}")
            async with asyncio.timeout(STUCK_SECONDS):
                await call.send({"type": "http.response.body", "body": out, "more_body": True})
            if change is None:
                change = asyncio.ensure_future(anext(followed))
            await asyncio.wait((change, gone), timeout=QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientGone
            out = b": nothing new\n\n"
            if change.done():
                found, change = change.result(), None
                out = b"".join(_event(one.item, one.diff, one.at) for one in (found, *followed.ready()))
    except StreamleaseError as error:
        last = b"event: problem\ndata: %b\n\n" % to_json(problem(error))
        await call.send({"type": "http.response.body", "body": last, "more_body": False})
    finally:
        if change is not None:
            await stop([change])


def _event(item: CatalogItem, diff: int, at: str | None) -> bytes:
    id = b"" if at is None else b"id: %b\n" % at.encode()
    return id + _data(item, diff)


@lru_cache(maxsize=4096)
def _data(item: CatalogItem, diff: int) -> bytes:
    """The same for all who follow."""
    return b"data: %b\n\n" % to_json({"item": item, "diff": diff})
