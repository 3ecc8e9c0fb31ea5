"""Reading messages over HTTP: since-queries and long polls."""

from __future__ import annotations

from streamlease.gateway.core.accepting import ARROW, JSON, NDJSON, chosen
from streamlease.gateway.core.cursors import CursorCodec
from streamlease.gateway.core.questions import parse_question
from streamlease.gateway.core.rates import OpenPolls
from streamlease.gateway.core.refusals import NotAcceptable
from streamlease.gateway.http_calls import HttpCall
from streamlease.gateway.metrics import COUNTS
from streamlease.gateway.pages.message_page import MessagePage
from streamlease.gateway.since_reading import SinceReading

FORMS = (JSON, NDJSON, ARROW)
PARAMETERS = frozenset({"filter", "since", "limit", "wait"})


class MessageHandlers:
    """Answers requests for messages.

    Args:
        polls: counts those that wait.
    """

    _reading: SinceReading
    _cursors: CursorCodec

    def __init__(self, polls: OpenPolls) -> None:
        self._polls = polls

    def begin(self, reading: SinceReading, cursors: CursorCodec) -> None:
        """From now on there are requests."""
        self._reading = reading
        self._cursors = cursors

    async def since(self, call: HttpCall) -> None:
        """``GET /v1/messages``."""
        asked = parse_question(call.parameters(), self._cursors, allowed=PARAMETERS)
        call.rights.check_consume(asked.filter)
        form = chosen(call.header(b"accept"), FORMS)
        if form is None:
            raise NotAcceptable(
                f"the answer cannot be {ascii(call.header(b'accept'))[:80]}: accept {', '.join(FORMS)}"
            )
        if not asked.wait:
            page = await self._reading.page(asked)
        else:
            self._polls.enter(call.client)
            try:
                with COUNTS.waiting(call):
                    async with call.leaving() as gone:
                        page = await self._reading.page(asked, gone)
            finally:
                self._polls.leave(call.client)
            call.check_still_consumes(asked.filter)
        await call.answer(
            200, rendered(page, form), form.encode(), (b"streamlease-next", page.next_text.encode())
        )


def rendered(page: MessagePage, form: str) -> bytes:
    """A page in one of the `FORMS`."""
    if form == JSON:
        return page.json
    return page.lines if form == NDJSON else page.arrow
