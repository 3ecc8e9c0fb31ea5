"""Where leaders are: found on behalf of the borrowers of a process, and had spawned where there are none.

Where leader hosts are registered, one of them is asked; where there are none, the process leads itself
(`embedded`). Then nobody but the consumers can notice that a leader died together with its process. So each
of them looks once a second whether the leaders of its groups live (`lookout`), and one of them leads as soon
as the ttl of the dead leader is over. What leads is imported only then.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection
from contextvars import Context
from typing import TYPE_CHECKING

from streamlease.agent.membership.mail import Mail
from streamlease.protocol import log_lines as logs
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.seldom import Seldom
from streamlease.registry import hosts, leadership, spawn
from streamlease.registry.leadership import LeaderRecord, LeadershipConfig, LeaderWatch
from streamlease.registry.lookout import Lookout
from streamlease.streams import clock
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from streamlease.hosts.host import LeaderHost

log = logging.getLogger(__name__)

SPAWN_SILENCE_SHARE = 0.5
"""A leader silent for this share of its ttl gets a candidate successor already."""

WATCHES = (0.025, 0.025, 0.025, 0.05, 0.05, 0.075, 0.1, 0.15)
"""The pauses (s) between looks for a leader of another process: it is there at once, or takes longer."""

LOOKOUT_SECONDS = 0.5
"""How often a process that could lead looks whether the leaders of its groups live."""

MISSED_SECONDS = 10.0
"""After a crash nobody leads a group for seconds; beyond this something is wrong at the hosts."""

BEGIN_SECONDS = 0.5
"""How long a search waits for the host of this process to lead: about until it is missed again."""

LeaderFound = Callable[[str, int], None]
Wish = tuple[Callable[[], bool], Callable[[], Awaitable[None]]]
"""Whether a group is still wanted; declares it."""


class LeaderSearch:
    """Finds leaders for the owner of `mail`, whose id is `owner`.

    Args:
        failed: called with a group, and why nothing more can be done for it.
        groups: those that this process consumes.
        embedded: lead in this process where no leader host is registered.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        owner: str,
        mail: Mail,
        failed: Callable[[str, StreamleaseError], None],
        groups: Callable[[], Collection[str]],
        *,
        embedded: bool,
    ) -> None:
        self._redis = redis
        self._seldom = Seldom(log)
        self._owner = owner
        self._mail = mail
        self._failed = failed
        self._groups = groups
        self._embedded = embedded
        self._watches: dict[str, LeaderWatch] = {}
        """What was seen of the leaders of other processes."""
        self._lookout = Lookout(redis, LeadershipConfig().ttl, clock.milliseconds)
        self._looks = 0
        self._hosts_lead = False
        """Whether leader hosts were there when a leader was looked for last: they watch each other."""
        self._tasks = Supervisor(f"agent {owner}, leader of", self._search_ended)
        self._searches: set[str] = set()
        self._finders: dict[str, list[LeaderFound]] = {}
        self._wishes: dict[str, list[Wish]] = {}
        self._not_found: dict[str, str] = {}
        """Group -> why its leader was not found, when it was looked for last."""
        self._missed: dict[str, int] = {}
        """Group -> since when (ms) it has no leader, though there are leader hosts."""
        self._host: LeaderHost | None = None
        """The embedded one, if it works."""
        self._hosting = asyncio.Lock()

    async def close(self) -> None:
        """Look no more, and lead nothing."""
        await self._tasks.close()
        if self._host is not None:
            await self._host.close()

    def keep_declared(self, group: str, wish: Wish) -> None:
        """Have `wish` declare the group before a leader is wanted: it may be deleted until then."""
        self._wishes.setdefault(group, []).append(wish)

    def forget_wishes(self, group: str) -> None:
        """Forget those that nobody has any more, and with them all that hangs on them."""
        wishes = [wish for wish in self._wishes.pop(group, ()) if wish[0]()]
        if wishes:
            self._wishes[group] = wishes
        else:
            self._missed.pop(group, None)

    def find(self, group: str, found: LeaderFound) -> None:
        """Look for the leader of `group`; `found(mailbox, term)` is called if there is one now."""
        self._finders.setdefault(group, []).append(found)
        if group not in self._searches:
            self._searches.add(group)
            self._tasks.start(group, self._search(group))

    async def lookout(self) -> None:
        """Look whether the leaders of this process' groups live, after a while; to be called again and again.

        Raises:
            StoreUnavailable, StoreRefused: Redis does not answer.
        """
        await asyncio.sleep(LOOKOUT_SECONDS)
        own = self._host.leaders if self._host is not None else ()
        watched = set() if self._hosts_lead or not self._embedded else {*self._groups()}.difference(own)
        self._watches = {group: self._watches.get(group) or LeaderWatch() for group in sorted(watched)}
        self._looks += 1
        for group in await self._lookout.look(dict(self._watches), self._looks):
            if group in self._watches:
                self.find(group, _told_nobody)

    def trouble(self, group: str) -> str:
        """What keeps this process from the leader of `group`, as far as it shows; empty if nothing does."""
        hindered = self._host.hindered.get(group, "") if self._host is not None else ""
        return self._mail.postbox.trouble or self._not_found.get(group, "") or hindered

    async def _search(self, group: str) -> None:
        logs.begin(group=group)
        try:
            await self._look_for_leader(group)
        finally:
            self._searches.discard(group)

    async def _look_for_leader(self, group: str) -> None:
        try:
            found = await spawn.find(self._redis, group)
            seen = self._mail.term_of(group)
            if found.record.term < seen:
                # Redis lost that term: whoever stands in the record was followed by others already.
                await leadership.witness(self._redis, group, seen)
                found = await spawn.find(self._redis, group)
        except StreamleaseError as error:
            self._seldom.warning("looking for the leader of %s: %s", group, error)
            self._not_found[group] = str(error)
            self._finders.pop(group, None)
            return
        record, self._hosts_lead = found.record, found.hosts > 0
        self._watches.setdefault(group, LeaderWatch()).observe(record, clock.milliseconds())
        silence = record.read_at - record.renewed_at
        if not found.live or silence >= record.ttl * SPAWN_SILENCE_SHARE:
            await self._want(group, found)
        leader = _leader(record) or await self._begun(group, found)
        finders = self._finders.pop(group, [])
        if leader is not None:
            self._not_found.pop(group, None)
            self._missed.pop(group, None)
            for finder in finders:
                finder(*leader)
        elif found.hosts:
            self._note_missed(group)

    def _note_missed(self, group: str) -> None:
        """None of the leader hosts leads `group`, though they were asked to."""
        now = clock.milliseconds()
        if now - self._missed.setdefault(group, now) >= MISSED_SECONDS * 1000:
            why = "no leader host leads it: the logs of hosts say why, or 'streamlease doctor'"
            self._not_found[group] = why
            self._seldom.warning("looking for the leader of %s: %s", group, why)

    async def _begun(self, group: str, found: spawn.Found) -> tuple[str, int] | None:
        """Mailbox and term of the leader that was just wanted, if it is there within a moment."""
        pauses: tuple[float, ...] = WATCHES
        if not found.hosts and self._host is not None:
            term = await self._host.led(group, BEGIN_SECONDS)
            if term is not None:
                return self._host.id, term
            pauses = (0.0,)  # another process may lead it
        for pause in pauses:
            await asyncio.sleep(pause)
            try:
                leader = _leader(await leadership.read(self._redis, group))
            except StreamleaseError as error:
                self._seldom.warning("looking for the leader of %s: %s", group, error)
                return None
            if leader is not None:
                return leader
        return None

    async def _want(self, group: str, found: spawn.Found) -> None:
        try:
            for wanted, declare in () if found.live else self._wishes.get(group, ()):
                if wanted():
                    await declare()
            above = self._mail.term_of(group)
            if found.hosts:
                await spawn.ask_hosts(self._redis, self._owner, group, found, above)
            elif self._embedded:
                (await self._working_host()).lead(group, above, self._watches.get(group))
            else:
                self._seldom.warning(
                    "no leader host is there for %s: start one with 'streamlease serve'", group
                )
                self._not_found[group] = "no leader host is there: start one with 'streamlease serve'"
        except StreamleaseError as error:
            self._seldom.warning("wanting a leader for %s: %s", group, error)
            self._not_found[group] = str(error)

    async def have_host(self) -> None:
        """See that some host works: a leader host, or the one of this process, if it may lead.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        if self._embedded and not await hosts.alive(self._redis):
            await self._working_host()

    async def _working_host(self) -> LeaderHost:
        """The host of this process; a new one if there is none, or if it failed.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: it could not begin; nothing is left of it.
        """
        async with self._hosting:
            if self._host is not None and self._host.failure is not None:
                failed, self._host = self._host, None
                await failed.close()
            if self._host is None:
                from streamlease.hosts.host import HostConfig, LeaderHost

                host = LeaderHost(
                    self._redis,
                    HostConfig(name=hosts.CLIENT, registered=False),
                    pid=os.getpid(),
                    neighbours=self._mail.neighbours,
                )
                try:
                    await asyncio.create_task(host.start(), context=Context())
                except BaseException:
                    await host.close()
                    raise
                self._host = host
            return self._host

    def _search_ended(self, group: str, error: StreamleaseError) -> None:
        self._finders.pop(group, None)
        self._failed(group, error)


def _told_nobody(mailbox: str, term: int) -> None:
    """Whoever misses the leader looks for it too."""


def _leader(record: LeaderRecord) -> tuple[str, int] | None:
    """Mailbox and term of who leads now."""
    return (record.mailbox, record.term) if record.held and not record.expired else None
