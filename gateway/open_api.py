"""The description of the gateway's interface, in OpenAPI 3.1: made from models and tables."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import to_json

from streamlease.gateway.catalog.described_catalog import CATALOG_MODELS, catalog_paths
from streamlease.gateway.channels.core.channel_answers import CHANNEL_MODELS, channel_paths
from streamlease.gateway.core.accepting import ARROW, EVENTS, JSON, NDJSON
from streamlease.gateway.core.answer_models import ProblemDocument, ShownMessage
from streamlease.gateway.core.bodies import EVENT, EVENTS_BATCH, CloudEvent, PublishLine
from streamlease.gateway.core.questions import LIMIT, MOST_LIMIT, MOST_WAIT
from streamlease.gateway.http_calls import HttpCall
from streamlease.gateway.members.described_members import MEMBER_MODELS, member_paths
from streamlease.gateway.problems import BASE, PROBLEMS
from streamlease.gateway.webhooks.core.subscribing_forms import (
    ID,
    ShownWebhook,
    ShownWebhooks,
    WantedWebhook,
)


class MessagesAnswer(BaseModel):
    """What came after a point, and the cursor behind it."""

    messages: list[ShownMessage]
    next: str


class PlacedMessage(BaseModel):
    """Where a message stands."""

    stream: str
    offset: int
    timestamp: str


class PlacedBatch(BaseModel):
    """How many messages were published, and where the last one stands."""

    messages: int
    last: PlacedMessage


class WebhookDelivered(MessagesAnswer):
    """What is POSTed to a callback."""

    subscription: str
    previous: str
    """The `next` of what the callback acknowledged before."""


MODELS: tuple[type[BaseModel], ...] = (
    PublishLine,
    CloudEvent,
    MessagesAnswer,
    PlacedMessage,
    PlacedBatch,
    ProblemDocument,
    WantedWebhook,
    ShownWebhook,
    ShownWebhooks,
    WebhookDelivered,
    *CATALOG_MODELS,
    *CHANNEL_MODELS,
    *MEMBER_MODELS,
)


async def answer_description(call: HttpCall) -> None:
    """``GET /openapi.json``."""
    await call.answer(200, _text(), b"application/json")


@cache
def _text() -> bytes:
    return to_json(description())


def description() -> dict[str, Any]:
    """The whole document."""
    from streamlease import __version__

    _, models = models_json_schema(
        [(model, "validation") for model in MODELS], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Streamlease gateway",
            "version": __version__,
            "description": "docs/gateway.md",
        },
        "paths": {
            **_secured(
                {
                    "/v1/topics/{topic}": {"post": _publish()},
                    "/v1/messages": {"get": _messages()},
                    "/v1/events": {"get": _events()},
                    "/v1/subscriptions": {"get": _subscriptions(), "post": _subscribe()},
                    "/v1/subscriptions/{id}": {
                        "get": _subscription("subscription", "How one stands."),
                        "delete": _subscription("unsubscribe", "End one."),
                    },
                    **catalog_paths(_problems()),
                    **channel_paths(_problems()),
                    **member_paths(_messages()["responses"]["200"], _problems()),
                }
            ),
            "/healthz": {"get": _probe("health", "The process lives.", JSON)},
            "/readyz": {"get": _probe("ready", "Redis answers.", JSON)},
            "/metrics": {"get": _probe("metrics", "What it counts, for Prometheus.", "text/plain")},
            "/openapi.json": {"get": _probe("description", "This document.", JSON)},
        },
        "components": {
            "schemas": models["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _secured(paths: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """With a token; or without, at a gateway for programs of the same machine."""
    return {
        path: {method: {**one, "security": [{"token": []}, {}]} for method, one in methods.items()}
        for path, methods in paths.items()
    }


def _publish() -> dict[str, Any]:
    return {
        "operationId": "publish",
        "summary": "Publish one message, or many: all of the body or none.",
        "parameters": [
            {
                "name": "topic", "in": "path", "required": True,
                "description": "A topic; its slashes may stand as they are.",
                "schema": {"type": "string", "minLength": 1},
            },
            _header("Streamlease-Key", "The key of one message."),
            _header("Idempotency-Key", "The same answer for an hour, and nothing twice; up to 255 letters."),
        ],
        "requestBody": {
            "content": {
                NDJSON: {"schema": {"type": "string", "description": "PublishLine in each line"}},
                ARROW: {"schema": {"type": "string", "format": "binary"}},
                EVENT: {"schema": _model(CloudEvent)},
                EVENTS_BATCH: {"schema": {"type": "array", "minItems": 1, "items": _model(CloudEvent)}},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            }
        },
        "responses": {
            "201": {
                "description": "Written, as durably as the space asks.",
                "content": {JSON: {"schema": {"anyOf": [_model(PlacedMessage), _model(PlacedBatch)]}}},
            },
            **_problems(),
        },
    }  # fmt: skip


def _messages() -> dict[str, Any]:
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {
        "operationId": "messages",
        "summary": "All messages after a point; if there are none, wait.",
        "parameters": [
            *_point(),
            _parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST_LIMIT, "default": LIMIT}),
            _parameter("wait", {"type": "number", "minimum": 0, "maximum": MOST_WAIT, "default": 0}),
        ],
        "responses": {
            "200": {
                "description": "What came after the point, perhaps nothing.",
                "headers": {"Streamlease-Next": {"schema": {"type": "string"}, "description": "The cursor."}},
                "content": {JSON: {"schema": _model(MessagesAnswer)}, NDJSON: binary, ARROW: binary},
            },
            **_problems(),
        },
    }


def _events() -> dict[str, Any]:
    return {
        "operationId": "events",
        "summary": "All messages after a point, as they come.",
        "parameters": [*_point(), _header("Last-Event-ID", "A cursor: the id of the last event that came.")],
        "responses": {
            "200": {
                "description": "Server-sent events: a message each, with the cursor behind it as its id.",
                "content": {EVENTS: {"schema": {"type": "string"}}},
            },
            **_problems(),
        },
    }


def _subscribe() -> dict[str, Any]:
    return {
        "operationId": "subscribe",
        "summary": "Have messages delivered to a callback; or change, or resume, what has that id.",
        "requestBody": {"required": True, "content": {JSON: {"schema": _model(WantedWebhook)}}},
        "responses": {
            "201": {
                "description": "It is delivered.",
                "headers": {"Location": {"schema": {"type": "string"}, "description": "Its address."}},
                "content": {JSON: {"schema": _model(ShownWebhook)}},
            },
            **_problems(),
        },
        "callbacks": {"delivery": {"{$request.body#/callback}": {"post": _delivery()}}},
    }


def _delivery() -> dict[str, Any]:
    return {
        "summary": "Some messages, in order.",
        "parameters": [
            _header("Streamlease-Subscription", "The id of the subscription."),
            _header("Streamlease-Signature", "sha256=, and the HMAC of the body in hexadecimal digits."),
        ],
        "requestBody": {"content": {JSON: {"schema": _model(WebhookDelivered)}}},
        "responses": {"2XX": {"description": "The messages are safe: go on behind them."}},
    }


def _subscriptions() -> dict[str, Any]:
    content = {JSON: {"schema": _model(ShownWebhooks)}}
    return {
        "operationId": "subscriptions",
        "summary": "The subscriptions of the token.",
        "responses": {"200": {"description": "All of them, by id.", "content": content}, **_problems()},
    }


def _subscription(name: str, what: str) -> dict[str, Any]:
    id = {"type": "string", "pattern": ID}
    answer: dict[str, Any] = {
        "200": {"description": what, "content": {JSON: {"schema": _model(ShownWebhook)}}}
    }
    return {
        "operationId": name,
        "summary": what,
        "parameters": [{"name": "id", "in": "path", "required": True, "schema": id}],
        "responses": {
            **(answer if name == "subscription" else {"204": {"description": what}}),
            **_problems(),
        },
    }


def _point() -> list[dict[str, Any]]:
    since = {"type": "string", "default": "latest", "minLength": 1}
    return [
        {**_parameter("filter", {"type": "string", "minLength": 1}), "required": True},
        {
            **_parameter("since", since),
            "description": "A cursor, a time with its zone, earliest or latest; itself excluded.",
        },
    ]


def _parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


def _header(name: str, what: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": what, "schema": {"type": "string", "minLength": 1}}


def _model(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _problems() -> dict[str, Any]:
    content = {"application/problem+json": {"schema": _model(ProblemDocument)}}
    names: dict[int, list[str]] = {}
    for status, name in PROBLEMS.values():
        names.setdefault(status, []).append(name)
    return {
        str(status): {"description": f"{BASE}: {', '.join(some)}", "content": content}
        for status, some in sorted(names.items())
    }


def _probe(name: str, what: str, type: str) -> dict[str, Any]:
    content = {type: {"schema": {"type": "string"} if type == "text/plain" else {"type": "object"}}}
    return {
        "operationId": name,
        "summary": what,
        "responses": {"200": {"description": what, "content": content}, **_problems()},
    }
