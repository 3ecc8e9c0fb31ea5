"""Hosts share the groups: each takes over what clients lead for themselves, and its part of what others have.

::

    who is there, and how many groups each leads     every two seconds, from the signs of life of the hosts
      --> a client leads a group, or one host leads two more than another for a while
      --> who leads what, read anew --> `shares`, which all hosts work out alike --> this host's part of it
      --> this host is named the heir of each, one after another --> step-down --> it leads in the next term

A group is taken as an operator's step-down would move it: its borrowers keep their streams, and its history
says who did it. A client leads where there was no host when its group needed a leader; since clients are seen
by nobody but their Redis, hosts take such groups at once. Among hosts only the number of groups counts, not
what they cost, and only if it stays uneven for `SETTLED_SECONDS`: a roll-out does not move everything twice.

Consumers look for a new leader as soon as the old one steps down, and any host might answer them: so the heir
is named before (`leadership.name_heir`). A host that looks while another one moves something may work out
other shares; then a group moves once more, and the next shares, by what is seen a moment later, are even.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from streamlease.hosts.candidates import Candidates
from streamlease.hosts.hand_out import HandOut
from streamlease.hosts.other_leaders import OtherLeaders
from streamlease.hosts.shares.even_shares import shares
from streamlease.protocol.acts import StepDown
from streamlease.protocol.messages import Command
from streamlease.registry import hosts, leadership
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import LeaderRecord
from streamlease.registry.mail.postbox import Postbox
from streamlease.streams.redis.connection import AsyncRedis

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
SETTLED_SECONDS = 10.0
"""For so long hosts must lead unevenly before groups move from one to another."""

LONGEST_PAUSE_SECONDS = 60.0
"""So long is the pause between two looks at all leaders, if none of them would step down."""

TAKE_SECONDS = 2.0
"""How long a leader may take to step down, before the next one is asked."""

POLL_SECONDS = 0.01
MOST_TOGETHER = 32
"""Groups that are taken before all is looked at again."""


class Sharing:
    """The part of one host.

    Args:
        runners: its leaders, by group.
        draining: whether it takes no leaders any more.
        clock: this process' own, in milliseconds.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        host: str,
        others: OtherLeaders,
        candidates: Candidates,
        hand_out: HandOut,
        postbox: Postbox,
        draining: Callable[[], bool],
        clock: Callable[[], int],
    ) -> None:
        self._redis = redis
        self._host = host
        self._others = others
        self._candidates = candidates
        self._hand_out = hand_out
        self._postbox = postbox
        self._draining = draining
        self._clock = clock
        self._groups = Groups(redis)
        self._uneven: tuple[frozenset[str], int] | None = None
        """Since when, by the own clock, these hosts have led unevenly."""
        self._pause = LOOK_SECONDS

    async def turn(self) -> None:
        """Look once, after a pause, and take what is this host's part.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: Redis does not answer.
        """
        await asyncio.sleep(self._pause)
        if self._draining() or self._hand_out.drained:
            self._uneven = None
            return
        # Where these lead evenly, so do those of them that live: that is the rule, and one command says it.
        known = [host for host in await hosts.known(self._redis) if not host.drained]
        if _even(known) and not self._clients_lead({host.host for host in known}):
            self._uneven, self._pause = None, LOOK_SECONDS
            return
        alive = [host for host in await hosts.alive(self._redis) if not host.drained]
        names = {host.host for host in alive}
        settled = self._settled(alive)
        if self._host not in names or not (settled or self._clients_lead(names)):
            self._pause = LOOK_SECONDS
            return
        records = await self._leaders()
        plan = shares({group: record.host for group, record in records.items()}, names, even=settled)
        own = [group for group, host in plan.items() if host == self._host][:MOST_TOGETHER]
        taken = 0
        for group in own:
            if not self._draining() and not self._hand_out.drained:
                taken += await self._take(group, records[group])
        self._pause = LOOK_SECONDS if taken else min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _settled(self, alive: Sequence[hosts.HostInfo]) -> bool:
        """Whether these hosts have led unevenly for long enough."""
        now, those = self._clock(), frozenset(host.host for host in alive)
        if _even(alive):
            self._uneven = None
        elif self._uneven is None or self._uneven[0] != those:
            self._uneven = those, now
        return self._uneven is not None and now - self._uneven[1] >= SETTLED_SECONDS * 1000

    def _clients_lead(self, alive: set[str]) -> bool:
        """Whether a client leads a group, as far as this host has seen."""
        return any(hosts.is_client(host) and host not in alive for host in self._others.hosts())

    async def _leaders(self) -> dict[str, LeaderRecord]:
        """Who leads what now; what nobody leads is left out."""
        groups = [group.id for group in await self._groups.list()]
        records = await leadership.read_all(self._redis, groups)
        return {group: record for group, record in records.items() if record.held and not record.expired}

    async def _take(self, group: str, former: LeaderRecord) -> bool:
        """Have its leader step down, and lead the group; whether it stepped down."""
        log.info("host %s takes over %s from %s", self._host, group, former.host, extra={"group": group})
        step_down = Command(
            group=group,
            request=f"share/{group}/{former.term}",
            act=StepDown(),
            who=f"host {self._host}",
            at=former.read_at,
        )
        own = round(1000 * (TAKE_SECONDS + 1.0))
        if not await leadership.name_heir(self._redis, group, self._host, former.term, own):
            return True  # it has moved, or is about to
        self._postbox.post(former.mailbox, step_down)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TAKE_SECONDS):
                while True:
                    record = await leadership.read(self._redis, group)
                    if record.term > former.term:
                        return True  # another host was faster
                    if not record.held:
                        self._candidates.lead(group)
                        return True
                    await asyncio.sleep(POLL_SECONDS)
        log.warning(
            "%s did not step down from %s within %g s",
            former.host,
            group,
            TAKE_SECONDS,
            extra={"group": group},
        )
        return False


def _even(known: Sequence[hosts.HostInfo]) -> bool:
    """Whether none of these leads two groups more than another."""
    counts = [host.leaders for host in known]
    return not counts or max(counts) - min(counts) < 2
