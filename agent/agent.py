"""The agent: one mailbox, one blocking read and one sender for all sessions of a process.

It finds leaders on behalf of its borrowers, has them spawned where leader hosts are registered, and leads
itself where there are none (`embedded`). Commands leave first-in-first-out with one batch in flight; a late
message for a borrower that has ended is dropped and counted.

None of its tasks ends in silence: when one ends by a defect, the agent is over, and all its sessions end
with that as the reason, rather than hold streams and consume nothing. The client makes a new agent then.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import assert_never

from streamlease.agent import metrics
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.leader.runner import now_ms
from streamlease.protocol import log_lines as logs
from streamlease.protocol.errors import (
    Indefinite,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
)
from streamlease.protocol.errors import NotLeader as NobodyLeads
from streamlease.protocol.ids import HIGHEST_TOLD, random_token
from streamlease.protocol.messages import (
    Command,
    CommandAstray,
    CommandDone,
    CommandRefused,
    CommandReply,
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
    ToLeader,
    UpdateProgress,
)
from streamlease.registry import leadership, mailbox, spawn
from streamlease.registry.leadership import LeaderRecord
from streamlease.registry.mailbox import Mailbox
from streamlease.registry.neighbours import Neighbours
from streamlease.registry.postbox import Postbox
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
RETRY_SECONDS = 0.2

SPAWN_SILENCE_SHARE = 0.5
"""A leader silent for this share of its ttl gets a candidate successor already."""

ASK_SECONDS = 1.0
"""After so long without a leader or an answer an operator's act looks, and asks, again."""

WATCHES = (0.025, 0.025, 0.025, 0.05, 0.05, 0.075, 0.1, 0.15)
"""The pauses (s) between looks for a leader that was just wanted: it is there at once, or takes longer."""

Receive = Callable[[FromLeader | CutRead], None]
LeaderFound = Callable[[str, int], None]
End = Callable[[StreamleaseError], None]
Wish = tuple[Callable[[], bool], Callable[[], Awaitable[None]]]
"""Whether a group is still wanted; declares it."""


class Agent:
    """All control traffic of one process. Everything happens on the loop in which `start` was called."""

    def __init__(self, redis: AsyncRedis, url: str, *, embedded: bool = True) -> None:
        self.id = f"agent-{random_token()[:12]}"
        self.where = f"{socket.gethostname()}:{os.getpid()}"
        self.dropped = 0
        """Messages that did not parse, or were for nobody here."""
        self._redis = redis
        self._url = url
        self._embedded = embedded
        self._mailbox = Mailbox(redis, self.id)
        self._receivers: dict[str, Receive] = {}
        self._tickers: dict[Callable[[int], None], None] = {}
        """In the order in which they came."""
        self.error: StreamleaseError | None = None
        """Why the agent is over, unless it was closed."""
        self._tasks = Supervisor(f"agent {self.id}", self._ended)
        self._neighbours = Neighbours()
        self._inbox = self._neighbours.move_in(self.id)
        self._postbox = Postbox(redis, self.id, self._tasks, neighbours=self._neighbours)
        self._searching = Supervisor(f"agent {self.id}, leader of", self._search_ended)
        self._searches: set[str] = set()
        self._sessions: dict[End, str] = {}
        self._not_found: dict[str, str] = {}
        """Group -> why its leader was not found, when it was looked for last."""
        self._finders: dict[str, list[LeaderFound]] = {}
        self._host: LeaderHost | None = None
        """The embedded one, if it works."""
        self._hosting = asyncio.Lock()
        self._seen: dict[str, int] = {}
        """The highest term of each group that any message here carried."""
        self._replies: dict[str, list[asyncio.Future[CommandReply | CommandAstray]]] = {}
        """Request -> who waits for its reply: the same one may be asked for twice at once."""
        self._wishes: dict[str, list[Wish]] = {}

    async def start(self) -> None:
        """Open the mailbox and begin to listen.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        await self._mailbox.open()
        works = {
            "receive": self._receive,
            "hear": self._hear,
            "send": self._postbox.work,
            "keep alive": self._keep_alive,
            "tick": self._tick,
        }
        for name, work in works.items():
            # Whatever the program was about when it connected, these are not.
            self._tasks.start(name, _forever(work), endless=True, context=Context())

    async def close(self) -> None:
        """Send what waits, stop everything, remove the mailbox."""
        with contextlib.suppress(TimeoutError):
            # What cannot leave in time is lost on the way, which the protocol bears.
            async with asyncio.timeout(2.0):
                await self._postbox.empty()
        await self._tasks.close()
        await self._searching.close()
        if self._host is not None:
            await self._host.close()
        with contextlib.suppress(StoreUnavailable, StoreRefused, Indefinite):
            # Unanswered, the mailbox expires by itself.
            await self._mailbox.close()

    # ------------------------------------------------------------ for sessions

    def register(self, receiver: str, receive: Receive) -> None:
        """Deliver messages for the borrower or session `receiver` to `receive`."""
        self._receivers[receiver] = receive

    def unregister(self, receiver: str) -> None:
        """Drop what still comes for `receiver`."""
        self._receivers.pop(receiver, None)

    def add_ticker(self, tick: Callable[[int], None]) -> None:
        """Call `tick(now in ms)` on a fixed schedule."""
        self._tickers[tick] = None

    def remove_ticker(self, tick: Callable[[int], None]) -> None:
        """Stop calling `tick`."""
        self._tickers.pop(tick, None)

    def add_session(self, group: str, end: End) -> None:
        """Call `end(why)` if the agent can do nothing more for the sessions of `group`."""
        self._sessions[end] = group

    def remove_session(self, end: End) -> None:
        """Stop minding that session."""
        self._sessions.pop(end, None)

    def _ended(self, task: str, error: StreamleaseError) -> None:
        self.error = self.error or error
        for end in list(self._sessions):
            end(error)
        for reply in itertools.chain.from_iterable(self._replies.values()):
            if not reply.done():
                reply.set_exception(error)

    def _search_ended(self, group: str, error: StreamleaseError) -> None:
        self._finders.pop(group, None)
        for end in [end for end, of in self._sessions.items() if of == group]:
            end(error)

    def post(self, receiver: str, message: ToLeader | DrainHost) -> None:
        """Put a message on its way, in order, without waiting."""
        self._postbox.post(receiver, message)

    def saw_term(self, group: str, term: int) -> None:
        """A term of `group` is known to have been issued; one that cannot be is no term."""
        if term <= HIGHEST_TOLD:
            self._seen[group] = max(term, self._seen.get(group, 0))

    def keep_declared(self, group: str, wish: Wish) -> None:
        """Have `wish` declare the group before a leader is wanted: it may be deleted until then."""
        wishes = [other for other in self._wishes.get(group, ()) if other[0]()]
        self._wishes[group] = [*wishes, wish]

    def find_leader(self, group: str, found: LeaderFound) -> None:
        """Look for the leader of `group`; `found(mailbox, term)` is called if there is one now."""
        self._finders.setdefault(group, []).append(found)
        if group not in self._searches:
            self._searches.add(group)
            self._searching.start(group, self._search(group))

    def trouble(self, group: str) -> str:
        """What keeps this process from the leader of `group`, as far as it shows; empty if nothing does."""
        hindered = self._host.hindered.get(group, "") if self._host is not None else ""
        return self._postbox.trouble or self._not_found.get(group, "") or hindered

    async def command(
        self, leader: str, command: Command | DrainHost, seconds: float
    ) -> CommandReply | CommandAstray:
        """Send an operator's act to the host `leader` and wait for the reply.

        Raises:
            Indefinite: no reply within `seconds`: it was done, or it was not.
        """
        reply: asyncio.Future[CommandReply | CommandAstray] = asyncio.get_running_loop().create_future()
        waiting = self._replies.setdefault(command.request, [])
        waiting.append(reply)
        try:
            self.post(leader, command)
            async with asyncio.timeout(seconds):
                return await reply
        except TimeoutError:
            raise Indefinite(
                f"{leader} did not answer '{command.type}' for {command.group} within {seconds:g} s: "
                f"look with 'streamlease group history' whether it was done"
            ) from None
        finally:
            waiting.remove(reply)
            if not waiting:
                del self._replies[command.request]

    async def act(self, command: Command, seconds: float) -> CommandReply:
        """Have the leader of the command's group do it, whoever that is; find or spawn one if need be.

        The command is sent again, under the same id, until it is answered.

        Raises:
            NotLeader: nobody leads, and nobody could be made to within `seconds`; it was not done.
            Indefinite: it was sent, but not answered within `seconds`: it was done, or it was not.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + seconds
        unanswered = False
        while (left := give_up - loop.time()) > 0:
            found: asyncio.Future[str] = loop.create_future()

            def take(mailbox: str, term: int, found: asyncio.Future[str] = found) -> None:
                if not found.done():
                    found.set_result(mailbox)

            self.find_leader(command.group, take)
            with contextlib.suppress(TimeoutError, Indefinite):
                async with asyncio.timeout(min(left, ASK_SECONDS)):
                    mailbox = await found
                try:
                    reply = await self.command(mailbox, command, min(give_up - loop.time(), ASK_SECONDS))
                except Indefinite:
                    # For good: who answers later that it does not lead says nothing of this one.
                    unanswered = True
                    raise
                if not isinstance(reply, CommandAstray):
                    return reply
                await asyncio.sleep(RETRY_SECONDS)
        raise await self._why_not(command, seconds, unanswered=unanswered)

    async def drain_host(self, wanted: DrainHost, seconds: float) -> CommandReply | CommandAstray:
        """Ask a leader host to hand its leaders over, again and again until it answers; done once.

        Raises:
            Indefinite: no answer within `seconds`.
        """
        give_up = asyncio.get_running_loop().time() + seconds
        while (left := give_up - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(Indefinite):
                return await self.command(wanted.group, wanted, min(left, ASK_SECONDS))
        raise Indefinite(
            f"host {wanted.group} did not answer within {seconds:g} s: it is "
            f"{'undrained' if wanted.undo else 'drained'}, or it is not; look with 'streamlease status', and "
            f"try again"
        )

    async def _why_not(self, command: Command, seconds: float, *, unanswered: bool) -> StreamleaseError:
        act = command.act.act
        try:
            found = await spawn.find(self._redis, command.group)
        except StreamleaseError as error:
            if not unanswered:
                return error
            return _maybe_done(command, f"nobody answered '{act}' within {seconds:g} s ({error})")
        record = found.record
        if unanswered:
            silence = (record.read_at - record.renewed_at) / 1000
            who = (
                f"the leader of {command.group} on host {record.host} did not answer '{act}' within "
                f"{seconds:g} s and last renewed its term {silence:.1f} s ago"
                if record.held
                else f"the leader of {command.group} did not answer '{act}' within {seconds:g} s, "
                f"and nobody leads now"
            )
            return _maybe_done(command, who)
        if found.live:
            return NobodyLeads(
                f"host {record.host}, which leads {command.group}, could not be asked for '{act}' "
                f"within {seconds:g} s, so nothing was done: try again"
            )
        why = (
            f"{found.hosts} leader hosts are alive, but none took it"
            if found.hosts
            else "no leader host is alive"
        )
        return NobodyLeads(
            f"nobody leads {command.group} and nobody began to within {seconds:g} s ({why}), so nothing was "
            f"done: start a leader host with 'streamlease serve', or look at 'streamlease doctor'"
        )

    # ------------------------------------------------------------ finding leaders

    async def _search(self, group: str) -> None:
        logs.begin(group=group)
        try:
            await self._look_for_leader(group)
        finally:
            self._searches.discard(group)

    async def _look_for_leader(self, group: str) -> None:
        try:
            found = await spawn.find(self._redis, group)
            seen = self._seen.get(group, 0)
            if found.record.term < seen:
                # Redis lost that term: whoever stands in the record was followed by others already.
                await leadership.witness(self._redis, group, seen)
                found = await spawn.find(self._redis, group)
        except StreamleaseError as error:
            log.warning("looking for the leader of %s: %s", group, error)
            self._not_found[group] = str(error)
            self._finders.pop(group, None)
            return
        record = found.record
        silence = record.read_at - record.renewed_at
        if not found.live or silence >= record.ttl * SPAWN_SILENCE_SHARE:
            await self._want(group, found)
        if not found.live:
            record = await self._watch(group, record)
        finders = self._finders.pop(group, [])
        if record.held and not record.expired:
            self._not_found.pop(group, None)
            for finder in finders:
                finder(record.mailbox, record.term)

    async def _watch(self, group: str, record: LeaderRecord) -> LeaderRecord:
        """Look again for a moment: a leader that was just wanted is there soon."""
        for pause in WATCHES:
            await asyncio.sleep(pause)
            try:
                record = await leadership.read(self._redis, group)
            except StreamleaseError as error:
                log.warning("looking for the leader of %s: %s", group, error)
                break
            if record.held and not record.expired:
                break
        return record

    async def _want(self, group: str, found: spawn.Found) -> None:
        try:
            for wanted, declare in () if found.live else self._wishes.get(group, ()):
                if wanted():
                    await declare()
            above = self._seen.get(group, 0)
            if found.hosts:
                await spawn.ask_hosts(self._redis, self.id, group, found, above)
            elif self._embedded:
                (await self._working_host()).lead(group, above)
            else:
                log.warning("no leader host is there for %s: start one with 'streamlease serve'", group)
                self._not_found[group] = "no leader host is there: start one with 'streamlease serve'"
        except StreamleaseError as error:
            log.warning("wanting a leader for %s: %s", group, error)
            self._not_found[group] = str(error)

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
                host = LeaderHost(
                    self._redis,
                    HostConfig(name="embedded", registered=False),
                    pid=os.getpid(),
                    neighbours=self._neighbours,
                )
                try:
                    await asyncio.create_task(host.start(), context=Context())
                except BaseException:
                    await host.close()
                    raise
                self._host = host
            return self._host

    # ------------------------------------------------------------ loops

    async def _receive(self) -> None:
        letters = await self._mailbox.receive()
        for letter in letters:
            self._deliver(letter.message)

    async def _hear(self) -> None:
        for letter in await self._inbox.receive():
            self._deliver(letter.message)

    def _deliver(self, message: Message) -> None:
        self.saw_term(message.group, getattr(message, "term", 0))
        match message:
            case CommandDone() | CommandRefused() | CommandAstray():
                for reply in self._replies.get(message.request, ()):
                    if not reply.done():
                        reply.set_result(message)
                return
            case CutFixed() | CutFinished() | CutResumed() | CutRead():
                receiver = message.session
            case (
                LeaderConnectResponse()
                | NotLeader()
                | PingResponse()
                | Grant()
                | Revoke()
                | Revoked()
                | ProgressCommitted()
                | FailureTaken()
                | Invalidate()
            ):
                receiver = message.borrower
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

    async def _keep_alive(self) -> None:
        await asyncio.sleep(mailbox.KEEP_ALIVE_MS / 1000)
        await self._mailbox.open()

    async def _tick(self) -> None:
        await asyncio.sleep(TICK_SECONDS)
        now = now_ms()
        for tick in list(self._tickers):
            tick(now)


def _maybe_done(command: Command, who: str) -> Indefinite:
    """The error for a command that was sent and not answered (invariant 12)."""
    if command.dry_run:
        return Indefinite(f"{who}: it was only asked what it would do, so nothing was changed; try again")
    return Indefinite(
        f"{who}: it was done, or it was not; look for request {command.request} in "
        f"'streamlease group history SUB --json', and repeat it if it is not there"
    )


async def _forever(work: Callable[[], Awaitable[None]]) -> None:
    """Repeat `work` until cancelled; a Redis that does not answer is tried again."""
    while True:
        try:
            await work()
        except (StoreUnavailable, StoreRefused, Indefinite) as error:
            log.warning("%s", error)
            await asyncio.sleep(RETRY_SECONDS)
