"""A host that an operator drains: it hands its leaders to other hosts, one after another, and takes none.

So few groups change leader at once. It takes leaders again when the operator says so, or as long as there is
no other host; what it leads all the same, because nobody else was there or because it was about to when it
was drained, it hands out a moment later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from streamlease.leader.core.events import Received
from streamlease.leader.runner import Runner
from streamlease.protocol.acts import StepDown
from streamlease.protocol.errors import Indefinite, StoreRefused, StoreUnavailable
from streamlease.protocol.messages import Command, CommandDone, CommandRefused, CommandReply, DrainHost
from streamlease.registry import hosts, leadership
from streamlease.registry.mail.postbox import Postbox
from streamlease.streams.redis.connection import AsyncRedis

log = logging.getLogger(__name__)

UNANSWERED = (StoreUnavailable, StoreRefused, Indefinite)
"""What Redis not answering, or refusing, looks like."""

HAND_OUT_SECONDS = 2.0
"""How long a drained host waits for a group's next leader before it gives up the next group."""

LOOK_SECONDS = 0.1
AGAIN_SECONDS = 1.0
"""How often a drained host looks whether it leads something all the same."""


@dataclass(slots=True)
class HandOut:
    """What an operator wants of one host."""

    redis: AsyncRedis
    host: str
    runners: Mapping[str, Runner]
    """Its leaders, by group."""
    postbox: Postbox
    beat: Callable[[], Awaitable[None]]
    """Tells the registry at once."""
    drained: bool = False
    """Whether it is to lead nothing, as long as there are other hosts."""
    _answer: CommandReply | None = None
    """What was answered to the newest `DrainHost`."""
    _asked: tuple[str, DrainHost] | None = None
    """Who drained it, and how."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self, sender: str, wanted: DrainHost) -> None:
        """Do what the operator wants, once, and answer.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: nothing is changed; the operator asks again.
        """
        if self._answer is not None and self._answer.request == wanted.request:
            self.postbox.post(sender, self._answer)  # the answer was lost, or came too late
            return
        groups = sorted(self.runners)
        self.drained = not wanted.undo and bool(await self.others())
        if self.drained or wanted.undo:
            body = json.dumps({"host": self.host, "drained": self.drained, "leaders": groups})
            self._answer = CommandDone(group=wanted.group, request=wanted.request, body=body)
        else:
            error = f"host {self.host} is the last one that leads: start another one first"
            self._answer = CommandRefused(group=wanted.group, request=wanted.request, error=error)
        try:
            await self.beat()
        except UNANSWERED as unanswered:
            log.warning("host %s: %s", self.host, unanswered)  # the next beat says it
        self.postbox.post(sender, self._answer)
        self._asked = (sender, wanted)
        await self._all()

    async def look(self) -> None:
        """Hand out what the drained host leads all the same; to be called again and again.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: nothing was done.
        """
        await asyncio.sleep(AGAIN_SECONDS)
        if self.drained and self.runners and await self.others():
            await self._all()

    async def _all(self) -> None:
        async with self._turn:
            for group in sorted(self.runners):
                if self._asked is not None:
                    await self._hand_out(group, *self._asked)

    async def _hand_out(self, group: str, sender: str, wanted: DrainHost) -> None:
        runner = self.runners.get(group)
        if runner is None or not self.drained:
            return
        step_down = Command(
            group=group,
            request=f"{wanted.request}/{group}/{runner.term}",
            act=StepDown(),
            who=wanted.who,
            at=wanted.at,
        )
        runner.post(Received(sender, step_down))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OUT_SECONDS):
                await self._led_elsewhere(group, runner.term)

    async def others(self) -> list[hosts.HostInfo]:
        """The other hosts that take leaders; those with few first.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite.
        """
        alive = await hosts.alive(self.redis)
        others = [host for host in alive if host.host != self.host and not host.drained]
        return sorted(others, key=lambda host: (host.leaders, host.host))

    async def _led_elsewhere(self, group: str, term: int) -> None:
        while True:
            try:
                record = await leadership.read(self.redis, group)
                if record.held and record.term > term:
                    return
            except UNANSWERED as error:
                log.warning("waiting for the next leader of %s: %s", group, error, extra={"group": group})
            await asyncio.sleep(LOOK_SECONDS)
