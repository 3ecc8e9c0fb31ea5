"""``/v1/subscriptions``: make, show and delete webhooks.

A subscription belongs to the token that made it: others do not see it, and may use the same id for their own.
"""

from __future__ import annotations

import secrets
from typing import Any

from pydantic_core import to_json

from streamlease.gateway.core.cursors import CursorCodec
from streamlease.gateway.core.questions import parse_since
from streamlease.gateway.core.rates import TooMuch
from streamlease.gateway.core.refusals import NotFound, TruncatedSince
from streamlease.gateway.http_calls import HttpCall
from streamlease.gateway.problems import problem_name
from streamlease.gateway.since_reading import SinceReading
from streamlease.gateway.webhooks.callback_lines import CallbackLines
from streamlease.gateway.webhooks.core.callbacks import InvalidCallback, RefusedAddress, parse_callback
from streamlease.gateway.webhooks.core.subscribing_forms import (
    MOST_BODY,
    WantedWebhook,
    WebhookDefinition,
    check_id,
    definition_json,
    parse_wanted,
    shown_unreadable,
    shown_webhook,
    standing_json,
)
from streamlease.gateway.webhooks.core.webhook_standing import Trouble, WebhookStanding, WebhookState
from streamlease.gateway.webhooks.kept_webhooks import read_webhook
from streamlease.gateway.webhooks.webhook_leases import WebhookLeases
from streamlease.protocol.errors import InvalidOption, StoreUnavailable, StreamleaseError, Unsupported
from streamlease.protocol.ids import random_token
from streamlease.registry.webhooks.webhook_records import WebhookName, WebhookRecord, WebhookRecords

SUBSCRIPTIONS = "/v1/subscriptions"
BELOW = f"{SUBSCRIPTIONS}/"
ATTEMPTS = 20


class SubscriptionHandlers:
    """Answers requests about webhooks.

    Args:
        most_of_client: so many may a token have.
    """

    _reading: SinceReading
    _cursors: CursorCodec
    _lines: CallbackLines
    _records: WebhookRecords
    _leases: WebhookLeases

    def __init__(self, most_of_client: int) -> None:
        self._most_of_client = most_of_client

    def begin(
        self,
        reading: SinceReading,
        cursors: CursorCodec,
        lines: CallbackLines,
        records: WebhookRecords,
        leases: WebhookLeases,
    ) -> None:
        """From now on there are requests."""
        self._reading = reading
        self._cursors = cursors
        self._lines = lines
        self._records = records
        self._leases = leases

    async def subscribe(self, call: HttpCall) -> None:
        """``POST /v1/subscriptions``: make one; or change, or resume, that with the same id."""
        _check_no_query(call)
        wanted = parse_wanted(await call.body(MOST_BODY))
        call.rights.check_consume(wanted.filter)
        await self._check_callback(wanted.callback)
        name = WebhookName(call.rights.name or "", check_id(wanted.id or random_token()))
        shown = await self._put(name, wanted)
        self._leases.poke()
        await call.answer(
            201, to_json(shown), b"application/json", (b"location", f"{BELOW}{name.id}".encode())
        )

    async def list(self, call: HttpCall) -> None:
        """``GET /v1/subscriptions``: those of the token."""
        _check_no_query(call)
        found = await self._records.of_owner(call.rights.name or "")
        shown = [_shown(one) for one in found]
        await call.answer(200, to_json({"subscriptions": shown}), b"application/json")

    async def show(self, call: HttpCall) -> None:
        """``GET /v1/subscriptions/{id}``."""
        name = _name(call)
        record = await self._records.read(name)
        if record is None:
            raise _unknown(name)
        definition, standing = read_webhook(record)
        standing = await self._overtaken(definition, standing)
        await call.answer(200, to_json(shown_webhook(name.id, definition, standing)), b"application/json")

    async def delete(self, call: HttpCall) -> None:
        """``DELETE /v1/subscriptions/{id}``."""
        name = _name(call)
        if not await self._records.drop(name):
            raise _unknown(name)
        self._leases.poke()
        await call.answer(204, b"", b"application/json")

    # ------------------------------------------------------------ inside

    async def _check_callback(self, url: str) -> None:
        callback = parse_callback(url, allow_private=self._lines.allow_private)
        try:
            await self._lines.check(callback)
        except RefusedAddress as error:
            raise InvalidCallback(str(error)) from None

    async def _put(self, name: WebhookName, wanted: WantedWebhook) -> dict[str, Any]:
        for _ in range(ATTEMPTS):
            seen = await self._records.read(name)
            made = None
            if seen is None:
                made = wanted.secret or secrets.token_hex(32)
                standing: WebhookStanding | None = await self._at(wanted.filter, wanted.since or "latest")
                definition = WebhookDefinition(
                    filter=wanted.filter, callback=wanted.callback, secret=made, since=wanted.since
                )
                exact = False
            else:
                definition, standing, exact = await self._changed(wanted, seen)
                if standing is None and definition_json(definition) == seen.definition:
                    return shown_webhook(name.id, *read_webhook(seen))
            if seen is None:
                await self._check_room(name.owner)
                await self._leases.have_space()
            written = None if standing is None else standing_json(standing)
            record = await self._records.put(name, seen, definition_json(definition), written, exact=exact)
            if record is not None:
                told = made if wanted.secret is None else None
                return shown_webhook(name.id, *read_webhook(record), told)
        raise StoreUnavailable(f"subscription {name.id} changes all the time: try again")

    async def _check_room(self, owner: str) -> None:
        """Requests that come together may each find the last place: so it is a few more, at most."""
        if await self._records.count_of(owner) >= self._most_of_client:
            raise TooMuch(
                f"this client has {self._most_of_client} webhooks: delete one first", 1.0, "client_webhooks"
            )

    async def _changed(
        self, wanted: WantedWebhook, seen: WebhookRecord
    ) -> tuple[WebhookDefinition, WebhookStanding | None, bool]:
        """What it becomes, where it goes on (None: where it is), and whether that hangs on where it is."""
        was, standing = read_webhook(seen)
        definition = WebhookDefinition(
            filter=wanted.filter, callback=wanted.callback, secret=wanted.secret or was.secret,
            since=was.since if wanted.since is None else wanted.since,
        )  # fmt: skip
        if wanted.since is not None and wanted.since != was.since:
            return definition, await self._at(wanted.filter, wanted.since), False
        if standing.state is WebhookState.ACTIVE:
            return definition, None, False
        await self._reading.point(wanted.filter, self._cursors.parse(standing.position))
        return definition, standing.resumed(), True

    async def _at(self, filter: str, since: str) -> WebhookStanding:
        cursor = self._cursors.text(await self._reading.point(filter, parse_since(since, self._cursors)))
        return WebhookStanding(cursor, cursor)

    async def _overtaken(self, definition: WebhookDefinition, standing: WebhookStanding) -> WebhookStanding:
        """`standing`; with what retention took from one to which nothing is delivered."""
        if standing.state is not WebhookState.SUSPENDED:
            return standing
        try:
            await self._reading.point(definition.filter, self._cursors.parse(standing.position))
        except TruncatedSince as error:
            at = standing.trouble.at if standing.trouble is not None else 0
            return standing.overtaken(Trouble(problem_name(error), str(error), at, error.oldest))
        except StreamleaseError:
            return standing  # it is no part of the question
        return standing


def _shown(record: WebhookRecord) -> dict[str, Any]:
    try:
        return shown_webhook(record.name.id, *read_webhook(record))
    except Unsupported as error:
        return shown_unreadable(record.name.id, error)


def _name(call: HttpCall) -> WebhookName:
    _check_no_query(call)
    return WebhookName(call.rights.name or "", check_id(call.below(BELOW)))


def _unknown(name: WebhookName) -> NotFound:
    return NotFound(f"there is no subscription {name.id}: GET {SUBSCRIPTIONS} lists those of this token")


def _check_no_query(call: HttpCall) -> None:
    for given in call.parameters():
        raise InvalidOption(f"there is no parameter {ascii(given)[:80]} here: leave it out")
