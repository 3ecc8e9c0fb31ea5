"""What comes into the mailbox of a host, and who in the host gets it.

====================================  =====================================================================
is for the leader of a group          that leader, at its next turn
it is not led here                    whoever waits for an answer is told so, and of the newest term seen
a leader is wanted                    a spawn job is made for it, or the host stands for the group itself
the host is to be drained, or not     `HandOut`
is for borrowers                      nobody; the log is told
====================================  =====================================================================

Neighbours, who live on the same event loop, hand their letters in without the mailbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import ParamSpec, assert_never

from streamlease.hosts.candidates import Candidates, Place
from streamlease.hosts.hand_out import UNANSWERED, HandOut
from streamlease.leader.core.events import Received
from streamlease.leader.runner import Runner
from streamlease.protocol.messages import (
    Command,
    CommandAstray,
    CommandDone,
    CommandRefused,
    CutFinished,
    CutFixed,
    CutRead,
    CutResumed,
    Disconnect,
    DrainHost,
    FailureTaken,
    FinishCut,
    FixCut,
    Grant,
    Grants,
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    MessageFailed,
    NotLeader,
    Ping,
    PingResponse,
    ProgressCommitted,
    ResumeCut,
    Revoke,
    Revoked,
    RevokeFinished,
    SpawnWanted,
    UpdateProgress,
)
from streamlease.registry.mail import mailbox
from streamlease.registry.mail.mailbox import Letter, Mailbox
from streamlease.registry.mail.postbox import Postbox
from streamlease.streams.clock import milliseconds as now_ms
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.tasks import Supervisor

P = ParamSpec("P")

log = logging.getLogger(__name__)

BLOCK_MS = 500
"""How long one read of the mailbox waits: so late a host may notice that somebody is silent."""

MISSING_BLOCK_MS = 100
"""The same while a borrower of some leader is about to have been silent for too long."""


class Reception:
    """The mailbox of one host.

    Args:
        runners: the leaders of the host, by group.
        place: makes a spawn job, which any host may take; None: this host leads what it is asked for.
        errands: owns what a letter has done beside the loops; one that ends by a defect ends alone.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        host: str,
        runners: Mapping[str, Runner],
        candidates: Candidates,
        hand_out: HandOut,
        postbox: Postbox,
        place: Place | None,
        errands: Supervisor,
    ) -> None:
        self._host = host
        self._runners = runners
        self._candidates = candidates
        self._hand_out = hand_out
        self._postbox = postbox
        self._place = place
        self._errands = errands
        self._mailbox = Mailbox(redis, host, BLOCK_MS)
        self.heard: int | None = None
        """When (ms) the newest read of the mailbox that has returned was begun."""

    @property
    def dropped(self) -> int:
        """Messages that did not parse."""
        return self._mailbox.dropped

    async def open(self) -> None:
        """Make the mailbox, or keep it.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        await self._mailbox.open()

    async def close(self) -> None:
        """Remove the mailbox.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: it expires by itself.
        """
        await self._mailbox.close()

    async def keep_alive(self) -> None:
        """See to it that the mailbox does not expire."""
        await asyncio.sleep(mailbox.KEEP_ALIVE_MS / 1000)
        await self._mailbox.open()

    async def receive(self) -> None:
        """One read of the mailbox."""
        began = now_ms()
        missing = any(runner.missing for runner in self._runners.values())
        self._mailbox.block_ms = MISSING_BLOCK_MS if missing else BLOCK_MS
        for letter in await self._mailbox.receive():
            self.deliver(letter)
        self.heard = began

    def deliver(self, letter: Letter) -> None:
        """Give a letter to whom it is for."""
        match letter.message:
            case Command() as command if command.group not in self._runners:
                self._postbox.post(letter.sender, CommandAstray(group=command.group, request=command.request))
            case (
                LeaderWanted() | Ping() | UpdateProgress() | RevokeFinished() | MessageFailed()
            ) as message if message.group not in self._runners:
                seen = self._candidates.term_seen(message.group)
                self._postbox.post(
                    letter.sender, NotLeader(group=message.group, borrower=message.borrower, term=seen)
                )
            case (
                LeaderWanted()
                | Ping()
                | UpdateProgress()
                | RevokeFinished()
                | MessageFailed()
                | Disconnect()
                | FixCut()
                | FinishCut()
                | ResumeCut()
                | Command()
            ) as message:
                runner = self._runners.get(message.group)
                if runner is not None:
                    runner.post(Received(letter.sender, message))
            case SpawnWanted(placed=False) as wanted if self._place is not None:
                self._errand(self._candidates.have_placed, self._place, wanted)
            case SpawnWanted() as wanted:
                self._candidates.lead(wanted.group, wanted.above)
            case DrainHost() as drain:
                self._errand(self._hand_out.take, letter.sender, drain)
            case CommandDone() | CommandRefused() | CommandAstray():
                pass  # of a leader that was to step down for this host, which looks at the record
            case (
                LeaderConnectResponse()
                | NotLeader()
                | PingResponse()
                | Grant()
                | Grants()
                | Revoke()
                | Revoked()
                | ProgressCommitted()
                | FailureTaken()
                | Invalidate()
                | CutFixed()
                | CutFinished()
                | CutResumed()
                | CutRead()
            ) as strange:
                log.warning("host %s got a %s, which is for borrowers", self._host, strange.type)
            case _:
                assert_never(letter.message)

    def _errand(self, work: Callable[P, Awaitable[None]], *args: P.args, **options: P.kwargs) -> None:
        """Do something beside the loops; a Redis that does not answer ends it."""

        async def done() -> None:
            try:
                await work(*args, **options)
            except UNANSWERED as error:
                log.warning("host %s: %s", self._host, error)

        self._errands.start("errand", done())
