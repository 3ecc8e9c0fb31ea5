"""An operator's act as the message that asks for it, and what the reply means to the operator."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

from pydantic import BaseModel, ValidationError

from streamlease.protocol.acts import Act, unacceptable
from streamlease.protocol.errors import ActRefused, InvalidOption, NotLeader
from streamlease.protocol.ids import random_token
from streamlease.protocol.messages import (
    Command,
    CommandAstray,
    CommandDone,
    CommandRefused,
    CommandReply,
    DrainHost,
)
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import leadership
from streamlease.registry.groups import Groups
from streamlease.streams.redis.connection import AsyncRedis, ask

if TYPE_CHECKING:
    from streamlease.agent.membership.agent import Agent

M = TypeVar("M", bound=BaseModel)


def command_of(
    group: str,
    act: Act,
    *,
    who: str,
    request: str | None = None,
    at: int = 0,
    dry_run: bool = False,
) -> Command:
    """Asks the leader of a group for an act.

    Args:
        request: id of the command; a new one if not given.
        at: when, in milliseconds since 1970; 0: not known.

    Raises:
        InvalidOption: a field is none, or not acceptable.
    """
    return _checked(
        Command,
        {
            "group": group,
            "request": request or random_token(),
            "act": act,
            "who": who,
            "at": at,
            "dry_run": dry_run,
        },
    )


def drain_of(host: str, *, who: str, at: int, undo: bool) -> DrainHost:
    """Asks a host to hand its leaders to others, or to take them again.

    Raises:
        InvalidOption: a field is not acceptable.
    """
    fields = {"group": host, "request": random_token(), "who": who, "at": at, "undo": undo}
    return _checked(DrainHost, fields)


async def moment(redis: AsyncRedis) -> int:
    """The time by the clock of Redis, in milliseconds since 1970.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    ((whole, part),) = await ask(redis, [("TIME",)])
    return int(whole) * 1000 + int(part) // 1000


async def ask_leader(
    redis: AsyncRedis,
    groups: Groups,
    agent: Callable[[], Awaitable[Agent]],
    subscription: SharedSubscription,
    act: Act,
    *,
    who: str,
    dry_run: bool,
    seconds: float,
) -> dict[str, Any]:
    """`Client.command`."""
    await groups.get(subscription)
    record = await leadership.read(redis, subscription.id)
    if not record.held or record.expired:
        raise NotLeader(f"group '{subscription}' has no leader now: one comes with its next consumer")
    command = command_of(subscription.id, act, who=who, dry_run=dry_run)
    reply = await (await agent()).commands.ask(record.mailbox, command, seconds)
    return answer_of(reply, subscription.id)


async def have_done(
    redis: AsyncRedis,
    groups: Groups,
    agent: Callable[[], Awaitable[Agent]],
    subscription: SharedSubscription,
    act: Act,
    *,
    who: str,
    request: str | None,
    dry_run: bool,
    seconds: float,
) -> dict[str, Any]:
    """`Client.act`."""
    await groups.get(subscription)
    at = await moment(redis)
    command = command_of(subscription.id, act, who=who, request=request, at=at, dry_run=dry_run)
    return answer_of(await (await agent()).commands.act(command, seconds), subscription.id)


async def have_drained(
    redis: AsyncRedis,
    agent: Callable[[], Awaitable[Agent]],
    host: str,
    *,
    who: str,
    undo: bool,
    seconds: float,
) -> dict[str, Any]:
    """`Client.drain_host`."""
    drain = drain_of(host, who=who, at=await moment(redis), undo=undo)
    return answer_of(await (await agent()).commands.drain_host(drain, seconds), host)


def answer_of(reply: CommandReply | CommandAstray, whom: str) -> dict[str, Any]:
    """What was answered.

    Raises:
        ActRefused: it was not done.
        NotLeader: whoever was asked is not the one.
    """
    match reply:
        case CommandDone():
            answer: dict[str, Any] = json.loads(reply.body)
        case CommandRefused():
            raise ActRefused(reply.error)
        case CommandAstray():
            raise NotLeader(f"the host that led {whom} does so no more: try again")
        case _:
            assert_never(reply)
    return answer


def _checked(kind: type[M], fields: dict[str, Any]) -> M:
    try:
        message = kind.model_validate(fields)
        message.model_dump_json()
    except ValidationError as error:
        raise unacceptable(error) from None
    except ValueError:
        raise InvalidOption(
            "a text of the act cannot be encoded as UTF-8 (lone surrogate): remove that character"
        ) from None
    return message
