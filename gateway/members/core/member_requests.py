"""What requests of members say, checked before anything is done. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, ValidationError
from pydantic_core import from_json, to_json

from streamlease.gateway.core.cursors import Cursor, CursorCodec
from streamlease.gateway.core.questions import MOST_WAIT, parse_moment, parse_seconds
from streamlease.gateway.members.core.member_ids import LONGEST_FILTER
from streamlease.protocol.errors import InvalidInput, InvalidOption, InvalidTopic
from streamlease.protocol.ids import MOST_NUMBER, StreamId, check_name
from streamlease.protocol.topics import SharedSubscription

SESSION_SECONDS = 30.0
LEAST_SESSION, MOST_SESSION = 2.0, 86_400.0
MOST_STREAMS = 1000
"""In one commit."""

MESSAGES, MOST_MESSAGES = 1000, 10_000
"""In one answer."""

LONGEST_ERROR = 100_000
PARAMETERS = frozenset({"max", "wait", "since"})

GroupStart = Literal["earliest", "latest"] | datetime | int | Mapping[str, int]
"""Where a group begins; which offsets can be, `streamlease.registry.starts` knows."""

_Offset = Annotated[StrictInt, Field(ge=0, le=MOST_NUMBER)]
M = TypeVar("M", bound="_Body")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JoinBody(_Body):
    """Who joins a group."""

    filter: Annotated[StrictStr, Field(min_length=1)]
    start: StrictStr | _Offset | dict[StrictStr, _Offset] = "latest"
    """Where the group begins if this is its first consumer: `earliest`, `latest`, a time with its zone, an
    offset, or offsets by stream."""
    name: StrictStr | None = None
    """A static name: a newcomer with the same name takes the streams over at once."""
    session_timeout: Annotated[StrictInt | StrictFloat, Field(ge=LEAST_SESSION, le=MOST_SESSION)] = (
        SESSION_SECONDS
    )
    """Seconds without a request after which the member leaves the group."""


class _StartBody(_Body):
    start: StrictStr | _Offset | dict[StrictStr, _Offset]


class CommitBody(_Body):
    """What is done: of each stream all below an offset."""

    offsets: Annotated[dict[StrictStr, _Offset], Field(min_length=1, max_length=MOST_STREAMS)]


class FailBody(_Body):
    """A message that could not be processed; all before it in its stream is done."""

    stream: StrictStr
    offset: _Offset
    error: Annotated[StrictStr, Field(max_length=LONGEST_ERROR)] = ""


@dataclass(frozen=True, slots=True)
class AskedToJoin:
    """Who wants to join."""

    shared: SharedSubscription
    start: GroupStart
    name: str | None
    session_timeout: float


@dataclass(frozen=True, slots=True)
class AskedToFetch:
    """What a member wants to get.

    Args:
        since: behind what it has got already; None: behind what it has committed.
    """

    since: Cursor | None
    limit: int = MESSAGES
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """Which message failed, and why."""

    stream: StreamId
    offset: int
    error: str


def parse_join(body: bytes, group: str) -> AskedToJoin:
    """Who wants to join `group`, by the body of a request.

    Raises:
        InvalidInput, InvalidOption, InvalidTopic: something is missing, unknown or wrong.
    """
    asked = _parsed(JoinBody, body, '{"filter": "flights/#", "start": "earliest"}')
    shared = SharedSubscription.parse(f"$shared/{check_group(group)}/{asked.filter}")
    if len(asked.filter.encode()) > LONGEST_FILTER:
        raise InvalidTopic(
            f"the filter has {len(asked.filter.encode())} bytes: a member's has {LONGEST_FILTER} at most"
        )
    if asked.name is not None:
        check_name("static name", asked.name)
    return AskedToJoin(shared, _start(asked.start), asked.name, float(asked.session_timeout))


def parse_commit(body: bytes) -> dict[StreamId, int]:
    """Of each stream all below which offset is done.

    Raises:
        InvalidInput: the body does not say that.
    """
    offsets = _parsed(CommitBody, body, '{"offsets": {"flights.0.3": 17}}').offsets
    return {StreamId.parse(stream): next for stream, next in offsets.items()}


def parse_fail(body: bytes) -> FailedMessage:
    """Which message failed.

    Raises:
        InvalidInput: the body does not say that.
    """
    found = _parsed(FailBody, body, '{"stream": "flights.0.3", "offset": 17, "error": "..."}')
    return FailedMessage(StreamId.parse(found.stream), found.offset, found.error)


def parse_fetch(given: Mapping[str, str], cursors: CursorCodec) -> AskedToFetch:
    """What a member wants, in the parameters of a URL.

    Raises:
        InvalidOption, InvalidCursor: a parameter is unknown or wrong.
    """
    for name in given:
        if name not in PARAMETERS:
            raise InvalidOption(
                f"there is no parameter {ascii(name)[:80]} here: use {', '.join(sorted(PARAMETERS))}"
            )
    since = cursors.parse(given["since"]) if "since" in given else None
    return AskedToFetch(since, _most(given.get("max")), parse_seconds("wait", given.get("wait"), MOST_WAIT))


def check_group(group: str) -> str:
    """`group`, if it can name a group.

    Raises:
        InvalidTopic: it cannot.
    """
    if not group or "/" in group:
        raise InvalidTopic(
            f"the path names the group {ascii(group)[:80]}: write /v1/groups/GROUP/members, without a slash "
            f"in GROUP"
        )
    return SharedSubscription.parse(f"$shared/{group}/#").group


def _most(text: str | None) -> int:
    if text is None:
        return MESSAGES
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST_MESSAGES):
        raise InvalidOption(f"max is {ascii(text)[:80]}: give a number of messages from 1 to {MOST_MESSAGES}")
    return int(text)


def start_text(start: GroupStart) -> str:
    """`start` for the record of a member; see `parse_start`."""
    return to_json(start).decode()


def parse_start(text: str) -> GroupStart:
    """The start that `start_text` made a text of.

    Raises:
        InvalidInput: it did not.
    """
    return _start(_parsed(_StartBody, b'{"start":%b}' % text.encode(), "").start)


def _start(given: str | int | dict[str, int]) -> GroupStart:
    if not isinstance(given, str):
        return given
    if given in ("earliest", "latest"):
        return "earliest" if given == "earliest" else "latest"
    moment = parse_moment(given)
    if moment is None or moment.tzinfo is None:
        raise InvalidOption(
            f"start is {ascii(given)[:80]}: give earliest, latest, a time with its zone such as "
            f"2026-01-31T12:00:00Z, an offset, or offsets by stream"
        )
    return moment


def _parsed(model: type[M], body: bytes, example: str) -> M:
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInput(
            f"the body {body[:60].decode('utf-8', 'replace')!a} is no JSON ({error}): send {example}"
        ) from None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(one) for one in first["loc"]) or "the body"
        given = ascii(first["input"])[:80]
        raise InvalidInput(
            f"{ascii(place)[1:-1][:80]} is {given}: {first['msg'][0].lower()}{first['msg'][1:]}; "
            f"send {example}"
        ) from None
