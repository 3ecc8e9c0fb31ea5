"""Borrowers in a wanted state, and the messages that their leader sends them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from streamlease.borrower.events import (
    Disconnected,
    Effect,
    LeaderFound,
    Progressed,
    Received,
    SendToLeader,
    Started,
    Unsubscribed,
)
from streamlease.borrower.life import BorrowerConfig, BorrowerState
from streamlease.borrower.link import Identity
from streamlease.borrower.machine import Borrower
from streamlease.protocol.messages import (
    BorrowerToLeader,
    Grant,
    Grants,
    Invalidate,
    LeaderConnectResponse,
    LeaderToBorrower,
    NotLeader,
    PingResponse,
    Progress,
    ProgressCommitted,
    Revoke,
    Revoked,
)

GROUP, ME, TERM = "g/a", "b1", 5
CONFIG = BorrowerConfig()
STREAM, LEASE_EPOCH = "s.0.0", 3
_Kind = TypeVar("_Kind")


def connect_response(term: int = TERM) -> LeaderConnectResponse:
    return LeaderConnectResponse(group=GROUP, borrower=ME, term=term, leader="h")


def grant(
    stream: str = STREAM, lease_epoch: int = LEASE_EPOCH, progress: int = 10, term: int = TERM, **more: Any
) -> Grant:
    return Grant(
        group=GROUP, borrower=ME, term=term, stream=stream, lease_epoch=lease_epoch, progress=progress, **more
    )


def grants(*rows: tuple[str, int, int, int | None, int | None], term: int = TERM) -> Grants:
    """Rows of a stream, a lease epoch, an offset, `resumes` and `follows`."""
    names = ("streams", "lease_epochs", "offsets", "resumes", "follows")
    columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=True))
    return Grants(group=GROUP, borrower=ME, term=term, **columns)


def revoke(stream: str = STREAM, lease_epoch: int = LEASE_EPOCH, term: int = TERM) -> Revoke:
    return Revoke(group=GROUP, borrower=ME, term=term, stream=stream, lease_epoch=lease_epoch)


def revoked(stream: str = STREAM, lease_epoch: int = LEASE_EPOCH, term: int = TERM) -> Revoked:
    return Revoked(group=GROUP, borrower=ME, term=term, stream=stream, lease_epoch=lease_epoch)


def committed(
    offset: int, stream: str = STREAM, lease_epoch: int = LEASE_EPOCH, term: int = TERM, final: bool = False
) -> ProgressCommitted:
    entry = Progress(stream=stream, lease_epoch=lease_epoch, offset=offset, final=final)
    return ProgressCommitted(group=GROUP, borrower=ME, term=term, progress=(entry,))


def pong(term: int = TERM) -> PingResponse:
    return PingResponse(group=GROUP, borrower=ME, term=term)


def invalidate(reason: Any = "unknown", term: int = TERM) -> Invalidate:
    return Invalidate(group=GROUP, borrower=ME, term=term, reason=reason)


def not_leader(term: int = TERM) -> NotLeader:
    return NotLeader(group=GROUP, borrower=ME, term=term)


def new(config: BorrowerConfig = CONFIG) -> Borrower:
    return Borrower(Identity(GROUP, ME, "session", "name", 7, 2, "here"), config)


def hear(borrower: Borrower, message: LeaderToBorrower, now: int = 0) -> list[Effect]:
    return borrower.step(Received(message), now)


def in_state(
    state: BorrowerState, streams: Iterable[Grant] = (), config: BorrowerConfig = CONFIG
) -> Borrower:
    """A borrower that went the ordinary way to `state`, at time 0, and holds these streams."""
    borrower = new(config)
    borrower.step(Started(), 0)
    borrower.step(LeaderFound("box", TERM), 0)
    if state is BorrowerState.CONNECTING:
        return borrower
    hear(borrower, connect_response())
    for message in streams:
        hear(borrower, message)
    if state is BorrowerState.UNSUBSCRIBING:
        if not borrower.streams:
            hear(borrower, grant("keeps.it.open", 1))
        borrower.step(Unsubscribed(), 0)
    elif state is BorrowerState.ENDED:
        borrower.step(Disconnected(), 0)
    assert borrower.state is state
    return borrower


def connected(*streams: Grant, config: BorrowerConfig = CONFIG) -> Borrower:
    return in_state(BorrowerState.CONNECTED, streams, config)


def progressed(
    offset: int, *, final: bool = False, stream: str = STREAM, lease_epoch: int = LEASE_EPOCH
) -> Progressed:
    return Progressed(stream, lease_epoch, offset, final)


def sent(effects: Iterable[Effect], kind: type[_Kind] | None = None) -> list[_Kind]:
    """The messages (of one type) among `effects`."""
    messages: list[BorrowerToLeader] = [e.message for e in effects if isinstance(e, SendToLeader)]
    return [m for m in messages if kind is None or isinstance(m, kind)]  # type: ignore[misc]


def only(effects: Iterable[Effect], kind: type[_Kind]) -> _Kind:
    (found,) = [effect for effect in effects if isinstance(effect, kind)]
    return found


def frozen(borrower: Borrower) -> Borrower:
    """All that a borrower is, but for the count of what it refused."""
    same = copy.deepcopy(borrower)
    same.refused = 0
    return same
