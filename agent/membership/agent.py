"""The agent: all control traffic of one process, for all its sessions.

It is composed of the `Mail` of the process, the `LeaderSearch` on behalf of its borrowers, and the `Commands`
of operators. None of its tasks ends in silence: when one ends by a defect, the agent is over, and all its
sessions end with that as the reason, rather than hold streams and consume nothing. The client makes a new
agent then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextvars import Context

from streamlease.agent.membership.commanding import Commands
from streamlease.agent.membership.leader_search import LeaderSearch
from streamlease.agent.membership.mail import Mail
from streamlease.catalog.shown import Shown
from streamlease.protocol.errors import Indefinite, StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import random_token
from streamlease.protocol.seldom import Seldom
from streamlease.streams import clock
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.direct_lines import DirectLines
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
RETRY_SECONDS = 0.2
KEEPERS_SECONDS = 2.0
"""How often it is looked for a host where spaces with epochs need keepers."""

ANSWER_SECONDS = 5.0
"""How long Redis may take to answer on a line, if the client does not say less."""

End = Callable[[StreamleaseError], None]


class Agent:
    """The parts of one process. Everything happens on the loop in which `start` was called."""

    def __init__(self, redis: AsyncRedis, *, embedded: bool = True, shown: Shown | None = None) -> None:
        self.shown = shown or Shown()
        self.id = f"agent-{random_token()[:12]}"
        self.where = f"{socket.gethostname()}:{os.getpid()}"
        self.error: StreamleaseError | None = None
        """Why the agent is over, unless it was closed."""
        self._tasks = Supervisor(f"agent {self.id}", self._ended)
        self.lines = DirectLines(redis, self._tasks, ANSWER_SECONDS)
        """On which one commit after the other is written."""
        self.reading_lines = DirectLines(redis, self._tasks, ANSWER_SECONDS)
        """On which streams are read: what that brings may be large, and no commit is to wait for it."""
        self.mail = Mail(redis, self.id, self._tasks)
        self._sessions: dict[End, str] = {}
        self.leaders = LeaderSearch(
            redis, self.id, self.mail, self._search_failed, self._sessions.values, embedded=embedded
        )
        self.commands = Commands(redis, self.mail, self.leaders)
        self._needs_keepers = asyncio.Event()
        self._seldom = Seldom(log)
        self._tickers: dict[Callable[[int], None], None] = {}
        """In the order in which they came."""

    async def start(self) -> None:
        """Open the mailbox and begin to listen.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        await self.mail.open()
        works = {
            "receive": self.mail.receive,
            "send": self.mail.postbox.work,
            "keep alive": self.mail.keep_alive,
            "tick": self._tick,
            "look out": self.leaders.lookout,
            "keepers": self._see_to_keepers,
        }
        for name, work in works.items():
            # Whatever the program was about when it connected, these are not.
            self._tasks.start(name, self._forever(work), endless=True, context=Context())

    async def close(self) -> None:
        """Send what waits, stop everything, remove the mailbox."""
        with contextlib.suppress(TimeoutError):
            # What cannot leave in time is lost on the way, which the protocol bears.
            async with asyncio.timeout(2.0):
                await self.mail.postbox.empty()
        self.mail.stop()  # what a leader says as it ends with this process would begin things anew
        await self._tasks.close()
        await self.lines.close()
        await self.reading_lines.close()
        await self.leaders.close()
        with contextlib.suppress(StoreUnavailable, StoreRefused, Indefinite):
            # Unanswered, the mailbox expires by itself.
            await self.mail.close()

    def add_ticker(self, tick: Callable[[int], None]) -> None:
        """Call `tick(now in ms)` on a fixed schedule."""
        self._tickers[tick] = None

    def remove_ticker(self, tick: Callable[[int], None]) -> None:
        """Stop calling `tick`."""
        self._tickers.pop(tick, None)

    def need_keepers(self) -> None:
        """From now on, see that some host works, so that spaces with epochs have keepers."""
        self._needs_keepers.set()

    def add_session(self, group: str, end: End) -> None:
        """Call `end(why)` if the agent can do nothing more for the sessions of `group`."""
        self._sessions[end] = group

    def remove_session(self, end: End) -> None:
        """Stop minding that session."""
        group = self._sessions.pop(end, None)
        if group is not None:
            self.leaders.forget_wishes(group)

    def _ended(self, task: str, error: StreamleaseError) -> None:
        self.error = self.error or error
        for end in list(self._sessions):
            end(error)
        self.commands.end(error)

    def _search_failed(self, group: str, error: StreamleaseError) -> None:
        for end in [end for end, of in self._sessions.items() if of == group]:
            end(error)

    async def _see_to_keepers(self) -> None:
        await self._needs_keepers.wait()
        await self.leaders.have_host()
        await asyncio.sleep(KEEPERS_SECONDS)

    async def _tick(self) -> None:
        await asyncio.sleep(TICK_SECONDS)
        now = clock.milliseconds()
        for tick in list(self._tickers):
            tick(now)

    async def _forever(self, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat `work` until cancelled; a Redis that does not answer is tried again."""
        while True:
            try:
                await work()
            except (StoreUnavailable, StoreRefused, Indefinite) as error:
                self._seldom.warning("%s", error)
                await asyncio.sleep(RETRY_SECONDS)
