"""Clients of the gateway: what a program in any language may do, written in Python as the reference.

This room needs no Redis, only a gateway: it imports neither redis nor what stores messages. What decides
is in `core/`, and knows no network; around it is a thin shell on httpx (extra ``http``).

The folder is not called as the package is: a folder `http` at the top of the repository would hide
Python's own.
"""

from __future__ import annotations

from streamlease.http.core.gateway_errors import (
    CursorTruncated,
    GatewayDefect,
    GatewayGarbled,
    GatewayRefused,
    GatewayUnavailable,
    WebhookRefused,
)
from streamlease.http.core.gateway_pages import GatewayMessage, GatewayPage
from streamlease.http.core.publish_requests import MessageToPublish, PublishResult
from streamlease.http.gateway_client import GatewayClient, connect
from streamlease.http.page_following import PageFollower, Webhook

__all__ = [
    "CursorTruncated",
    "PageFollower",
    "GatewayClient",
    "GatewayDefect",
    "GatewayGarbled",
    "GatewayMessage",
    "GatewayPage",
    "GatewayRefused",
    "GatewayUnavailable",
    "MessageToPublish",
    "PublishResult",
    "Webhook",
    "WebhookRefused",
    "connect",
]
