"""The client of a gateway::

async with http.connect("http://127.0.0.1:8640") as gateway:
    await gateway.publish("flights/JFK/LAX", "landed", key="N14228")
    async with gateway.follow("flights/#", since=kept) as pages:
        async for page in pages:
            ...
            keep(page.next)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from streamlease.http.core.follow_steps import FollowOptions
from streamlease.http.core.gateway_pages import GatewayPage, parse_page
from streamlease.http.core.given import check_seconds, check_text, check_time, is_number
from streamlease.http.core.publish_requests import (
    MessageToPublish,
    PublishAttempts,
    PublishResult,
    Text,
    many,
    parse_published,
    single,
)
from streamlease.http.http_transport import ANSWER_SECONDS, GatewayConnection, Trust, topic_path
from streamlease.http.page_following import PageFollower, Webhook
from streamlease.protocol.errors import InvalidInput, InvalidOption, StreamleaseError
from streamlease.protocol.ids import random_token
from streamlease.protocol.topics import check_filter, check_topic

if TYPE_CHECKING:
    from typing import Self

MOST_KEYED_BYTES = 4 * 1024 * 1024
"""Of a body that may be repeated."""


class GatewayClient:
    """Publishes and reads through a gateway, or several behind one address. A context manager."""

    def __init__(self, url: str, *, token: str | None = None, trust: Trust = True) -> None:
        self._connection = GatewayConnection(url, token, trust)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; followers end by themselves before."""
        await self._connection.close()

    async def publish(
        self,
        topic: str,
        payload: Text | Mapping[str, Any],
        *,
        key: Text | None = None,
        headers: Mapping[str, Text] | Sequence[tuple[str, Text]] = (),
        timestamp: datetime | None = None,
        idempotency_key: str | None = None,
        repeat: bool = True,
        seconds: float = 120.0,
    ) -> PublishResult:
        """Publish one message; it is as durable as its space asks when this returns.

        Args:
            payload: bytes or text; in a space with a schema, values by column.
            timestamp: the event time, with its zone.
            idempotency_key: names the message for an hour: who publishes it again under this name, also in
                another process, adds nothing. Without one it gets a random name.
            repeat: try again if no answer comes, under the same name, so nothing is published twice. Without
                it a message costs Redis less, and an answer that does not come is `Indefinite` at once.
            seconds: after which to stop trying. If a gateway dies while it publishes under a name, that name
                is free for another one after a minute.

        Raises:
            InvalidInput, InvalidTopic, UnknownSpace, SchemaMismatch, MessageTooLarge, GatewayRefused: the
                gateway does not take it.
            GatewayUnavailable, StoreUnavailable, StoreRefused: nothing was published.
            Indefinite, NotDurable, GatewayDefect: it may have been.
        """
        request = single(MessageToPublish(payload, key, headers, timestamp))
        return await self._publish(topic, request, idempotency_key, repeat, seconds)

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[MessageToPublish],
        *,
        idempotency_key: str | None = None,
        repeat: bool = True,
        seconds: float = 120.0,
    ) -> PublishResult:
        """Publish messages, all of them or none; see `publish`.

        With `repeat` they have 4 MiB at most, as JSON.
        """
        return await self._publish(topic, many(messages), idempotency_key, repeat, seconds)

    async def _publish(
        self,
        topic: str,
        request: tuple[dict[str, str], bytes],
        idempotency_key: str | None,
        repeat: bool,
        seconds: float,
    ) -> PublishResult:
        headers, body = request
        if topic == "":
            raise InvalidInput("the topic is empty: give one such as flights/JFK/LAX")
        topic = check_topic(topic)
        check_seconds("seconds", seconds)
        if idempotency_key is not None:
            check_text("the idempotency key", idempotency_key)
        if repeat and len(body) > MOST_KEYED_BYTES:
            raise InvalidInput(
                f"{len(body)} bytes are more than the {MOST_KEYED_BYTES} that can be repeated: "
                "publish fewer messages at once, or with repeat=False"
            )
        if repeat or idempotency_key is not None:
            headers = {**headers, "Idempotency-Key": idempotency_key or random_token()}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        attempts = PublishAttempts(repeat, deadline, random.random())
        path = topic_path(topic)
        while True:
            try:
                answer = await self._connection.exchange(
                    "POST",
                    path,
                    headers=headers,
                    body=body,
                    seconds=max(0.1, min(ANSWER_SECONDS, deadline - loop.time())),
                )
                return parse_published(answer.json())
            except StreamleaseError as error:
                await asyncio.sleep(attempts.after(error, loop.time()))

    async def since(
        self, filter: str, since: str | datetime = "latest", *, limit: int = 1000, wait: float = 0.0
    ) -> GatewayPage:
        """One since-query: what came after a cursor, a time, or since ``earliest``; perhaps nothing.

        Args:
            wait: seconds to wait if there is nothing yet.

        Raises:
            CursorTruncated: something behind the point is not there any more.
            InvalidInput, InvalidTopic, UnknownSpace, GatewayRefused: the question is wrong.
            GatewayUnavailable, StoreUnavailable, Indefinite: ask again.
        """
        if not is_number(wait):
            raise InvalidOption(f"wait is {ascii(wait)[:80]}: give a number of seconds")
        parameters = {
            "filter": check_filter(filter),
            "since": _point(since),
            "limit": str(limit),
            "wait": str(wait),
        }
        answer = await self._connection.exchange(
            "GET", "/v1/messages", parameters=parameters, seconds=wait + ANSWER_SECONDS
        )
        return parse_page(answer.json())

    def follow(
        self,
        filter: str,
        since: str | datetime = "latest",
        *,
        push: bool = True,
        pull: bool = True,
        webhook: Webhook | None = None,
        limit: int = 1000,
        wait: float = 20.0,
        quiet: tuple[float, float] = (1.0, 30.0),
        patience: float | None = None,
        fail_on_loss: bool = True,
    ) -> PageFollower:
        """Follow a filter: all that came since a point, and then all that comes, once and in order.

        However the pushes fare, the messages are the same; and with `push` or `pull` off, too.

        Args:
            since: a cursor (`GatewayPage.next`), ``earliest``, ``latest``, or a time.
            push: have messages pushed: as events, or to `webhook`.
            pull: ask, if pushes are silent, or do not fit together; without push, all the time.
            limit: most messages of a page that is asked for.
            wait: seconds for which a question waits for messages, while nothing pushes.
            quiet: the least and the most seconds of silence after which pushes are checked by a question;
                it is the more, the less such questions found.
            patience: give up after so many seconds without a good answer; without it, never.
            fail_on_loss: end with `CursorTruncated` where retention took, or Redis lost, what comes next;
                with False log that, and go on with all that is left.

        Raises:
            InvalidOption: these contradict each other.
        """
        if not isinstance(quiet, tuple | list) or len(quiet) != 2:
            raise InvalidOption(f"quiet is {ascii(quiet)[:80]}: give two numbers, the lower one first")
        options = FollowOptions(push, pull, *quiet, wait, limit, random.random(), patience, fail_on_loss)
        if webhook is not None and not isinstance(webhook, Webhook):
            raise InvalidOption(f"webhook is {ascii(webhook)[:80]}: give a Webhook, or None")
        if webhook is not None and not push:
            raise InvalidOption("there is a webhook, and push is off: leave out one of both")
        return PageFollower(self._connection, check_filter(filter), _point(since), options, webhook)


def connect(url: str, *, token: str | None = None, trust: Trust = True) -> GatewayClient:
    """A client of the gateway at `url`.

    Args:
        token: sent as the bearer token.
        trust: a file of certificates or an SSL context to check the gateway's with; False: do not check.

    Raises:
        InvalidOption: that is no address. Unsupported: httpx is not installed.
    """
    return GatewayClient(url, token=token, trust=trust)


def _point(since: str | datetime) -> str:
    if isinstance(since, str):
        if not since:
            raise InvalidInput("since is empty: give a cursor, earliest, latest or a time")
        check_text("since", since)
        return since
    if not isinstance(since, datetime):
        raise InvalidInput(f"since is {ascii(since)[:80]}: give a cursor, earliest, latest or a datetime")
    check_time("since", since)
    return since.isoformat()
