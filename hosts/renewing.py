"""How a host stays the leader of what it leads: a few groups one by one, many by one pulse per server.

What each turn does for the groups of one server, if there are more than ``FEW``::

    resign what is led no more --> pulse --+-- unbroken: renew what it does not keep yet; look at a few in
                                           |             turn, and renew what somebody has changed
                                           +-- broken:   renew all, one by one

`registry/pulses.py` says why this is as good as renewing each of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from streamlease.leader.runner import Runner
from streamlease.protocol.errors import StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.protocol.seldom import Seldom
from streamlease.registry import keys, leadership, pulses
from streamlease.registry.leadership import LeadershipConfig
from streamlease.registry.pulses import Pulse
from streamlease.streams.clock import milliseconds as now_ms
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.per_server import PerServer
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

ONE_BY_ONE = 2
"""So many groups of a server are renewed by themselves each time; if there is a pulse, their records are
looked at instead, in turn."""

FEW = ONE_BY_ONE
"""With more groups of a server than these, there is a pulse."""

TIDY_EVERY = 600
"""At each such turn, hosts that have been silent for long are forgotten."""

PAGE = 250
"""Groups in one exchange."""


class Renewing:
    """Renews the leaderships of one host.

    Args:
        runners: its leaders, by group.
        tasks: owns what is sent to the servers of a cluster side by side.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        host: str,
        config: LeadershipConfig,
        runners: Mapping[str, Runner],
        tasks: Supervisor,
    ) -> None:
        self._redis = redis
        self._seldom = Seldom(log)
        self._host = host
        self._config = config
        self._runners = runners
        self._servers = PerServer(redis, tasks, keys.leader, self._renew, config.renew_interval / 1000)
        self._begun: dict[str, int] = {}
        """Tag -> when, by the host's own clock, the newest pulse was begun that was answered."""
        self._named: dict[str, int] = {}
        """Group -> the term in which its record may name this host."""
        self._kept: dict[str, tuple[int, str]] = {}
        """Group -> the term and tag that its record had when it was renewed, if no pulse was broken since."""
        self._turns = 0
        self._told: tuple[int, int] | None = None
        """The time of Redis that the newest pulse brought, and when that was, by the host's own clock."""

    def ahead(self) -> int | None:
        """By how many milliseconds the clock of Redis is ahead of the host's, if a pulse said it lately."""
        if self._told is None or now_ms() - self._told[1] >= self._config.ttl:
            return None
        return self._told[0] - self._told[1]

    async def turn(self) -> None:
        """Renew all terms that are held, after a while; to be called again and again."""
        await asyncio.sleep(self._config.renew_interval / 1000)
        self._turns += 1
        self._named.update({group: runner.term for group, runner in self._runners.items()})
        busy = await self._servers.turn(self._named)
        self._not_renewed(busy, StoreUnavailable("the server that keeps it does not answer"))

    async def _renew(self, groups: Sequence[str]) -> None:
        """Renew those of one server."""
        await self._resign(
            {
                group: term
                for group in groups
                # A turn that was slow may have resigned since these groups were chosen.
                if group not in self._runners and (term := self._named.get(group)) is not None
            }
        )
        led = {group: runner for group in groups if (runner := self._runners.get(group)) is not None}
        began = now_ms()
        tag, lineage = "", ""
        if len(led) > FEW:
            tag = pulses.tag_beside(self._redis, keys.leader(next(iter(led))))
            try:
                lineage = await self._pulse(tag, led)
            except StoreRefused as error:
                self._seldom.warning("leaderships are renewed one by one, not by pulse %s: %s", tag, error)
                tag = ""
            except StreamleaseError as error:
                self._not_renewed(led, error)
                return
        in_turn = -(-len(led) // ONE_BY_ONE)
        due, looked_at = {}, {}
        for place, (group, runner) in enumerate(led.items()):
            kept = tag and self._kept.get(group) == (runner.term, tag) and runner.lineage in ("", lineage)
            if not kept:
                due[group] = runner
                continue
            runner.renewed_at = began
            if (place + self._turns) % in_turn == 0:
                looked_at[group] = runner.term
        due |= await self._changed(looked_at, tag)
        await self._renew_each(due, tag)

    async def _changed(self, terms: Mapping[str, int], tag: str) -> dict[str, Runner]:
        """Those of these groups, which a pulse keeps, whose records are not as they were renewed."""
        if not terms:
            return {}
        try:
            changed = await pulses.changed(self._redis, terms, Pulse(tag, self._host))
        except StreamleaseError as error:
            self._seldom.warning("the records of %d groups cannot be looked at: %s", len(terms), error)
            changed = list(terms)  # renewing them says which of them cannot be
        return {group: runner for group in changed if (runner := self._runners.get(group)) is not None}

    async def _pulse(self, tag: str, led: Collection[str]) -> str:
        """Give a pulse; the lineage of the data. If it was broken, it keeps none of `led` any more."""
        began, former = now_ms(), self._begun.get(tag)
        given = await pulses.give(self._redis, Pulse(tag, self._host), tidy=self._turns % TIDY_EVERY == 0)
        ttl = self._config.ttl
        unbroken = (
            given.former is not None
            and abs(given.at - given.former) < ttl
            and former is not None
            and now_ms() - former < ttl
        )
        if not unbroken:
            for group in led:
                self._kept.pop(group, None)
        self._begun[tag] = began
        self._told = given.at, now_ms()
        return given.lineage

    async def _renew_each(self, due: Mapping[str, Runner], tag: str) -> None:
        for page in _pages(list(due)):
            terms = {group: due[group].term for group in page}
            began = now_ms()
            try:
                lost = await leadership.renew_all(
                    self._redis, self._host, terms, {group: due[group].lineage for group in page}, tag
                )
            except StreamleaseError as error:
                self._not_renewed(page, error)
                continue
            for group in page:
                if self._runners.get(group) is not due[group]:
                    continue
                self._renewed(group, due[group], began, lost, tag)

    def _renewed(
        self,
        group: str,
        runner: Runner,
        began: int,
        lost: Mapping[str, int | StreamleaseError | None],
        tag: str,
    ) -> None:
        self._kept.pop(group, None)
        if group not in lost:
            runner.renewed_at = began
            if tag:
                self._kept[group] = runner.term, tag
            return
        match lost[group]:
            case None:
                runner.leave_lineage()
            case int(term):
                runner.end(
                    f"host {self._host} leads {group} no more: its term {runner.term} was followed by "
                    f"term {term}"
                )
            case StreamleaseError() as error:
                self._not_renewed([group], error)

    def _not_renewed(self, groups: Collection[str], error: StreamleaseError) -> None:
        for group in groups:
            runner = self._runners.get(group)
            if runner is not None and now_ms() - runner.renewed_at >= self._config.ttl:
                runner.end(f"host {self._host} could not renew its leadership of {group} in time: {error}")

    async def _resign(self, terms: Mapping[str, int]) -> None:
        """Resign what is led no more, if its leader could not: because Redis did not answer, say.

        Nobody would follow it before the ttl has passed, and a pulse would keep it.
        """
        for page in _pages(list(terms)):
            try:
                resigned = await leadership.resign_all(
                    self._redis, self._host, {group: terms[group] for group in page}
                )
            except StreamleaseError as error:
                self._seldom.warning("resigning from %d groups: %s", len(page), error)
                return
            for group, wrong in resigned.items():
                if wrong is not None:
                    self._seldom.warning("resigning from %s: %s", group, wrong, extra={"group": group})
                    continue
                if self._named.get(group) == terms[group]:  # else it has begun to lead it again
                    del self._named[group]
                    self._kept.pop(group, None)


def _pages(groups: Sequence[str]) -> list[Sequence[str]]:
    return [groups[begin : begin + PAGE] for begin in range(0, len(groups), PAGE)]
