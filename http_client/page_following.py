"""Following a filter over HTTP: the loop around ``core.follow_machine``, which decides everything.

The loop runs while somebody waits for the next page. So a program that works for an hour on one page is
pushed nothing meanwhile: events stay in their connection, which the gateway closes after a minute, callbacks
are answered with "later", and the log has it all.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

from streamlease.http.core.event_parsing import EventParser, ServerEvent
from streamlease.http.core.follow_machine import FollowCounts, FollowMachine
from streamlease.http.core.follow_steps import (
    Ask,
    Cancel,
    FollowBegun,
    FollowEffect,
    FollowEvent,
    FollowOptions,
    GiveUp,
    HandOver,
    PagePushed,
    PushEnded,
    QuestionAnswered,
    QuestionFailed,
    Subscribe,
    SubscriptionMade,
    Woke,
)
from streamlease.http.core.gateway_errors import (
    CursorTruncated,
    GatewayUnavailable,
    WebhookRefused,
    error_of,
)
from streamlease.http.core.gateway_pages import GatewayPage, mark, parse_message, parse_page
from streamlease.http.core.webhook_signatures import check_signature, parse_delivery
from streamlease.http.http_transport import ANSWER_SECONDS, GatewayConnection
from streamlease.protocol.errors import InvalidInput, StreamleaseError
from streamlease.protocol.ids import random_token
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from typing import Self

WAITING_PUSHES = 64
"""Pushes that nobody has looked at yet; more wait in their connection, or are sent again."""

CANCEL_SECONDS = 5.0
CALLBACK_SECONDS = 5.0
"""A callback that is quicker than the answer to its subscription waits so long for that."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where the gateway may call back.

    Args:
        callback: the URL; who serves it hands what comes to :meth:`PageFollower.receive`.
        secret: with which the gateway signs.
    """

    callback: str
    secret: str


class PageFollower:
    """Pages of messages as they come: an asynchronous context manager and iterator, for one task at a time.

    Attributes:
        cursor: behind the last page, once the next one is asked for; keep it, and begin with it after a
            restart.
    """

    def __init__(
        self,
        connection: GatewayConnection,
        filter: str,
        since: str,
        options: FollowOptions,
        webhook: Webhook | None = None,
    ) -> None:
        self._connection = connection
        self._filter = filter
        self._options = options
        self._webhook = webhook
        self._name = random_token()
        self._machine = FollowMachine(since, options)
        self._inbox: asyncio.Queue[FollowEvent] = asyncio.Queue(WAITING_PUSHES)
        self._ready: deque[GatewayPage] = deque()
        self._tasks = Supervisor(f"following {filter}", self._failed)
        self._push: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._made: asyncio.Future[None] | None = None
        """Done when the gateway has told where the subscription for callbacks begins."""
        self._subscription = 0
        self._over: StreamleaseError | None = None
        self._begun = False
        self._closed = False
        self.cursor = since

    @property
    def counts(self) -> FollowCounts:
        """What happened so far."""
        return self._machine.counts

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the subscription. A second call does nothing."""
        self._closed = True
        if self._webhook is not None and self._push is not None:
            self._leave(self._subscription, self._push)
            self._push = None
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=CANCEL_SECONDS)
        await self._tasks.close()

    def __aiter__(self) -> AsyncIterator[GatewayPage]:
        return self

    async def __anext__(self) -> GatewayPage:
        """The next page; there is always at least one message in it.

        Raises:
            CursorTruncated: something is not there any more; its `oldest` is where to go on.
            StreamleaseError: any other that trying again does not help against; or that lasted too long.
        """
        while not self._ready:
            if self._over is not None:
                raise self._over
            if self._closed:
                raise StopAsyncIteration
            self._step(await self._next_event())
            if not self._ready:
                self.cursor = self._machine.position
        page = self._ready.popleft()
        self.cursor = page.next
        return page

    async def receive(self, headers: Mapping[str, str], body: bytes) -> None:
        """Take a callback; once this returns, answer it with 204.

        Raises:
            WebhookRefused: answer it with its `status` instead.
        """
        if self._webhook is None or self._closed:
            raise WebhookRefused("this client wants no callbacks any more", 410)
        check_signature(self._webhook.secret, headers, body)
        id, previous, page = parse_delivery(body)
        if id == self._id(self._subscription) and self._made is not None:
            await asyncio.wait([self._made], timeout=CALLBACK_SECONDS)
        if id != self._id(self._subscription):
            self._machine.counts.rejected += 1
            raise WebhookRefused(f"there is no subscription {ascii(id)[:80]} any more", 410)
        try:
            self._inbox.put_nowait(PagePushed(self._subscription, previous and mark(previous), page))
        except asyncio.QueueFull:
            raise WebhookRefused("there is too much waiting here: call again later", 503) from None

    # ------------------------------------------------------------ the loop

    async def _next_event(self) -> FollowEvent:
        if not self._begun:
            self._begun = True
            return FollowBegun()
        try:
            return self._inbox.get_nowait()
        except asyncio.QueueEmpty:
            pass
        try:
            async with asyncio.timeout_at(self._machine.due):
                return await self._inbox.get()
        except TimeoutError:
            return Woke()

    def _step(self, event: FollowEvent) -> None:
        for effect in self._machine.step(event, asyncio.get_running_loop().time()):
            self._do(effect)

    def _do(self, effect: FollowEffect) -> None:
        match effect:
            case HandOver():
                self._ready.append(effect.page)
            case Ask():
                self._tasks.start("a question", self._ask(effect))
            case Subscribe():
                self._subscription = effect.subscription
                self._made = asyncio.get_running_loop().create_future()
                self._push = self._tasks.start("pushes", self._follow(effect))
            case Cancel():
                push, self._push = self._push, None
                if push is not None and self._webhook is not None:
                    self._leave(effect.subscription, push)
                elif push is not None:
                    push.cancel()
            case GiveUp():
                self._over = effect.error
            case _:
                assert_never(effect)

    def _failed(self, task: str, error: StreamleaseError) -> None:
        """It ended by a defect: what helps against errors of gateways is in the machine."""
        self._over = error
        with suppress(asyncio.QueueFull):
            self._inbox.put_nowait(Woke())  # somebody waits

    # ------------------------------------------------------------ questions

    async def _ask(self, effect: Ask) -> None:
        parameters = {"filter": self._filter, "since": effect.since, "limit": str(self._options.limit)}
        if effect.wait > 0:
            parameters["wait"] = f"{effect.wait:.3f}"
        event: FollowEvent
        try:
            answer = await self._connection.exchange(
                "GET", "/v1/messages", parameters=parameters, seconds=effect.wait + ANSWER_SECONDS
            )
            event = QuestionAnswered(effect.question, parse_page(answer.json()))
        except StreamleaseError as error:
            level = logging.WARNING if isinstance(error, CursorTruncated) else logging.INFO
            _logger.log(level, "no answer about %s: %s", self._filter, error)
            event = QuestionFailed(effect.question, error)
        await self._inbox.put(event)

    # ------------------------------------------------------------ pushes

    async def _follow(self, effect: Subscribe) -> None:
        try:
            if self._webhook is not None:
                await self._subscribe(self._webhook, effect)
                return
            await self._events(effect)
            raise GatewayUnavailable("the gateway ended its events")
        except StreamleaseError as error:
            _logger.info("no pushes of %s: %s", self._filter, error)
            await self._inbox.put(PushEnded(effect.subscription, error))

    async def _events(self, effect: Subscribe) -> None:
        parser = EventParser()
        parameters = {"filter": self._filter, "since": effect.since}
        async with self._connection.parts("/v1/events", parameters) as parts:
            async for part in parts:
                for event in parser.feed(part):
                    if event.name == "problem":
                        raise _problem(event)
                    if event.id:
                        page = GatewayPage(_messages(event), event.id)
                        await self._inbox.put(PagePushed(effect.subscription, event.after, page))

    async def _subscribe(self, webhook: Webhook, effect: Subscribe) -> None:
        wanted = {
            "filter": self._filter,
            "callback": webhook.callback,
            "since": effect.since,
            "id": self._id(effect.subscription),
            "secret": webhook.secret,
        }
        made = self._made
        try:
            answer = await self._connection.exchange(
                "POST",
                "/v1/subscriptions",
                headers={"Content-Type": "application/json"},
                body=json.dumps(wanted).encode(),
            )
            begin = answer.json().get("next")
            await self._inbox.put(SubscriptionMade(effect.subscription, str(begin)))
        finally:
            if made is not None and not made.done():
                made.set_result(None)

    def _leave(self, subscription: int, push: asyncio.Task[None]) -> None:
        task = self._tasks.start("unsubscribing", self._unsubscribe(subscription, push))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _unsubscribe(self, subscription: int, push: asyncio.Task[None]) -> None:
        """Only to be polite: what comes for an old subscription is rejected anyhow."""
        await asyncio.wait([push])  # or it would be made after it was ended
        try:
            await self._connection.exchange(
                "DELETE", f"/v1/subscriptions/{self._id(subscription)}", seconds=CANCEL_SECONDS
            )
        except StreamleaseError as error:
            _logger.info("subscription %s was not ended: %s", self._id(subscription), error)

    def _id(self, subscription: int) -> str:
        return f"{self._name}-{subscription}"


def _messages(event: ServerEvent) -> tuple[Any, ...]:
    if event.data is None:
        return ()
    try:
        return (parse_message(json.loads(event.data)),)
    except ValueError:
        raise InvalidInput("the data of an event is not JSON") from None


def _problem(event: ServerEvent) -> StreamleaseError:
    try:
        status = int(json.loads(event.data or "")["status"])
    except (ValueError, KeyError, TypeError):
        status = 500
    return error_of(status, (event.data or "").encode())
