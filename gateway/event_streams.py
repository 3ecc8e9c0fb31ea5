"""Server-sent events: messages as they come, each with its cursor as the id, so that ``Last-Event-ID``
resumes.

Each event also has a field `after`: the mark of the cursor that it comes right after, which is the id of the
event before it. A client that compares it knows that nothing was lost between both; a browser ignores it.

A client that reads slowly is written to slowly: nothing is made for it before it has taken what was sent, and
what it has not taken stands in the log. After `STUCK_SECONDS` in which it took nothing it is let go.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_core import to_json

from streamlease.gateway.core.accepting import EVENTS, chosen
from streamlease.gateway.core.cursors import Cursor, CursorCodec, mark
from streamlease.gateway.core.questions import AskedMessages, parse_question
from streamlease.gateway.core.rates import OpenPolls
from streamlease.gateway.core.refusals import NotAcceptable
from streamlease.gateway.http_calls import ClientGone, HttpCall
from streamlease.gateway.metrics import COUNTS
from streamlease.gateway.problems import problem
from streamlease.gateway.since_reading import SinceReading
from streamlease.protocol.errors import StreamleaseError

PARAMETERS = frozenset({"filter", "since"})
QUIET_SECONDS = 15.0
"""After so long without a message the cursor, or a comment, goes out: so that a dead connection is
noticed.
"""

STUCK_SECONDS = 60.0
PAGE_MESSAGES = 256
HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


class EventHandler:
    """Answers requests for events.

    Args:
        polls: counts those that are open.
    """

    _reading: SinceReading
    _cursors: CursorCodec

    def __init__(self, polls: OpenPolls) -> None:
        self._polls = polls

    def begin(self, reading: SinceReading, cursors: CursorCodec) -> None:
        """From now on there are requests."""
        self._reading = reading
        self._cursors = cursors

    async def events(self, call: HttpCall) -> None:
        """``GET /v1/events``."""
        given = call.parameters()
        last = call.header(b"last-event-id")
        if last:
            given["since"] = last
        asked = parse_question(given, self._cursors, allowed=PARAMETERS)
        call.rights.check_consume(asked.filter)
        if chosen(call.header(b"accept"), [EVENTS]) is None:
            raise NotAcceptable(
                f"events cannot be {ascii(call.header(b'accept'))[:80]}: accept {EVENTS}, or use /v1/messages"
            )
        self._polls.enter(call.client)
        try:
            with COUNTS.waiting(call):
                async with call.leaving() as gone:
                    await self._send(call, asked, gone)
        except TimeoutError:
            raise ClientGone from None
        finally:
            self._polls.leave(call.client)

    async def _send(self, call: HttpCall, asked: AskedMessages, gone: asyncio.Future[None]) -> None:
        feeds = await self._reading.feeds_of(asked.filter)
        page = await self._reading.next_page(feeds, asked.filter, asked.since, PAGE_MESSAGES)
        begun: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": HEADERS}
        await call.send(begun)
        sent = None
        told = asked.since if isinstance(asked.since, Cursor) else None
        out = b"retry: 1000\n"
        try:
            while True:
                call.check_still_consumes(asked.filter)
                if page.count or page.next != sent:
                    after = b"" if told is None else b"after: %b\n" % mark(self._cursors.text(told))
                    out += after + (page.events or b"id: %b\n\n" % page.next_text.encode())
                else:
                    out += b": nothing new\n\n"
                sent = told = page.next
                async with asyncio.timeout(STUCK_SECONDS):
                    await call.send({"type": "http.response.body", "body": out, "more_body": True})
                out = b""
                ends = asyncio.get_running_loop().time() + QUIET_SECONDS
                while not gone.done() and (left := ends - asyncio.get_running_loop().time()) > 0:
                    page = await self._reading.waited(
                        feeds, asked.filter, page.next, PAGE_MESSAGES, left, gone
                    )
                    if page.count:
                        break
                if gone.done():
                    raise ClientGone
        except StreamleaseError as error:
            last = b"event: problem\ndata: %b\n\n" % to_json(problem(error))
            await call.send({"type": "http.response.body", "body": last, "more_body": False})
