"""What a client says of a webhook, what is kept of it, and what is shown. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from streamlease.gateway.webhooks.core.webhook_standing import Trouble, WebhookStanding, WebhookState
from streamlease.protocol.errors import InvalidInput, InvalidOption, Unsupported
from streamlease.protocol.plain_values import iso
from streamlease.protocol.topics import check_filter

LONGEST_ID = 64
LONGEST_SECRET = 1024
LONGEST_SINCE = 64 * 1024
MOST_BODY = 256 * 1024
"""Bytes of a request."""

ID = "^[A-Za-z0-9_-][A-Za-z0-9_.~-]{0,63}$"
_ID = re.compile(ID.removesuffix("$") + r"\Z")


class WantedWebhook(BaseModel):
    """A subscription: deliver what a filter matches, from a point on, to a callback."""

    model_config = ConfigDict(extra="forbid", strict=True)

    filter: str = Field(min_length=1, description="A topic filter.")
    callback: str = Field(
        min_length=1, description="An http:// or https:// URL that deliveries are POSTed to."
    )
    since: str | None = Field(
        default=None, min_length=1,
        description="A cursor, a time with its zone, earliest or latest; itself excluded. Default: latest, "
        "or where the subscription is, if there is one with this id.",
    )  # fmt: skip
    id: str | None = Field(
        default=None, pattern=ID,
        description="Name of the subscription, among those of the token; one is made up if there is none.",
    )  # fmt: skip
    secret: str | None = Field(
        default=None, min_length=1, max_length=LONGEST_SECRET,
        description="Key of the signatures; one is made up, and told once, if there is none.",
    )  # fmt: skip


class ShownTrouble(BaseModel):
    """Why nothing was delivered the last time."""

    error: str
    detail: str
    at: str
    oldest: str | None = None
    """The cursor to go on from, where history was truncated."""


class ShownWebhook(BaseModel):
    """A subscription, and how it stands."""

    id: str
    filter: str
    callback: str
    state: Literal["active", "failing", "suspended"]
    next: str
    """The cursor behind what the callback acknowledged."""
    delivered: int
    """Messages that it acknowledged."""
    failures: int
    """In a row."""
    failing_since: str | None
    again_at: str | None
    """When it is tried again."""
    trouble: ShownTrouble | None
    secret: str | None = None
    """Only in the answer that made it up."""


class ShownWebhooks(BaseModel):
    """All subscriptions of a client."""

    subscriptions: list[ShownWebhook]


class WebhookDefinition(BaseModel):
    """What is kept of a subscription."""

    model_config = ConfigDict(frozen=True)

    filter: str
    callback: str
    secret: str
    since: str | None
    """As the client gave it."""


def parse_wanted(body: bytes) -> WantedWebhook:
    """The subscription in the body of a request.

    Raises:
        InvalidInput: it is no JSON document. InvalidOption: a field is missing, unknown or wrong.
        InvalidTopic: the filter is none.
    """
    try:
        document = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInput(
            f"the body {body[:40].decode('latin-1')!a} is no JSON document "
            f'({" ".join(str(error).split())[:80]}): send {{"filter": ..., "callback": ...}}'
        ) from None
    if not isinstance(document, dict):
        raise InvalidInput(
            f'the body is {ascii(str(document))[:40]}: send {{"filter": ..., "callback": ...}}'
        )
    try:
        wanted = WantedWebhook.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ascii(".".join(map(str, first["loc"])))[:80]
        given = "" if first["type"] == "missing" else f", and it is {ascii(first['input'])[:80]}"
        raise InvalidOption(f"{field}: {' '.join(first['msg'].split())}{given}: {_REMEDY}") from None
    check_filter(wanted.filter)
    if wanted.secret is not None:
        encoded(wanted.secret)
    return wanted


_REMEDY = "give filter and callback, and if you want since, id and secret, all as texts"


def check_id(id: str) -> str:
    """`id`, if it can be one.

    Raises:
        InvalidOption: it cannot.
    """
    if not _ID.match(id):
        raise InvalidOption(
            f"the id is {ascii(id)[:80]}: give 1 to {LONGEST_ID} letters, digits and . _ ~ -, not beginning "
            f"with . or ~"
        )
    return id


def encoded(secret: str) -> bytes:
    """The key of an HMAC.

    Raises:
        InvalidOption: it has no form in UTF-8.
    """
    try:
        return secret.encode()
    except UnicodeEncodeError:
        raise InvalidOption("the secret has half a surrogate pair: give one that UTF-8 can write") from None


def definition_json(definition: WebhookDefinition) -> bytes:
    """As it is kept."""
    return to_json(definition)


def standing_json(standing: WebhookStanding) -> bytes:
    """As it is kept."""
    kept: dict[str, Any] = {"position": standing.position, "delivered": standing.delivered}
    if standing.told != standing.position:
        kept["told"] = standing.told
    if standing.state is not WebhookState.ACTIVE:
        kept["state"] = standing.state.value
    for name in ("failures", "failing_since", "again_at"):
        if getattr(standing, name):
            kept[name] = getattr(standing, name)
    if standing.trouble is not None:
        trouble = standing.trouble
        kept["trouble"] = [trouble.error, trouble.detail, trouble.at, trouble.oldest]
    return to_json(kept)


def parse_standing(kept: bytes) -> WebhookStanding:
    """What :func:`standing_json` made; what a later version adds is left out."""
    found: Any = from_json(kept)
    if not isinstance(found, dict) or not isinstance(found.get("position"), str):
        raise ValueError("it has no position")
    position, trouble = found["position"], found.get("trouble")
    numbers = {
        name: found[name] for name in ("failures", "failing_since", "again_at", "delivered") if name in found
    }
    if not all(type(one) is int and one >= 0 for one in numbers.values()):
        raise ValueError(f"its numbers are {numbers}")
    return WebhookStanding(
        position=position,
        told=found.get("told") or position,
        state=WebhookState(found.get("state", "active")),
        trouble=None if trouble is None else Trouble(*trouble[:4]),
        **numbers,
    )


def shown_unreadable(id: str, why: Unsupported) -> dict[str, Any]:
    """What a client gets of a webhook that cannot be read, among others."""
    shown: dict[str, Any] = dict.fromkeys(
        ("filter", "callback", "next", "delivered", "failures", "failing_since", "again_at")
    )
    trouble = {"error": "unsupported", "detail": str(why), "at": None}
    return {"id": id, "state": "unreadable", "trouble": trouble, **shown}


def shown_webhook(
    id: str, definition: WebhookDefinition, standing: WebhookStanding, secret: str | None = None
) -> dict[str, Any]:
    """As a client gets it; never with the secret, but in the answer that made it up."""
    trouble = standing.trouble
    shown: dict[str, Any] = {
        "id": id,
        "filter": definition.filter,
        "callback": definition.callback,
        "state": standing.state.value,
        "next": standing.told,
        "delivered": standing.delivered,
        "failures": standing.failures,
        "failing_since": _time(standing.failing_since) if standing.failing_since else None,
        "again_at": _time(standing.again_at) if standing.again_at else None,
        "trouble": None,
    }
    if trouble is not None:
        shown["trouble"] = {
            "error": trouble.error, "detail": trouble.detail, "at": _time(trouble.at),
            **({"oldest": trouble.oldest} if trouble.oldest is not None else {}),
        }  # fmt: skip
    if secret is not None:
        shown["secret"] = secret
    return shown


def _time(milliseconds: int) -> str:
    return iso(datetime.fromtimestamp(milliseconds / 1000, UTC))
