"""The web application: which address leads to what, and what all requests have in common.

A request is looked at for where it leads, then for who makes it and how often, then for what it asks. An
error on that way is a problem document, whatever came in. Nothing is kept between requests but what is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.gateway.between.gateway_presence import GatewayPresence
from streamlease.gateway.between.passing_on import PassingOn
from streamlease.gateway.catalog.catalog_handlers import CATALOG, CatalogHandlers
from streamlease.gateway.channels.all_channels import Channels
from streamlease.gateway.channels.channel_handlers import CHANNELS, ChannelHandlers
from streamlease.gateway.channels.channel_places import ChannelPlaces
from streamlease.gateway.core.cursors import CursorCodec
from streamlease.gateway.core.rates import GatewayLimits
from streamlease.gateway.core.refusals import GatewayEnds, NotFound, WrongMethod
from streamlease.gateway.event_streams import EventHandler
from streamlease.gateway.feeds import Feeds
from streamlease.gateway.http_calls import Callers, ClientGone, HttpCall
from streamlease.gateway.members.member_handlers import GROUPS, METHODS, MemberHandlers
from streamlease.gateway.message_handlers import MessageHandlers
from streamlease.gateway.metrics import COUNTS
from streamlease.gateway.open_api import answer_description
from streamlease.gateway.probe_handlers import ProbeHandlers
from streamlease.gateway.problems import answer_problem, refusal, refusing_limit
from streamlease.gateway.publishing import TOPICS, PublishHandler
from streamlease.gateway.since_reading import SinceReading
from streamlease.gateway.traces import RequestTraces
from streamlease.gateway.webhooks.subscription_handlers import BELOW, SUBSCRIPTIONS, SubscriptionHandlers
from streamlease.gateway.webhooks.webhook_service import WebhookSettings, webhook_service
from streamlease.protocol.errors import Indefinite, StreamleaseError, TaskFailed
from streamlease.registry.members.channel_homes import ChannelHomes
from streamlease.registry.shared_secrets import secret_of

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.gateway.token_file import TokenFile

SECRET = "gateway-cursors"
MEMBERS_SECRET = "gateway-members"

Handler = Callable[[HttpCall], Awaitable[None]]

_logger = logging.getLogger(__name__)


class GatewayApp:
    """An application for the gateway's own server: ASGI, and in each scope the exchange of ``gateway.http1``.

    Args:
        client: connected; it is not closed with the application.
        tokens: who may do what; None: everybody everything, for programs of the same machine.
        digest: of the certificate with which it is served; empty: without TLS.
    """

    def __init__(
        self,
        client: Client,
        *,
        tokens: TokenFile | None = None,
        limits: GatewayLimits | None = None,
        channel_limits: ChannelLimits | None = None,
        webhooks: WebhookSettings | None = None,
        digest: str = "",
    ) -> None:
        limits = limits or GatewayLimits()
        self._client = client
        self._channel_limits = channel_limits
        self._tokens = tokens
        self._webhooks = webhooks or WebhookSettings()
        self._callers = Callers(tokens, limits)
        self._probes = probes = ProbeHandlers(client)
        self._messages = messages = MessageHandlers(self._callers.polls)
        self._events = events = EventHandler(self._callers.polls)
        self._subscriptions = subscriptions = SubscriptionHandlers(limits.client_webhooks)
        self._open: dict[str, dict[str, Handler]] = {
            "/healthz": {"GET": probes.health},
            "/readyz": {"GET": probes.ready},
            "/metrics": {"GET": probes.metrics},
            "/openapi.json": {"GET": answer_description},
        }
        """Without a token: they tell nothing about messages."""
        self._known: dict[str, dict[str, Handler]] = {
            "/v1/messages": {"GET": messages.since},
            "/v1/events": {"GET": events.events},
            SUBSCRIPTIONS: {"GET": subscriptions.list, "POST": subscriptions.subscribe},
        }
        self._publishing = publishing = PublishHandler(client, limits)
        self.channels = channels = ChannelHandlers(self._callers.polls, limits.body_bytes)
        self._members = members = MemberHandlers(client, limits, self._callers.polls)
        self._digest = digest
        self._below: dict[str, dict[str, Handler]] = {
            TOPICS: {"POST": publishing.publish},
            BELOW: {"GET": subscriptions.show, "DELETE": subscriptions.delete},
            GROUPS: dict.fromkeys(METHODS, members.member),
            CATALOG: {"GET": CatalogHandlers(client, self._callers.polls).catalog},
        }
        """By what the address begins with."""
        self._between: dict[tuple[str, str], dict[str, Handler]] = {
            (CHANNELS, "/commands"): {"POST": channels.commands},
            (CHANNELS, "/poll"): {"POST": channels.poll},
            (CHANNELS, ""): {"DELETE": channels.delete},
        }
        """By what the address begins and ends with."""
        self._traces = RequestTraces.active()

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """All that answers requests. What ASGI has for this would tell an error as a traceback.

        Raises:
            StoreUnavailable, StoreRefused: Redis does not do what a gateway needs at the start.
        """
        cursors = CursorCodec(await secret_of(self._client.redis, SECRET))
        secret = await secret_of(self._client.redis, MEMBERS_SECRET)
        async with (
            self._client.publisher() as publisher,
            Feeds(self._client, cursors) as feeds,
            GatewayPresence(self._client) as presence,
            PassingOn(presence, self._digest) as passing,
            self._members.begin(secret, presence, passing),
        ):
            self._publishing.begin(publisher, carrying=self._traces is None)
            reading = SinceReading(self._client, feeds, cursors)
            self._messages.begin(reading, cursors)
            self._events.begin(reading, cursors)
            own = (self._client, feeds, reading, cursors, self._tokens, self._webhooks, self._subscriptions)
            async with (
                Channels(feeds, reading, cursors, self._channel_limits) as channels,
                ChannelPlaces(channels, ChannelHomes(self._client.redis), presence, passing) as places,
                webhook_service(*own),
            ):
                self.channels.begin(channels, places, cursors)
                yield

    def refused(self, error: StreamleaseError) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        """Status, body and headers of the answer to what is no request: there is nobody to be looked for."""
        return refusal(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http":
            call, began = HttpCall(scope), perf_counter()
            try:
                if self._traces is None:
                    await self._answer(call)
                else:
                    await self._traced(call, self._traces)
            finally:
                COUNTS.answered(call, perf_counter() - began)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _traced(self, call: HttpCall, traces: RequestTraces) -> None:
        if call.scope["path"] in self._open:
            await self._answer(call)
        else:
            with traces.request(call):
                await self._answer(call)

    async def _answer(self, call: HttpCall) -> None:
        try:
            await self._handler(call)(call)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if call.status:
                raise
            await answer_problem(call, _ends(call))
        except StreamleaseError as error:
            if limit := refusing_limit(error):
                COUNTS.refused[limit] += 1
            await answer_problem(call, error)
        except Exception as error:
            _logger.exception("gateway: %s %s failed", call.scope["method"], ascii(call.scope["path"])[:200])
            await answer_problem(call, _defect(call, error))

    def _handler(self, call: HttpCall) -> Handler:
        # As it was written: what is escaped is part of a name, not of the way to it.
        path, method = call.scope["raw_path"].decode("ascii"), call.scope["method"]
        found = self._open.get(path)
        if found is not None:
            call.route = path
        else:
            found = self._admitted(call, path)
        if found is None:
            raise NotFound(f"there is nothing at {ascii(path)[:80]}: the addresses are in /openapi.json")
        handler = found.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = ", ".join(found)
            raise WrongMethod(f"{ascii(path)[:80]} knows no {ascii(method)[:20]}: use {allowed}", allowed)
        return handler

    def _admitted(self, call: HttpCall, path: str) -> dict[str, Handler] | None:
        """What is at an address that wants a caller who may ask."""
        found = self._known.get(path)
        if found is not None:
            call.route = path
        else:
            for begin, ways in self._below.items():
                if path.startswith(begin):
                    found, call.route = ways, f"{begin}*"
                    break
            for (first, last), handlers in self._between.items() if found is None else ():
                if path.startswith(first) and path.endswith(last):
                    found, call.route = handlers, f"{first}*{last}"
                    break
        self._callers.admit(call)
        return found


def _defect(call: HttpCall, error: Exception) -> TaskFailed:
    """What a request is told that nobody foresaw the end of: it may have come to anything."""
    cause = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    failed = TaskFailed(
        f"{call.scope['method']} {call.route} ended by a defect of the gateway ({cause}): it may have been "
        f"done, so look before you send it again, and report this"
    )
    failed.__cause__ = error
    return failed


def _ends(call: HttpCall) -> StreamleaseError:
    """What a request is told that is under way when the gateway ends."""
    if call.scope["method"] in ("GET", "HEAD") or call.waits:  # a poll of a channel is a POST
        return GatewayEnds("this gateway ends: ask again, or another one")
    return Indefinite("this gateway ended before it was done, as far as it knows: look whether it was")
