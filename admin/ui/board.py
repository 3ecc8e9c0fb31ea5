"""What the console shows of one Redis, kept up to date by one reader for all who look at it.

One look reads the definitions, the leadership records, the new entries of all journals and the ends of all
streams, each in one round trip. It asks no leader, and then rests at least twice as long as it took, so
watching adds little load to a busy Redis or machine. While nobody looks, nothing is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from streamlease.admin.facts import hosts
from streamlease.admin.facts.groups import longest, seconds_waiting
from streamlease.admin.facts.spaces import messages
from streamlease.admin.ui.attention import concerns
from streamlease.admin.ui.board_rows import DamagedOnPage, Overview, ProcessOnPage, SpaceOnPage
from streamlease.admin.ui.group_board import GroupBoard
from streamlease.admin.ui.message_rates import MessageRates
from streamlease.admin.ui.shown_processes import read_processes
from streamlease.admin.ui.slow_facts import HostChanges, SlowFacts, SlowLooks
from streamlease.leader.journals import PAGE, JournalFollower, JournalNews
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.registry import group_needs, leadership
from streamlease.streams.log.times import waiting
from streamlease.streams.redis.damaged import attempt, readable, why
from streamlease.streams.spaces.matching import SpacesByFilter
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

LINGER_SECONDS = 5.0
"""For so long it goes on looking when nobody looks any more: somebody may only change pages."""

SLOW_SECONDS = 2.0
"""How often what costs more is read: since when messages wait, and which processes there are."""

SLOW_REST = 10
MOST_PAGES = 200
"""So many times journals are read on in one look."""

MOST_PROCESSES = 500
"""Processes that are shown; all are counted."""

MOST_BEGUN = 20_000
"""Streams of groups that nobody led yet that are looked at; of further such groups the lag is unknown."""


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
        """When the newest look ended, or the first one after a rest was asked for, by this process' clock."""
        self.resting = True
        """Nobody looks, so nothing is read."""
        self.is_current = False
        """Whether it was looked at since the last rest."""
        self.space_rates, self.group_rates = MessageRates(), MessageRates()
        self._client = client
        self._interval = interval
        self._follower = JournalFollower(client.redis)
        self._holdings = Holdings(client.redis)
        self._known: dict[str, tuple[object, dict[StreamId, str]]] = {}
        """The streams of each space with their text forms, as long as it has the same generations."""
        self.listeners: list[Callable[[], None]] = []
        """Called after each look."""
        self._news = asyncio.Event()
        self._asked = asyncio.Event()
        self._viewers = 0
        self._wanted_until = float("-inf")
        self._slow_at = float("-inf")
        self._ages: dict[str, float | None] = {}
        self._never_led: dict[str, dict[str, int]] = {}
        """The groups that no leader has begun yet, and where each of their streams would begin."""
        self._processes: list[ProcessOnPage] | None = None
        """All that live; None: the catalog cannot be read."""
        self._matching = SpacesByFilter([])
        self._slow_looks, self._slow_facts = SlowLooks(client), SlowFacts()
        self._changes = HostChanges()

    async def run(self) -> None:
        """Look once, so that the first who comes need not wait, and then while somebody wants to see it."""
        self._wanted_until = time.monotonic() + self._interval
        while True:
            if not self._wanted:
                self.resting, self.is_current = True, False
                self._asked.clear()
                await self._asked.wait()
            if self.resting:
                self.resting, self.looked_at = False, time.monotonic()
            began, before = time.monotonic(), self.took
            try:
                await self._look()
                self.error = None
            except StreamleaseError as error:
                self.error = why(error)
                log.warning("cannot read: %s", self.error)
            self.looked_at = time.monotonic()
            self.took = time.monotonic() - began
            self._tell()
            await asyncio.sleep(max(self._interval, REST * min(before, self.took)))

    def fail(self, name: str, error: StreamleaseError) -> None:
        """What ran it has ended, against its will: wake those who wait, and say why."""
        self.failure = error
        self.error = " ".join(str(error).split())
        self._tell()

    def _tell(self) -> None:
        self.number += 1
        self.is_current = True
        news, self._news = self._news, asyncio.Event()
        news.set()
        for listener in self.listeners:
            listener()

    @property
    def _wanted(self) -> bool:
        return self._viewers > 0 or time.monotonic() < self._wanted_until

    @property
    def trouble(self) -> str | None:
        """Why what is shown is not the present state; None if it is, or nobody looks."""
        if self.failure is not None or not self.resting:
            silent = time.monotonic() - self.looked_at
            if self.error is None and silent > SILENT_SECONDS:
                return f"the newest look at Redis ended {silent:.0f} s ago"
            return self.error
        return None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Somebody looks as long as this lasts."""
        self._viewers += 1
        self._asked.set()
        try:
            yield
        finally:
            self._viewers -= 1
            self._wanted_until = time.monotonic() + LINGER_SECONDS

    async def after(self, number: int) -> int:
        """Wait for a look after that of `number`; its number.

        Raises:
            TaskFailed: it looks no more.
        """
        with self.watched():
            while self.failure is None and self.number <= number:
                await self._news.wait()
        if self.failure is not None:
            raise self.failure
        return self.number

    async def fresh(self) -> None:
        """Wait for a look, if nobody has looked for a while.

        Raises:
            TaskFailed: it looks no more.
        """
        rested = self.resting or self.overview is None
        await self.after(self.number if rested else self.number - 1)

    async def _look(self) -> None:
        client = self._client
        known, all_groups = await client.spaces.look(), await client.groups.look()
        spaces, shared = known.listed, all_groups.groups
        alive = await hosts.alive(client.redis)
        server = await hosts.server(client.redis)
        ids = [one.id for one in shared]
        leaders, unread = await readable(ids, partial(leadership.read_all, client.redis))
        unread |= {group: record.damage for group, record in leaders.items() if record.damage}
        news = await self._read_journals(ids, unread)
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
        if not self._matching.is_of(spaces):
            self._matching = SpacesByFilter(spaces)
        followed = self._follower.groups
        began = time.monotonic()
        slowly = began >= self._slow_at
        if slowly:
            await self._look_at_never_led(spaces)
        for group in self.groups.values():
            identity = group.subscription.id
            begins = self._never_led.get(str(group.subscription))
            group.take(news.get(identity, JournalNews()), followed[identity].state, ends, now, begins)
        if slowly:
            await self._look_slowly(spaces)
            ended = time.monotonic()
            self._slow_at = ended + max(SLOW_SECONDS, SLOW_REST * (ended - began))
        self._summarize(leaders)
        damaged = {f"space {name}": one.why for name, one in known.damaged.items()}
        damaged |= {f"group {name}": reason for name, reason in all_groups.damaged.items()}
        damaged |= {f"group {one}": unread[one.id] for one in shared if one.id in unread}
        found = {space.name: [*filter(None, map(sizes.get, streams[space.name]))] for space in spaces}
        rates = self.space_rates.take(
            time.monotonic(), {name: sum(one.state.next for one in some) for name, some in found.items()}
        )
        shown = [
            _space(space, found[space.name], rates[space.name], len(streams[space.name])) for space in spaces
        ]
        rows = [group.summary for group in self.groups.values() if group.summary is not None]
        processes = self._processes or []
        self.overview = Overview(
            time=now,
            redis=server,
            hosts=alive,
            spaces=shown,
            groups=rows,
            processes=processes[:MOST_PROCESSES],
            publishing=sum(bool(one.publishes) for one in processes),
            consuming=sum(bool(one.consumes) for one in processes),
            concerns=concerns(
                rows,
                shown,
                alive,
                now,
                self._slow_facts,
                client_led=self._changes.led_by_clients(rows, alive, now),
                gone=self._changes.gone(alive, now),
            ),
            damaged=[DamagedOnPage(what=what, why=reason) for what, reason in damaged.items()],
        )

    async def _read_journals(self, ids: Sequence[str], unread: dict[str, str]) -> dict[str, JournalNews]:
        """All that is new in the journals: after a rest that may be more than one look takes."""
        news = dict(await self._follower.look(ids, unread))
        more = news
        for _ in range(MOST_PAGES):
            if all(len(one.records) < PAGE for one in more.values()):
                break
            more = dict(await self._follower.look(ids, unread))
            for group, one in more.items():
                before = news.get(group, JournalNews())
                records = one.records if one.anew else before.records + one.records
                news[group] = JournalNews(records, before.streams | one.streams, before.anew or one.anew)
        return news

    def _summarize(self, leaders: Mapping[str, leadership.LeaderRecord]) -> None:
        counts = {
            name: sum(row.committed for row in group.rows.values()) for name, group in self.groups.items()
        }
        rates = self.group_rates.take(time.monotonic(), counts)
        consumers: dict[str, int] = {}
        for process in self._processes or ():
            for subscription, count in process.consumes.items():
                consumers[subscription] = consumers.get(subscription, 0) + count
        for name, group in self.groups.items():
            shared = group.subscription
            group.summarize(
                self._follower.groups[shared.id].state,
                leaders[shared.id],
                [space.name for space in self._matching.of(shared.filter)],
                rates[name],
                0.0 if group.lag[-1][1] == 0 else self._ages.get(name),
                None if self._processes is None else consumers.get(name, 0),
            )

    async def _look_at_never_led(self, spaces: Sequence[Space]) -> None:
        """Where groups would begin whose journals name no stream yet."""
        never: dict[SharedSubscription, list[StreamId]] = {}
        room, by_name = MOST_BEGUN, {space.name: space for space in spaces}
        for group in self.groups.values():
            shared = group.subscription
            if not self._follower.groups[shared.id].state.streams:
                matched = [by_name[space.name] for space in self._matching.of(shared.filter)]
                room -= sum(len(self._streams_of(space)) for space in matched)
                if room < 0:
                    break
                never[shared] = [stream for space in matched for stream in self._streams_of(space)]
        found = await group_needs.read(self._client.redis, never) if never else []
        self._never_led = {
            str(one.subscription): {str(stream): need for stream, need in one.needs.items()} for one in found
        }

    async def _look_slowly(self, spaces: Sequence[Space]) -> None:
        """What costs more: processes, since when messages wait, and what only the attention list tells.

        What this user of Redis may not see is left out.
        """
        self._processes, _ = await attempt(read_processes(self._client))
        letters = {
            one.subscription: one.summary.dead_letters
            for one in self.groups.values()
            if one.summary is not None and one.summary.dead_letters
        }
        self._slow_facts = await self._slow_looks.read(spaces, letters)
        behind = {
            name: [(StreamId.parse(row.stream), row.committed) for row in group.rows.values() if row.lag]
            for name, group in self.groups.items()
        }
        seen = await waiting(self._client.redis, [place for some in behind.values() for place in some])
        now = time.time_ns() // 1000
        self._ages = {
            name: longest(
                None if place not in seen else seconds_waiting(1, seen[place].by, now) for place in some
            )
            for name, some in behind.items()
        }

    def _streams_of(self, space: Space) -> dict[StreamId, str]:
        known = self._known.get(space.name)
        if known is None or known[0] != space.generations:
            known = space.generations, {stream: str(stream) for stream in space.streams()}
            self._known[space.name] = known
        return known[1]


def _space(space: Space, found: Sequence[Kept], rate: float | None, streams: int) -> SpaceOnPage:
    return SpaceOnPage.of(
        space,
        messages=messages(found),
        bytes=sum(size.state.bytes for size in found),
        held_by=sorted({size.held_by for size in found if size.held_by is not None}),
        held_since=min((size.held_since for size in found if size.held_since is not None), default=None),
        rate=rate,
        lost=max(0, streams - len(found)),
    )
