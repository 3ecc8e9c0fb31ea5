"""What the page shows, kept up to date by one reader for all viewers.

One look reads the definitions, the leadership records, the new entries of all journals and the ends of all
streams, each in one round trip. It asks no leader, and then rests at least twice as long as it took, so
watching adds little load to a busy Redis or machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from streamlease.admin.facts import hosts
from streamlease.admin.facts.hosts import Host, Server
from streamlease.admin.facts.rows import Count, FactRow, lag_of, total
from streamlease.admin.facts.spaces import SpaceRow, messages
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.operated import Acted, BorrowerLeft, RefusedAct
from streamlease.leader.core.state.progress import StreamProgress
from streamlease.leader.core.state.records import (
    Attested,
    Committed,
    CutClosed,
    CutOpened,
    DeadLettered,
    Expired,
    Failed,
    HandedOver,
    Leased,
    Record,
    Released,
    Returned,
    SessionForgotten,
    StreamsAdded,
    StreamsAdvanced,
    StreamsForgotten,
    TermStarted,
    Truncated,
)
from streamlease.leader.journals import JournalFollower, JournalNews
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.registry import leadership
from streamlease.streams.redis.damaged import readable, why
from streamlease.streams.spaces.retention import Holdings, Kept

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.streams.spaces.spaces import Space

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.5
REST = 2
"""How many times as long as a look took the reader rests at least. The shorter of the last two counts, so
that one slow look, such as the first, makes no pause."""

SILENT_SECONDS = 30.0
"""After so long without the end of a look, what is shown counts as out of date."""

LAG_POINTS = 1200
"""Points of the lag of a group that are kept."""

EVENTS = 200
"""Newest events of a group that are kept."""


class StreamRow(NamedTuple):
    """One stream of a group, sent as a list; what is unknown is None."""

    stream: str
    owner: str | None
    lease_epoch: int
    state: str
    committed: int
    next: int | None
    lag: int | None


class SpaceOnPage(SpaceRow):
    messages: Count
    bytes: int
    held_by: list[str]
    held_since: int | None
    """Microseconds since 1970."""


class GroupOnPage(FactRow):
    subscription: str
    leader: str | None
    term: Count
    streams: Count
    held: Count
    borrowers: Count
    moves: Count
    lag: Count | None
    expired: bool


class DamagedOnPage(FactRow):
    what: str
    why: str


class Overview(FactRow):
    time: Count
    """Milliseconds since 1970."""
    redis: Server
    hosts: list[Host]
    spaces: list[SpaceOnPage]
    groups: list[GroupOnPage]
    damaged: list[DamagedOnPage]


@dataclass(slots=True)
class GroupBoard:
    """One group as the page shows it."""

    subscription: SharedSubscription
    rows: dict[str, StreamRow] = field(default_factory=dict)
    lag: deque[tuple[int, int | None]] = field(default_factory=lambda: deque(maxlen=LAG_POINTS))
    """Time (ms since 1970) and lag of all streams."""
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS))
    summary: GroupOnPage | None = None
    """None: it was not looked at yet."""
    written: int = 0
    """How many events there were; the newest is event number `written`."""


class Board:
    """Reads, and wakes those who wait for news.

    Whoever runs it owns it: if `run` ends, `fail` tells those who wait, and it shows nothing more.
    """

    def __init__(self, client: Client, interval: float = INTERVAL_SECONDS) -> None:
        self.groups: dict[str, GroupBoard] = {}
        """By subscription."""
        self.overview: Overview | None = None
        """What the newest look found; None: nothing was read yet."""
        self.error: str | None = "nothing was read yet"
        """Why the newest look failed; None if it did not."""
        self.failure: StreamleaseError | None = None
        """Why it looks no more; None: it does, or has not begun."""
        self.number = 0
        """How many looks there were."""
        self.took = 0.0
        """Seconds of the newest look."""
        self.looked_at = time.monotonic()
        """When the newest look ended, by this process' clock."""
        self._client = client
        self._interval = interval
        self._follower = JournalFollower(client.redis)
        self._holdings = Holdings(client.redis)
        self._known: dict[str, tuple[object, dict[StreamId, str]]] = {}
        """The streams of each space with their text forms, as long as it has the same generations."""
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            began, before = time.monotonic(), self.took
            try:
                await self._look()
                self.error = None
            except StreamleaseError as error:
                self.error = why(error)
                log.warning("cannot read: %s", self.error)
            self.looked_at = time.monotonic()
            self.took = time.monotonic() - began
            self.number += 1
            self._wake()
            await asyncio.sleep(max(self._interval, REST * min(before, self.took)))

    def fail(self, name: str, error: StreamleaseError) -> None:
        """What ran it has ended, against its will: wake those who wait, and say why."""
        self.failure = error
        self.error = " ".join(str(error).split())
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    @property
    def trouble(self) -> str | None:
        """Why what is shown is not the present state; None if it is."""
        silent = time.monotonic() - self.looked_at
        if self.error is None and silent > SILENT_SECONDS:
            return f"the newest look at Redis ended {silent:.0f} s ago"
        return self.error

    async def after(self, number: int) -> int:
        """Wait for a look after that of `number`; its number.

        Raises:
            TaskFailed: it looks no more.
        """
        while self.failure is None and self.number <= number:
            await self._news.wait()
        if self.failure is not None:
            raise self.failure
        return self.number

    async def _look(self) -> None:
        client = self._client
        known, all_groups = await client.spaces.look(), await client.groups.look()
        spaces, shared = known.listed, all_groups.groups
        alive = await hosts.alive(client.redis)
        server = await hosts.server(client.redis)
        ids = [one.id for one in shared]
        leaders, unread = await readable(ids, partial(leadership.read_all, client.redis))
        unread |= {group: record.damage for group, record in leaders.items() if record.damage}
        news = await self._follower.look(ids, unread)
        # After the journals: what they say is committed was there before.
        streams = {space.name: self._streams_of(space) for space in spaces}
        sizes = await self._holdings.look([stream for some in streams.values() for stream in some])
        now = round(time.time() * 1000)
        wanted = {str(one): one for one in shared if one.id not in unread}
        self.groups = {
            name: self.groups.get(name) or GroupBoard(subscription) for name, subscription in wanted.items()
        }
        ends = {
            some[stream]: sizes[stream].state.next
            for some in streams.values()
            for stream in some
            if stream in sizes
        }
        for group in self.groups.values():
            identity = group.subscription.id
            self._take(group, news.get(identity, JournalNews()), ends, leaders[identity], now)
        damaged = {f"space {name}": one.why for name, one in known.damaged.items()}
        damaged |= {f"group {name}": reason for name, reason in all_groups.damaged.items()}
        damaged |= {f"group {one}": unread[one.id] for one in shared if one.id in unread}
        self.overview = Overview(
            time=now,
            redis=server,
            hosts=alive,
            spaces=[_space(space, [*filter(None, map(sizes.get, streams[space.name]))]) for space in spaces],
            groups=[group.summary for group in self.groups.values() if group.summary is not None],
            damaged=[DamagedOnPage(what=what, why=reason) for what, reason in damaged.items()],
        )

    def _streams_of(self, space: Space) -> dict[StreamId, str]:
        known = self._known.get(space.name)
        if known is None or known[0] != space.generations:
            known = space.generations, {stream: str(stream) for stream in space.streams()}
            self._known[space.name] = known
        return known[1]

    def _take(
        self,
        group: GroupBoard,
        news: JournalNews,
        ends: Mapping[str, int],
        leader: leadership.LeaderRecord,
        now: int,
    ) -> None:
        state = self._follower.groups[group.subscription.id].state
        for at, record in news.records:
            if (event := _event(record, at)) is not None:
                group.written += 1
                group.events.append({"number": group.written, **event})
        rows, lag = _rows(group.rows, state, ends)
        group.rows = rows
        group.lag.append((now, lag))
        live = leader.held and not leader.expired
        owners = {row.owner for row in rows.values() if row.owner is not None}
        group.summary = GroupOnPage(
            subscription=str(group.subscription),
            leader=leader.host if live else None,
            term=leader.term,
            streams=len(rows),
            held=sum(row.owner is not None for row in rows.values()),
            borrowers=len(owners),
            moves=state.moves,
            lag=lag,
            expired=state.expired_at is not None,
        )


def _rows(
    before: Mapping[str, StreamRow], state: GroupState, ends: Mapping[str, int]
) -> tuple[dict[str, StreamRow], int | None]:
    """A row for each stream, the same object as before where nothing changed; and the lag of all."""
    rows: dict[str, StreamRow] = {}
    for stream, progress in state.streams.items():
        row, made = before.get(stream), _row(stream, progress, ends.get(stream))
        rows[stream] = made if row is None or row != made else row
    return rows, total(row.lag for row in rows.values())


def _row(stream: str, progress: StreamProgress, next: int | None) -> StreamRow:
    if progress.finished:
        state = "finished"
    elif progress.waiting:
        state = "waiting"
    else:
        state = "free" if progress.owner is None else "held"
    committed = progress.committed
    return StreamRow(
        stream, progress.owner, progress.lease_epoch, state, committed, next, lag_of(next, committed)
    )


def _event(record: Record, at: int) -> dict[str, Any] | None:
    match record:
        case TermStarted():
            return {"at": at, "what": "term", "text": f"{record.host} leads in term {record.term}"}
        case Leased():
            return {"at": at, "what": "lease", "stream": record.stream, "to": record.name}
        case HandedOver():
            how = "hand-over" if record.clean else "take-over"
            return {"at": at, "what": how, "stream": record.stream, "ms": record.milliseconds}
        case Acted():
            return {"at": at, "what": "act", "text": f"{record.outcome.act} by {record.who}"}
        case RefusedAct():
            return {"at": at, "what": "act", "text": f"{record.act} by {record.who} was refused"}
        case StreamsAdded() | StreamsAdvanced() | StreamsForgotten() | Truncated() | Attested():
            return None
        case Released() | Committed() | CutOpened() | CutClosed() | SessionForgotten():
            return None
        case Failed() | DeadLettered() | Expired() | Returned() | BorrowerLeft():
            return None
        case _:
            assert_never(record)


def _space(space: Space, found: Sequence[Kept]) -> SpaceOnPage:
    return SpaceOnPage.of(
        space,
        messages=messages(found),
        bytes=sum(size.state.bytes for size in found),
        held_by=sorted({size.held_by for size in found if size.held_by is not None}),
        held_since=min((size.held_since for size in found if size.held_since is not None), default=None),
    )
