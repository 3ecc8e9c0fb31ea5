"""What a gateway answers to the requests of channels, as models; and these requests in OpenAPI. Pure."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from streamlease.channels.core.channel_limits import MOST_COMMANDS
from streamlease.channels.core.channel_polls import ChannelPoll
from streamlease.gateway.channels.core.channel_commands import ChannelCommand
from streamlease.gateway.core.accepting import JSON
from streamlease.gateway.core.answer_models import ProblemDocument, ShownMessage


class BegunSubscription(BaseModel):
    """A key that is subscribed to, and the cursor from which everything of it comes."""

    key: str
    command: int
    cursor: str


class CommandsAnswer(BaseModel):
    """A batch was taken, now or before."""

    gateway: str
    command: int
    """The last one that was taken."""
    subscriptions: list[BegunSubscription]


class ChannelEntry(BaseModel):
    """A message, with the cursor behind it; or how many were dropped."""

    sequence: int
    key: str
    command: int
    """That which began the subscription."""
    message: ShownMessage | None = None
    cursor: str | None = None
    dropped: int | None = None


class ChannelFailure(BaseModel):
    """A key that has ended."""

    sequence: int
    key: str
    command: int
    error: ProblemDocument


class ChannelAnswer(BaseModel):
    """What came."""

    gateway: str
    """Another id than before: this gateway knows nothing of the client, which subscribes again."""
    command: int
    """The last one that was taken."""
    messages: list[ChannelEntry]
    failures: list[ChannelFailure]
    cursor: str | None
    """Behind everything of all keys up to that command; null, if there is more."""


CHANNEL_MODELS: tuple[type[BaseModel], ...] = (ChannelCommand, ChannelPoll, CommandsAnswer, ChannelAnswer)
"""The others are parts of these."""


def channel_paths(problems: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The addresses of channels, with what each takes and answers.

    Args:
        problems: the answers that say what went wrong.
    """
    batch = {"type": "array", "maxItems": MOST_COMMANDS, "items": _model(ChannelCommand)}
    return {
        "/v1/channels/{client}/commands": {
            "post": _request(
                "commands", "Subscribe to keys, and unsubscribe: all of the batch or nothing.", problems,
                batch, CommandsAnswer, "The batch was taken, now or before.",
            )
        },
        "/v1/channels/{client}/poll": {
            "post": _request(
                "poll", "Have what came of all keys, or wait; say what was processed.", problems,
                _model(ChannelPoll), ChannelAnswer, "What came, perhaps nothing.",
            )
        },
        "/v1/channels/{client}": {
            "delete": {
                "operationId": "leave",
                "summary": "End a channel now, instead of after a minute without a poll.",
                "parameters": [_client()],
                "responses": {"204": {"description": "There is none any more."}, **problems},
            }
        },
    }  # fmt: skip


def _request(
    name: str,
    summary: str,
    problems: dict[str, Any],
    body: dict[str, Any],
    answer: type[BaseModel],
    what: str,
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [_client()],
        "requestBody": {"required": name == "commands", "content": {JSON: {"schema": body}}},
        "responses": {
            "200": {"description": what, "content": {JSON: {"schema": _model(answer)}}},
            **problems,
        },
    }


def _client() -> dict[str, Any]:
    return {
        "name": "client", "in": "path", "required": True,
        "description": "A name that no other client, and no earlier run of this one, has.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 200},
    }  # fmt: skip


def _model(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
