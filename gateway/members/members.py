"""The members that this gateway serves: who joins, moves here, falls silent, or moves on.

A gateway keeps nothing that another one cannot take over: a member is its session, whose identity is in the
member's id, and its record. One gateway serves it, and the others pass its requests on to that one. If that
one is dead or cannot be reached, whoever gets the request takes the member over (`docs/groups-over-http.md`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from streamlease.agent.subscribing import Subscribing
from streamlease.gateway.between.gateway_presence import GatewayPresence
from streamlease.gateway.core.cursors import CursorCodec
from streamlease.gateway.core.rates import TooMuch
from streamlease.gateway.members.core.member_ids import MemberId
from streamlease.gateway.members.core.member_requests import AskedToJoin, GroupStart, parse_start, start_text
from streamlease.gateway.members.served_member import Served, ServedMember
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import random_token
from streamlease.registry.members.member_records import (
    HandedPlace,
    MemberGone,
    MemberRecord,
    MemberRecords,
    ServedElsewhere,
)
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.gateway.core.rates import GatewayLimits
    from streamlease.protocol.topics import SharedSubscription

LOOK_SECONDS = 0.25
READ_AHEAD = 2
"""Full batches, of 4 MiB at most, that are read ahead for a member."""

_logger = logging.getLogger(__name__)


class GatewayMembers:
    """All members that are served here; an asynchronous context manager.

    Args:
        cursors: of members.
    """

    def __init__(
        self,
        client: Client,
        limits: GatewayLimits,
        cursors: CursorCodec,
        presence: GatewayPresence,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = presence.id
        self._presence = presence
        self._client = client
        self._limits = limits
        self._cursors = cursors
        self._clock = clock
        self._served: dict[MemberId, ServedMember] = {}
        self._opening: dict[MemberId, asyncio.Lock] = {}
        self._clients: dict[MemberId, str] = {}
        self._tasks = Supervisor("members", lambda _, error: _logger.error("gateway: members: %s", error))

    def __len__(self) -> int:
        return len(self._served)

    async def __aenter__(self) -> GatewayMembers:
        self._tasks.start("look after members", self._look(), endless=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let other gateways have the members: nobody leaves its group."""
        await self._tasks.close()
        members, self._served = [*self._served.values()], {}
        for outcome in await asyncio.gather(*(one.hand_over() for one in members), return_exceptions=True):
            if isinstance(outcome, BaseException):
                _logger.warning("gateway: a member is handed over late: %s", outcome)

    def records(self, member: MemberId) -> MemberRecords:
        """The record of a member."""
        return MemberRecords(self._client.redis, member.shared.id, member.token)

    def here(self, member: MemberId) -> ServedMember | None:
        """The member, if it is served here, as far as is known."""
        return self._served.get(member)

    # ------------------------------------------------------------ coming

    async def join(self, asked: AskedToJoin, client: str, address: str) -> MemberId:
        """A new member.

        Args:
            client: who it is of, for the limits.
            address: where other gateways reach this one.

        Raises:
            TooMuch: there are too many.
            InvalidOption, UnknownSpace, UnknownGroup, GroupConflict, HistoryTruncated: it cannot join so.
            StoreUnavailable, StoreRefused, Indefinite: it has not joined, as far as anybody can tell.
        """
        member = MemberId(random_token(), asked.shared)
        self._check_room(client)
        self._clients[member] = client  # counts from now on
        try:
            joining = _joining(asked.shared, asked.start, asked.name, asked.session_timeout)
            await joining.join(self._client.redis, self._client.groups)
            await self._presence.show()
            name, timeout = asked.name or f"{member.session}/0", round(asked.session_timeout * 1000)
            records = self.records(member)
            start = start_text(asked.start)
            arrival = await records.begin(self.id, address, member.session, name, timeout, start)
            await self._serve(member, joining, Served(records, arrival, asked.session_timeout, {}))
        except BaseException:
            self._clients.pop(member, None)
            raise
        return member

    async def take_over(
        self, member: MemberId, record: MemberRecord, client: str, address: str
    ) -> ServedMember:
        """Serve a member that another gateway served when `record` was read, or this one before it was lost.

        Raises:
            ServedElsewhere: yet another one was faster.
            MemberGone, TooMuch, UnknownGroup, GroupConflict.
            StoreUnavailable, StoreRefused, Indefinite.
        """
        async with self._opening.setdefault(member, asyncio.Lock()):
            try:
                if (served := self._served.get(member)) is not None:
                    return served
                self._check_room(client)
                own = record.name != f"{record.session}/0"
                timeout = record.timeout_ms / 1000
                joining = _joining(
                    member.shared, parse_start(record.start), record.name if own else None, timeout
                )
                (await self._client.groups.get(member.shared)).check_epochs(whole=False)
                await self._presence.show()
                records = self.records(member)
                arrival = await records.take(record, self.id, address)
                _logger.info("gateway: member %s of %s goes on here", member.token, member.shared)
                handed: dict[str, HandedPlace] = dict(record.handed)
                self._clients[member] = client
                return await self._serve(member, joining, Served(records, arrival, timeout, handed))
            finally:
                self._opening.pop(member, None)

    async def _serve(self, member: MemberId, joining: Subscribing, served: Served) -> ServedMember:
        client = self._client
        reader = await joining.carry(
            client.redis, client.tails, client.groups, client.agent, member.session, served.arrival
        )
        one = self._served[member] = ServedMember(
            client.redis,
            member.shared.id,
            reader,
            served,
            self._cursors,
            self._limits.member_bytes,
            self._clock,
        )
        return one

    def _check_room(self, client: str) -> None:
        if len(self._clients) >= self._limits.members:
            raise TooMuch(
                f"this gateway has {self._limits.members} members of groups: ask another gateway",
                1.0,
                "members",
            )
        if Counter(self._clients.values())[client] >= self._limits.client_members:
            raise TooMuch(
                f"this client has {self._limits.client_members} members of groups at this gateway: let one "
                f"leave by DELETE, or use those that it has",
                1.0,
                "client_members",
            )

    # ------------------------------------------------------------ going

    def forget(self, member: MemberId, served: ServedMember) -> bool:
        """It is not served here any more; False: it was not."""
        if self._served.get(member) is not served:
            return False
        del self._served[member]
        self._clients.pop(member, None)
        return True

    async def leave(self, member: MemberId, served: ServedMember) -> None:
        """It leaves its group.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: others learn it by its silence.
        """
        if self.forget(member, served):
            await served.leave()

    async def give_up(self, member: MemberId, served: ServedMember) -> None:
        """Another gateway serves it."""
        if self.forget(member, served):
            await served.give_up()

    # ------------------------------------------------------------ time

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock()
            for member, served in [*self._served.items()]:
                if served.silent_for(now) >= served.timeout:
                    _logger.info("gateway: member %s of %s is silent and leaves", member.token, member.shared)
                    self._tasks.start("a member leaves", self._let_go(self.leave(member, served), member))
            due = [(member, one) for member, one in self._served.items() if one.is_to_be_kept(now)]
            await asyncio.gather(*(self._keep(member, one) for member, one in due))

    async def _keep(self, member: MemberId, served: ServedMember) -> None:
        try:
            await served.keep()
        except ServedElsewhere:
            self._tasks.start("a member goes on", self._let_go(self.give_up(member, served), member))
        except MemberGone:
            self._tasks.start("a member leaves", self._let_go(self.leave(member, served), member))
        except StreamleaseError as error:
            _logger.warning("gateway: member %s of %s: %s", member.token, member.shared, error)

    async def _let_go(self, work: Coroutine[Any, Any, None], member: MemberId) -> None:
        try:
            await work
        except StreamleaseError as error:
            _logger.warning("gateway: member %s of %s: %s", member.token, member.shared, error)


def _joining(shared: SharedSubscription, start: GroupStart, name: str | None, timeout: float) -> Subscribing:
    """How a member consumes, checked."""
    return Subscribing.checked(str(shared), start, name, None, READ_AHEAD, False, timeout, None, None, "off")
