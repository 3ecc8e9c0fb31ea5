"""Errors as clients get them: ``application/problem+json`` (RFC 9457), with the value and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from streamlease.channels.core.channel_polls import RefusedCommand
from streamlease.gateway.core.bearer import NotAllowed, NotAuthenticated
from streamlease.gateway.core.cursors import InvalidCursor
from streamlease.gateway.core.rates import TooMuch
from streamlease.gateway.core.refusals import (
    BodyTooLarge,
    FileLostSince,
    GatewayEnds,
    HeadTooLarge,
    LostSince,
    MalformedRequest,
    NotAcceptable,
    NotFound,
    OtherCoding,
    OtherHost,
    OtherVersion,
    TooSlow,
    TruncatedSince,
    WrongMethod,
)
from streamlease.gateway.members.core.member_refusals import (
    ComingBack,
    Misdirected,
    NotCommitted,
    NotHandedOut,
    NotHeld,
    UnknownMember,
)
from streamlease.protocol.errors import (
    CatalogTruncated,
    Fenced,
    GroupConflict,
    HistoryTruncated,
    Indefinite,
    InvalidInput,
    InvalidOption,
    InvalidTopic,
    Lost,
    MessageTooLarge,
    NotDurable,
    NotLeader,
    SchemaMismatch,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
    StreamSealed,
    TaskFailed,
    UnknownGroup,
    UnknownSpace,
    Unsupported,
)
from streamlease.registry.members.member_records import MemberGone, ServedElsewhere
from streamlease.registry.webhooks.webhook_records import SlotFull
from streamlease.streams.publish.kept_answers import KeyReused

if TYPE_CHECKING:
    from streamlease.gateway.http_calls import HttpCall

BASE = "urn:streamlease:problem/"
MEDIA_TYPE = b"application/problem+json"
RETRY_SECONDS = 1


PROBLEMS: dict[type[StreamleaseError], tuple[int, str]] = {
    InvalidInput: (400, "invalid-input"),
    KeyReused: (422, "key-reused"),
    InvalidOption: (400, "invalid-option"),
    InvalidTopic: (400, "invalid-topic"),
    InvalidCursor: (400, "invalid-cursor"),
    MalformedRequest: (400, "malformed-request"),
    NotAuthenticated: (401, "not-authenticated"),
    NotAllowed: (403, "not-allowed"),
    OtherHost: (403, "other-host"),
    NotFound: (404, "not-found"),
    UnknownSpace: (404, "unknown-space"),
    UnknownGroup: (404, "unknown-group"),
    UnknownMember: (404, "unknown-member"),
    MemberGone: (404, "unknown-member"),
    WrongMethod: (405, "wrong-method"),
    NotAcceptable: (406, "not-acceptable"),
    TooSlow: (408, "too-slow"),
    StreamSealed: (409, "stream-sealed"),
    Fenced: (409, "fenced"),
    GroupConflict: (409, "group-conflict"),
    NotHeld: (409, "not-held"),
    NotHandedOut: (409, "not-handed-out"),
    NotCommitted: (409, "not-committed"),
    HistoryTruncated: (410, "history-truncated"),
    TruncatedSince: (410, "history-truncated"),
    LostSince: (410, "history-lost"),
    FileLostSince: (410, "lost"),
    Lost: (410, "lost"),
    CatalogTruncated: (410, "catalog-truncated"),
    BodyTooLarge: (413, "body-too-large"),
    MessageTooLarge: (413, "message-too-large"),
    SchemaMismatch: (422, "schema-mismatch"),
    Misdirected: (421, "misdirected"),
    TooMuch: (429, "too-much"),
    SlotFull: (429, "too-much"),
    HeadTooLarge: (431, "head-too-large"),
    OtherCoding: (501, "other-coding"),
    Unsupported: (501, "unsupported"),
    StoreUnavailable: (503, "store-unavailable"),
    StoreRefused: (503, "store-refused"),
    ComingBack: (503, "coming-back"),
    GatewayEnds: (503, "gateway-ends"),
    ServedElsewhere: (503, "served-elsewhere"),
    NotLeader: (503, "not-leader"),
    OtherVersion: (505, "other-version"),
    NotDurable: (504, "not-durable"),
    Indefinite: (504, "indefinite"),
    TaskFailed: (500, "task-failed"),
    StreamleaseError: (500, "refused"),
}
"""Status and name of each error; that of the nearest class counts.

503 says that nothing was done, so only what is known to be so has it; 500 says nothing of that.
"""


def problem(error: StreamleaseError) -> dict[str, Any]:
    """The document about `error`."""
    status, name = _kind(error.why if isinstance(error, RefusedCommand) else error)
    document: dict[str, Any] = {
        "type": BASE + name,
        "title": name.replace("-", " ").capitalize(),
        "status": status,
        "detail": " ".join(str(error).split()),
    }
    if isinstance(error, TruncatedSince):
        document["oldest"] = error.oldest
    if isinstance(error, (FileLostSince, Lost)):
        document["file"] = error.file
    if isinstance(error, RefusedCommand):
        document |= {"command": error.command, "key": error.key}
    return document


async def answer_problem(call: HttpCall, error: StreamleaseError) -> None:
    """Answer a request that failed; if the answer has begun already, end the connection."""
    status, body, headers = refusal(error)
    await call.answer(status, body, MEDIA_TYPE, *headers[1:])


def refusal(error: StreamleaseError) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    """Status, body and headers of an answer about `error`; the first header is the content type."""
    document = problem(error)
    headers = [(b"content-type", MEDIA_TYPE)]
    if isinstance(error, NotAuthenticated):
        headers.append((b"www-authenticate", b'Bearer realm="streamlease"'))
    elif isinstance(error, WrongMethod):
        headers.append((b"allow", error.allowed.encode()))
    elif isinstance(error, TooMuch):
        headers.append((b"retry-after", b"%d" % max(1, round(error.seconds))))
    elif document["status"] == 503:
        headers.append((b"retry-after", b"%d" % RETRY_SECONDS))
    return document["status"], to_json(document), headers


def refusing_limit(error: StreamleaseError) -> str:
    """Which limit of the gateway refused a request; empty if none did."""
    if isinstance(error, TooMuch):
        return error.limit
    return "body" if isinstance(error, BodyTooLarge) else ""


def problem_name(error: StreamleaseError) -> str:
    """What the `type` of the document about `error` ends in."""
    return _kind(error)[1]


def _kind(error: StreamleaseError) -> tuple[int, str]:
    return next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)
