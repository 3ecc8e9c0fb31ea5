"""Callbacks of a gateway: whether they are from it, and what they bring."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from streamlease.http.core.gateway_errors import GatewayGarbled, WebhookRefused
from streamlease.http.core.gateway_pages import GatewayPage, parse_page

SIGNATURE = "streamlease-signature"
SUBSCRIPTION = "streamlease-subscription"


def signature(secret: str, body: bytes) -> str:
    """What the header Streamlease-Signature says of `body`."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


def check_signature(secret: str, headers: Mapping[str, str], body: bytes) -> None:
    """Whether `body` is from somebody who knows `secret`.

    Raises:
        WebhookRefused: it is not.
    """
    given = {name.lower(): value for name, value in headers.items()}.get(SIGNATURE, "")
    if not hmac.compare_digest(given.encode(), signature(secret, body).encode()):
        raise WebhookRefused("the signature of a callback is wrong: it was not made with our secret", 401)


def parse_delivery(body: bytes) -> tuple[str, str | None, GatewayPage]:
    """The id of the subscription, the cursor before the messages, and the messages of a callback.

    Raises:
        WebhookRefused: it is no callback of a gateway.
    """
    try:
        document: Any = json.loads(body)
        subscription, previous, page = document["subscription"], document["previous"], parse_page(document)
    except (ValueError, KeyError, TypeError, GatewayGarbled) as error:
        raise WebhookRefused(f"the body of a callback is none: {error}", 400) from None
    return str(subscription), previous, page
