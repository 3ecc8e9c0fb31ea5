"""The mail of one process: one mailbox with one blocking read, one postbox, and who gets which letter.

Letters leave first-in-first-out with one batch in flight. What neighbours on the same event loop say comes
without Redis. A late message for a borrower that has ended is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import assert_never

from streamlease.agent.membership import metrics
from streamlease.protocol.ids import HIGHEST_TOLD
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
    FromLeader,
    Grant,
    Grants,
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    Message,
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
from streamlease.registry.mail.neighbours import Neighbours
from streamlease.registry.mail.postbox import Postbox
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.tasks import Supervisor

Receive = Callable[[FromLeader | CutRead | CommandAstray], None]


class Mail:
    """Letters from and to `owner`.

    Args:
        tasks: owns what is sent to the servers of a cluster side by side, and learns of a defect.
    """

    def __init__(self, redis: AsyncRedis, owner: str, tasks: Supervisor) -> None:
        self.dropped = 0
        """Messages that were for nobody here."""
        self.neighbours = Neighbours()
        """Who lives on the same event loop."""
        self.postbox = Postbox(redis, owner, tasks, neighbours=self.neighbours)
        self.post = self.postbox.post
        """Put a message on its way to a mailbox, in order, without waiting."""
        self._mailbox = Mailbox(redis, owner)
        self._owner = owner
        self._tasks = tasks
        self._receivers: dict[str, Receive] = {}
        self._terms: dict[str, int] = {}

    async def open(self) -> None:
        """Make the mailbox.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        await self._mailbox.open()
        self.neighbours.move_in(self._owner, self._hear, self._tasks)

    async def close(self) -> None:
        """Remove the mailbox."""
        await self._mailbox.close()

    def stop(self) -> None:
        """Deliver no more letters of neighbours."""
        self.neighbours.move_out(self._owner)

    def register(self, receiver: str, receive: Receive) -> None:
        """Deliver messages for the borrower, session or request `receiver` to `receive`."""
        self._receivers[receiver] = receive

    def unregister(self, receiver: str) -> None:
        """Drop what still comes for `receiver`."""
        self._receivers.pop(receiver, None)

    def term_of(self, group: str) -> int:
        """The highest term of `group` that is known to have been issued; 0 if none is."""
        return self._terms.get(group, 0)

    def saw_term(self, group: str, term: int) -> None:
        """A term of `group` is known to have been issued; one that cannot be is no term."""
        if self._terms.get(group, 0) < term <= HIGHEST_TOLD:
            self._terms[group] = term

    # ------------------------------------------------------------ loops

    async def receive(self) -> None:
        """Wait for letters in the mailbox and deliver them; to be called again and again."""
        for letter in await self._mailbox.receive():
            self._deliver(letter.message)

    async def keep_alive(self) -> None:
        """Prolong the life of the mailbox, after a while; to be called again and again."""
        await asyncio.sleep(mailbox.KEEP_ALIVE_MS / 1000)
        await self._mailbox.open()

    def _hear(self, letter: Letter) -> None:
        self._deliver(letter.message)

    def _deliver(self, message: Message) -> None:
        match message:
            case (
                ProgressCommitted()
                | LeaderConnectResponse()
                | NotLeader()
                | PingResponse()
                | Grant()
                | Grants()
                | Revoke()
                | Revoked()
                | FailureTaken()
                | Invalidate()
            ):
                self.saw_term(message.group, message.term)
                receiver = message.borrower
            case CutFixed() | CutFinished() | CutResumed():
                self.saw_term(message.group, message.term)
                receiver = message.session
            case CutRead():
                receiver = message.session
            case CommandDone() | CommandRefused() | CommandAstray():
                receiver = message.request
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
                | SpawnWanted()
                | DrainHost()
            ):
                self._drop()
                return
            case _:
                assert_never(message)
        receive = self._receivers.get(receiver)
        if receive is None:
            self._drop()
        else:
            receive(message)

    def _drop(self) -> None:
        self.dropped += 1
        metrics.DROPPED.inc()
