"""Acts of operators on their way to a leader or a host, and the replies.

An act that is not answered in time ends with an error that says what is known of it.
"""

from __future__ import annotations

import asyncio
import contextlib

from streamlease.agent.membership.leader_search import LeaderSearch
from streamlease.agent.membership.mail import Mail
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.errors import Indefinite, StreamleaseError
from streamlease.protocol.errors import NotLeader as NobodyLeads
from streamlease.protocol.messages import (
    Command,
    CommandAstray,
    CommandDone,
    CommandRefused,
    CommandReply,
    CutRead,
    DrainHost,
    FromLeader,
)
from streamlease.registry import spawn
from streamlease.streams.redis.connection import AsyncRedis

RETRY_SECONDS = 0.2

ASK_SECONDS = 1.0
"""After so long without a leader or an answer an operator's act looks, and asks, again."""


class Commands:
    """Sends acts for the owner of `mail`."""

    def __init__(self, redis: AsyncRedis, mail: Mail, leaders: LeaderSearch) -> None:
        self._redis = redis
        self._mail = mail
        self._leaders = leaders
        self._replies: dict[str, list[asyncio.Future[CommandReply | CommandAstray]]] = {}
        """Request -> who waits for its reply: the same one may be asked for twice at once."""

    async def ask(
        self, leader: str, command: Command | DrainHost, seconds: float
    ) -> CommandReply | CommandAstray:
        """Send an operator's act to the host `leader` and wait for the reply.

        Raises:
            Indefinite: no reply within `seconds`: it was done, or it was not.
        """
        reply: asyncio.Future[CommandReply | CommandAstray] = asyncio.get_running_loop().create_future()
        waiting = self._replies.setdefault(command.request, [])
        waiting.append(reply)
        self._mail.register(command.request, self._replied)
        try:
            self._mail.post(leader, command)
            async with asyncio.timeout(seconds):
                return await reply
        except TimeoutError:
            raise Indefinite(
                f"{leader} did not answer '{_name(command)}' for {command.group} within {seconds:g} s: "
                f"{_remedy(command)}"
            ) from None
        finally:
            waiting.remove(reply)
            if not waiting:
                del self._replies[command.request]
                self._mail.unregister(command.request)

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

            self._leaders.find(command.group, take)
            with contextlib.suppress(TimeoutError, Indefinite):
                async with asyncio.timeout(min(left, ASK_SECONDS)):
                    mailbox = await found
                try:
                    reply = await self.ask(mailbox, command, min(give_up - loop.time(), ASK_SECONDS))
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
                return await self.ask(wanted.group, wanted, min(left, ASK_SECONDS))
        raise Indefinite(
            f"host {wanted.group} did not answer within {seconds:g} s: it is "
            f"{'undrained' if wanted.undo else 'drained'}, or it is not; look with 'streamlease status', and "
            f"try again"
        )

    def end(self, error: StreamleaseError) -> None:
        """No reply comes any more."""
        for reply in (reply for waiting in self._replies.values() for reply in waiting):
            if not reply.done():
                reply.set_exception(error)

    def _replied(self, message: FromLeader | CutRead | CommandAstray) -> None:
        assert isinstance(message, CommandDone | CommandRefused | CommandAstray)
        for reply in self._replies.get(message.request, ()):
            if not reply.done():
                reply.set_result(message)

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


def _name(command: Command | DrainHost) -> str:
    return command.act.act if isinstance(command, Command) else "drain"


def _remedy(command: Command | DrainHost) -> str:
    if isinstance(command, Command) and isinstance(command.act, DescribeGroup):
        return "it may be busy: ask again"
    return "look with 'streamlease group history' whether it was done"


def _maybe_done(command: Command, who: str) -> Indefinite:
    """The error for a command that was sent and not answered (invariant 12)."""
    if command.dry_run:
        return Indefinite(f"{who}: it was only asked what it would do, so nothing was changed; try again")
    return Indefinite(
        f"{who}: it was done, or it was not; look for request {command.request} in "
        f"'streamlease group history SUB --json', and repeat it if it is not there"
    )
