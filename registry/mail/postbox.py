"""The sending end of a process: its messages leave in order and in batches, one batch in flight per server.

Whoever posts does not wait. What is posted while a batch is in flight leaves with the next one, so many
messages cost few exchanges. A batch that Redis does not take is lost on the way, which the protocol bears,
because it sends again what matters.

The box is bounded, as a mailbox is: beyond ``MOST_LETTERS`` the oldest letters are dropped, which is the same
to the protocol. Nothing is held back instead, for whoever posts is a machine that must not wait for Redis.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from streamlease.protocol.errors import Indefinite, StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.protocol.messages import DrainHost, Message, SpawnWanted
from streamlease.protocol.plurals import counted
from streamlease.protocol.seldom import Seldom
from streamlease.registry.mail import mailbox
from streamlease.registry.mail.mailbox import Letter
from streamlease.registry.mail.neighbours import Neighbours, Taker
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.per_server import PerServer
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

MOST_LETTERS = 100_000
"""So many wait at most; a leader of 10,000 streams posts some ten thousand at once."""

MAIL_SECONDS = 0.25
"""How long mail for other servers of a cluster waits for one that does not answer."""

RETRY_SECONDS = 0.2
"""How long mail to a server waits that has just lost some."""

_UNANSWERED = (StoreUnavailable, StoreRefused, Indefinite)
_Outgoing = tuple[str, Message]
"""Receiver and message."""


class Postbox:
    """Sends for `sender`. Made and used on one event loop.

    Args:
        sender: the mailbox owner to answer to.
        tasks: owns what is sent to the servers of a cluster side by side.
        most: how many letters may wait.
        neighbours: who gets letters without Redis.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        sender: str,
        tasks: Supervisor,
        *,
        most: int = MOST_LETTERS,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._redis = redis
        self._takers = (neighbours or Neighbours()).takers
        self._sender = sender
        self._most = most
        self._waiting: deque[_Outgoing] = deque()
        self._news = asyncio.Event()
        self._sending = asyncio.Lock()
        self._per_server = PerServer(redis, tasks, mailbox.key_of, self._send, MAIL_SECONDS)
        self._seldom = Seldom(log)
        self.trouble = ""
        """Why the newest letters were lost; empty while letters leave."""
        self.dropped = 0
        """Letters for which there was no room."""

    def __len__(self) -> int:
        """How many letters wait."""
        return len(self._waiting)

    def post(self, receiver: str, message: Message) -> None:
        """Put a message on its way, in order, without waiting."""
        group = "" if isinstance(message, SpawnWanted | DrainHost) else message.group
        taker = self._takers.get((receiver, group)) or self._takers.get((receiver, ""))
        if taker is not None:
            soon = asyncio.get_running_loop().call_soon
            soon(_hand_over, taker, Letter(self._sender, message), context=taker.context)
            return
        self._waiting.append((receiver, message))
        self._news.set()
        if len(self._waiting) > self._most:
            self._waiting.popleft()
            self._drop(1)

    async def work(self) -> None:
        """Wait until there are letters, and send them; to be called again and again."""
        await self._news.wait()
        await self.empty()

    async def empty(self) -> None:
        """Send what waits; returns when none waits or is in flight any more."""
        async with self._sending:
            while self._waiting:
                letters = [*self._waiting]
                self._waiting.clear()
                try:
                    left = await self._per_server.turn(letters)
                except _UNANSWERED as error:  # no node of a cluster says who has what
                    left = await self._lost(letters, error)
                self._waiting.extendleft(reversed(left))
                if (more := len(self._waiting) - self._most) > 0:
                    for _ in range(more):
                        self._waiting.popleft()
                    self._drop(more)
            self._news.clear()

    def _drop(self, letters: int) -> None:
        if not self.dropped:
            log.warning("%s drops messages: %d wait to be sent already", self._sender, self._most)
        self.dropped += letters

    async def _send(self, letters: Sequence[_Outgoing]) -> None:
        try:
            await mailbox.send(self._redis, self._sender, letters)
            self.trouble = ""
        except _UNANSWERED as error:
            await self._lost(letters, error)

    async def _lost(self, letters: Sequence[_Outgoing], error: StreamleaseError) -> list[_Outgoing]:
        lost = counted(len(letters), "message")
        self._seldom.warning("%s lost %s: %s", self._sender, lost, error, kind=str(error))
        self.trouble = str(error)
        await asyncio.sleep(RETRY_SECONDS)
        return []


def _hand_over(taker: Taker, letter: Letter) -> None:
    try:
        taker.take(letter)
    except Exception as error:
        taker.tasks.tell("hear", error)
