"""An operator's act as the message that asks for it, and what the reply means to the operator."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, assert_never

from pydantic import BaseModel, ValidationError

from streamlease.protocol.acts import KINDS, Act, DeleteGroup, parse, unacceptable
from streamlease.protocol.errors import (
    ActRefused,
    Indefinite,
    InvalidOption,
    NotLeader,
    StoreRefused,
    StoreUnavailable,
)
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
from streamlease.streams.redis.damaged import attempt

if TYPE_CHECKING:
    from streamlease.agent.membership.agent import Agent

M = TypeVar("M", bound=BaseModel)
ACT_SECONDS = 4.5
"""How long an operator's act may take until it is answered or given up."""
MOST_SECONDS = 3600


class ActFields(TypedDict, total=False):
    """The fields of an act that is named; which it has, ``protocol.acts`` says."""

    stream: str
    """``SPACE.GENERATION.SHARD``."""
    borrower: str
    """Name or id."""
    offsets: dict[str, int]
    """By stream."""
    until: int
    """Milliseconds since 1970."""
    force: bool


class CommandOptions(ActFields, total=False):
    """How an act is asked for."""

    who: str
    """Who acts, as kept in the group's history."""
    dry_run: bool
    """Only answer what it would do."""
    seconds: float
    """How long to wait for the answer."""


class ActOptions(CommandOptions, total=False):
    """How an act is asked for that is done once."""

    request: str | None
    """Id of the command: the same one is never done twice; a new one if not given."""


class DrainOptions(TypedDict, total=False):
    """How the drain of a host is asked for."""

    who: str
    """Who acts, as kept in the histories of its groups."""
    undo: bool
    """End the drain."""
    seconds: float
    """How long to wait for the answer."""


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
    subscription: SharedSubscription | str,
    act: Act | str,
    *,
    who: str = "",
    dry_run: bool = False,
    seconds: float = 5.0,
    **fields: Unpack[ActFields],
) -> dict[str, Any]:
    """`Client.command`."""
    shared, wanted = SharedSubscription.of(subscription), _act_of(act, fields)
    _check_seconds(seconds)

    async def done() -> dict[str, Any]:
        record = await leadership.read(redis, shared.id)
        if not record.held or record.expired:
            raise NotLeader(f"group '{shared}' has no leader now: one comes with its next consumer")
        command = command_of(shared.id, wanted, who=who, dry_run=dry_run)
        reply = await (await agent()).commands.ask(record.mailbox, command, seconds)
        return answer_of(reply, shared.id)

    return await _whole(groups, shared, wanted, done, dry_run=dry_run)


async def have_done(
    redis: AsyncRedis,
    groups: Groups,
    agent: Callable[[], Awaitable[Agent]],
    subscription: SharedSubscription | str,
    act: Act | str,
    *,
    who: str = "",
    request: str | None = None,
    dry_run: bool = False,
    seconds: float = ACT_SECONDS,
    **fields: Unpack[ActFields],
) -> dict[str, Any]:
    """`Client.act`."""
    shared, wanted = SharedSubscription.of(subscription), _act_of(act, fields)
    _check_seconds(seconds)

    async def done() -> dict[str, Any]:
        at = await moment(redis)
        command = command_of(shared.id, wanted, who=who, request=request, at=at, dry_run=dry_run)
        return answer_of(await (await agent()).commands.act(command, seconds), shared.id)

    return await _whole(groups, shared, wanted, done, dry_run=dry_run)


async def _whole(
    groups: Groups,
    shared: SharedSubscription,
    wanted: Act,
    done: Callable[[], Awaitable[dict[str, Any]]],
    *,
    dry_run: bool,
) -> dict[str, Any]:
    """The act with what is to be done beside the leader's part of it, which is `done`."""
    if not isinstance(wanted, DeleteGroup):
        await groups.get(shared)
        return await done()
    declaration, why = await attempt(groups.get(shared))
    if declaration is None and shared not in await groups.list():
        await groups.get(shared)  # which says that nobody declared it
    if declaration is None and not wanted.force:
        raise ActRefused(
            f"group '{shared}' cannot be read ({why}), so no leader can say whether somebody consumes it: "
            f"delete it with --force (force=True)"
        )
    wishes = None if wanted.force else await groups.wishes(shared)
    answer = {} if declaration is None else await done()
    if dry_run:
        return answer
    try:
        await groups.forget(shared, wishes)
    except (StoreUnavailable, StoreRefused, Indefinite) as error:
        raise Indefinite(
            f"the leader of '{shared}' and its consumers have ended for its deletion, but what is kept "
            f"of it may be there still ({error}): repeat it"
        ) from None
    return answer


def _check_seconds(given: float) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= MOST_SECONDS:
        raise InvalidOption(f"seconds is {ascii(given)[:80]}: give more than 0, up to {MOST_SECONDS}")


def _act_of(given: Act | str, fields: Mapping[str, Any]) -> Act:
    """The act that is meant.

    Raises:
        InvalidOption: there is none of that name, or a field is none or not acceptable.
    """
    if isinstance(given, str):
        return parse(given, **fields)
    if not isinstance(given, Act):
        raise InvalidOption(f"act is {ascii(given)[:80]}: use one of {', '.join(KINDS)}")
    if fields:
        raise InvalidOption(f"the act has its fields, and {', '.join(fields)} beside them: leave these out")
    return given


async def have_drained(
    redis: AsyncRedis,
    agent: Callable[[], Awaitable[Agent]],
    host: str,
    *,
    who: str = "",
    undo: bool = False,
    seconds: float = ACT_SECONDS,
) -> dict[str, Any]:
    """`Client.drain_host`."""
    _check_seconds(seconds)
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
