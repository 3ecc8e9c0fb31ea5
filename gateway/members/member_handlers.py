"""Requests of members: where each leads, and at which gateway it is answered.

::

    POST   /v1/groups/{group}/members                     join: 201 with the id of the member
    GET    /v1/groups/{group}/members/{member}/messages   what is handed out and not committed, and more
    POST   /v1/groups/{group}/members/{member}/commit
    POST   /v1/groups/{group}/members/{member}/fail
    DELETE /v1/groups/{group}/members/{member}            leave

A request is checked where it comes in, and answered by the gateway that serves the member: here, or passed on
to it, or here after the member was taken over, if that gateway is dead or cannot be reached. So it does not
matter how requests are spread over gateways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pydantic_core import to_json

from streamlease.gateway.between.gateway_lines import PassedAnswer, Unreachable
from streamlease.gateway.between.gateway_presence import GatewayPresence
from streamlease.gateway.between.passing_on import FORWARDED, MISDIRECTED, PassingOn, passed_headers
from streamlease.gateway.core.accepting import JSON, chosen
from streamlease.gateway.core.cursors import CursorCodec
from streamlease.gateway.core.rates import GatewayLimits, OpenPolls
from streamlease.gateway.core.refusals import NotAcceptable, NotFound, WrongMethod
from streamlease.gateway.http_calls import HttpCall
from streamlease.gateway.members.core.member_ids import MemberId, MemberIdCodec
from streamlease.gateway.members.core.member_refusals import Misdirected
from streamlease.gateway.members.core.member_requests import (
    check_group,
    parse_commit,
    parse_fail,
    parse_fetch,
    parse_join,
)
from streamlease.gateway.members.members import GatewayMembers
from streamlease.gateway.members.served_member import ServedMember
from streamlease.gateway.message_handlers import FORMS, rendered
from streamlease.gateway.metrics import COUNTS
from streamlease.gateway.pages.message_page import MessagePage
from streamlease.protocol.errors import Indefinite, StreamleaseError
from streamlease.registry.members.member_records import MemberGone, MemberRecord, ServedElsewhere

if TYPE_CHECKING:
    from streamlease.agent.client import Client

GROUPS = "/v1/groups/"
METHODS = ("GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE")
"""All lead here: which of them an address knows is told by `_refuse`."""

MOST_BODY = 1024 * 1024
ATTEMPTS = 5
Answered = tuple[int, bytes, bytes, tuple[tuple[bytes, bytes], ...]]
"""Status, body, type and more headers of an answer."""

Work = Callable[[ServedMember], Awaitable[Answered]]


class MemberHandlers:
    """Answers requests of members.

    Args:
        polls: counts those that wait.
    """

    _members: GatewayMembers
    _ids: MemberIdCodec
    _cursors: CursorCodec
    _passing: PassingOn

    def __init__(self, client: Client, limits: GatewayLimits, polls: OpenPolls) -> None:
        self._client = client
        self._limits = limits
        self._polls = polls

    def begin(self, secret: bytes, presence: GatewayPresence, passing: PassingOn) -> GatewayMembers:
        """From now on there are requests; what is returned must be entered."""
        self._ids = MemberIdCodec(b"member ids" + secret)
        self._cursors = CursorCodec(b"member cursors" + secret)
        self._passing = passing
        self._members = GatewayMembers(self._client, self._limits, self._cursors, presence)
        return self._members

    async def member(self, call: HttpCall) -> None:
        """Everything below ``/v1/groups/``."""
        group, act = _parts(call)
        match act, call.scope["method"]:
            case ["members"], "POST":
                await self._join(call, group)
            case ["members", member], "DELETE":
                await self._leave(call, self._member(call, group, member))
            case ["members", member, "messages"], "GET" | "HEAD":
                await self._fetch(call, self._member(call, group, member))
            case ["members", member, "commit"], "POST":
                await self._commit(call, self._member(call, group, member))
            case ["members", member, "fail"], "POST":
                await self._fail(call, self._member(call, group, member))
            case _:
                _refuse(call, act)

    def _member(self, call: HttpCall, group: str, text: str) -> MemberId:
        member = self._ids.parse(text, group, call.rights.name or "")
        call.rights.check_group(group)
        call.rights.check_consume(member.shared.filter)
        return member

    # ------------------------------------------------------------ each request

    async def _join(self, call: HttpCall, group: str) -> None:
        call.rights.check_group(group)
        asked = parse_join(await call.body(MOST_BODY), group)
        call.rights.check_consume(asked.shared.filter)
        member = await self._members.join(asked, call.client, self._passing.address(call))
        text = self._ids.text(member, call.rights.name or "")
        answer = {"member": text, "session_timeout": asked.session_timeout}
        await call.answer(201, to_json(answer), JSON.encode())

    async def _fetch(self, call: HttpCall, member: MemberId) -> None:
        asked = parse_fetch(call.parameters(), self._cursors)
        form = chosen(call.header(b"accept"), FORMS)
        if form is None:
            raise NotAcceptable(
                f"the answer cannot be {ascii(call.header(b'accept'))[:80]}: accept {', '.join(FORMS)}"
            )
        async with AsyncExitStack() as stack:
            gone = await stack.enter_async_context(call.leaving())

            async def work(served: ServedMember) -> Answered:
                page: MessagePage = await served.fetch(asked, gone)
                return (
                    200,
                    rendered(page, form),
                    form.encode(),
                    ((b"streamlease-next", page.next_text.encode()),),
                )

            if asked.wait:
                self._polls.enter(call.client)
                stack.callback(self._polls.leave, call.client)
                stack.enter_context(COUNTS.waiting(call))
            answered = await self._answered(call, member, b"", work, gone)
        if asked.wait:
            call.check_still_consumes(member.shared.filter)
            call.rights.check_group(member.shared.group)
        await self._send(call, answered)

    async def _commit(self, call: HttpCall, member: MemberId) -> None:
        body = await call.body(MOST_BODY)
        offsets = parse_commit(body)

        async def work(served: ServedMember) -> Answered:
            return _json({"committed": await served.commit(offsets)})

        await self._send(call, await self._answered(call, member, body, work))

    async def _fail(self, call: HttpCall, member: MemberId) -> None:
        body = await call.body(MOST_BODY)
        failed = parse_fail(body)

        async def work(served: ServedMember) -> Answered:
            return _json({"verdict": await served.fail(failed)})

        await self._send(call, await self._answered(call, member, body, work, once=True))

    async def _leave(self, call: HttpCall, member: MemberId) -> None:
        async def work(served: ServedMember) -> Answered:
            await self._members.leave(member, served)
            return 204, b"", b"", ()

        try:
            answered = await self._answered(call, member, b"", work)
        except MemberGone:
            answered = 204, b"", b"", ()
        await self._send(call, answered)

    # ------------------------------------------------------------ where it is answered

    async def _answered(
        self,
        call: HttpCall,
        member: MemberId,
        body: bytes,
        work: Work,
        gone: asyncio.Future[None] | None = None,
        *,
        once: bool = False,
    ) -> Answered:
        """The answer of the gateway that serves the member.

        Args:
            gone: done when nobody waits for the answer any more.
            once: what may have been done is not tried again.

        Raises:
            MemberGone, ServedElsewhere, Misdirected, TooMuch; and what `work` does.
        """
        meant = call.header(FORWARDED)
        for _ in range(ATTEMPTS):
            served = self._members.here(member)
            if served is None:
                record = await self._members.records(member).read()
                if meant is not None and (meant != self._members.id or record.gateway != self._members.id):
                    raise Misdirected(
                        "this gateway does not serve the member: ask the one that its record names"
                    )
                passed = await self._pass_on(call, record, body, gone, once=once)
                if passed is not None and passed.status == MISDIRECTED:
                    continue
                if passed is not None and not passed.ends:
                    return _passed_back(passed)
                try:
                    served = await self._members.take_over(
                        member, record, call.client, self._passing.address(call)
                    )
                except ServedElsewhere:
                    continue
            try:
                return await self._work(member, served, work)
            except ServedElsewhere:
                await self._members.give_up(member, served)
        raise ServedElsewhere("the member moves from gateway to gateway now: repeat the request")

    async def _work(self, member: MemberId, served: ServedMember, work: Work) -> Answered:
        try:
            with served.asked():
                return await work(served)
        except (ServedElsewhere, MemberGone):
            raise
        except StreamleaseError as error:
            if not served.is_over:
                raise
            why = await served.why_over(error)
            if not isinstance(why, ServedElsewhere):
                await self._members.leave(member, served)
            raise why from error

    async def _pass_on(
        self,
        call: HttpCall,
        record: MemberRecord,
        body: bytes,
        gone: asyncio.Future[None] | None,
        *,
        once: bool,
    ) -> PassedAnswer | None:
        """The answer of the gateway that the record names; None if it is dead, or cannot be reached."""
        try:
            return await self._passing.ask(call, record.gateway, record.address, body, gone)
        except Unreachable as error:
            if once:
                raise Indefinite(
                    f"the gateway that serves the member did not answer ({error}): the failure may count; "
                    f"fetch, and tell of the message again if it comes again"
                ) from None
            return None

    async def _send(self, call: HttpCall, answered: Answered) -> None:
        status, body, type, more = answered
        if status == 204:
            await call.send({"type": "http.response.start", "status": status, "headers": []})
            await call.send({"type": "http.response.body", "body": b""})
        else:
            await call.answer(status, body, type, *more)


def _parts(call: HttpCall) -> tuple[str, list[str]]:
    """The group in the path, and what stands behind it."""
    call.below(GROUPS)  # which must be UTF-8
    raw: bytes = call.scope.get("raw_path") or call.scope["path"].encode()
    group, *act = (unquote(part) for part in raw.partition(b"?")[0][len(GROUPS) :].decode("ascii").split("/"))
    if not act:
        raise NotFound(
            f"there is nothing at {ascii(call.scope['path'])[:80]}: the addresses are in /openapi.json"
        )
    return check_group(group), act


def _refuse(call: HttpCall, act: list[str]) -> None:
    """Raises:
    WrongMethod: the address knows other methods. NotFound: there is none.
    """
    methods = {1: ("members", "POST"), 2: ("", "DELETE")}
    known = {"messages": "GET", "commit": "POST", "fail": "POST"}
    shown = ascii(call.scope["path"])[:80]
    allowed = ""
    if act[0] == "members":
        allowed = methods[len(act)][1] if len(act) < 3 else known.get(act[2], "") if len(act) == 3 else ""
    if not allowed:
        raise NotFound(f"there is nothing at {shown}: the addresses are in /openapi.json")
    raise WrongMethod(f"{shown} knows no {ascii(call.scope['method'])[:20]}: use {allowed}", allowed)


def _json(answer: object) -> Answered:
    return 200, to_json(answer), JSON.encode(), ()


def _passed_back(passed: PassedAnswer) -> Answered:
    return passed.status, passed.body, passed.headers.get(b"content-type", b""), passed_headers(passed)
