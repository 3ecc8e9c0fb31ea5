"""The web application: the console, the documents behind it, live updates over channels, and acts.

====================================  ==========================================================
``GET /``                             the console
``GET /api/session``                  who looks, what they may do, which servers there are
``POST /api/login``, ``/api/logout``  with a token, for a cookie
``GET /api/overview``                 server, hosts, spaces, groups, processes, what needs attention
``GET /api/group?subscription=SUB``   one group: rows of streams, lag over time, events
``GET /api/heat?subscription=SUB``    the lag of its streams over time
``GET /api/look/WHAT``                what somebody opens: see ``LOOKS``
``POST /v1/channels/TAB/commands``    subscribe to keys, see ``live.console_states``; and unsubscribe
``POST /v1/channels/TAB/poll``        have what is new of them, or wait
``DELETE /v1/channels/TAB``           nobody looks any more
``POST /api/act``                     an operator's act; the header ``Authorization: Bearer TOKEN`` serves too
``GET /healthz``                      200 while Redis answers and the newest look succeeded, else 503
====================================  ==========================================================

All of ``/api`` and ``/v1`` takes ``server=NAME`` where the console has several. Nothing can be changed unless
somebody logged in who may. The console loads nothing from elsewhere, and answers only under addresses,
localhost and the names that it was told (see ``admin.ui.host_names``).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamlease.admin.ui import looks, query_looks
from streamlease.admin.ui.board import Board
from streamlease.admin.ui.console_requests import RefusedRequest, json_body, refused
from streamlease.admin.ui.host_names import KnownHosts, sent_by_another
from streamlease.admin.ui.live import channel_requests
from streamlease.admin.ui.live.console_states import whole_group, whole_overview
from streamlease.admin.ui.live.tab_channels import TabChannels, TooManyTabs
from streamlease.admin.ui.logins import LASTS_SECONDS, ConsoleRole, Logins, Person
from streamlease.admin.ui.other_acts import asked, demanded, do, roles
from streamlease.protocol.addresses import plain_address
from streamlease.protocol.errors import (
    InvalidInput,
    InvalidOption,
    StreamleaseError,
    UnknownGroup,
    UnknownSpace,
)
from streamlease.streams.log.times import server_time
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from streamlease.agent.client import Client

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
LOOKS: dict[str, Callable[[Client, Mapping[str, str]], Awaitable[dict[str, Any]]]] = {
    "space": looks.space,
    "archive": looks.archive,
    "topics": looks.topics,
    "messages": looks.messages,
    "message": looks.message,
    "why": looks.why,
    "letters": looks.letters,
    "catalog": looks.catalog,
    "queries": query_looks.queries,
    "query": query_looks.query,
}
LOGIN_SECONDS = 0.5
"""So long a wrong token is thought about."""


@dataclass(frozen=True, slots=True)
class Site:
    """One Redis in the console."""

    name: str
    client: Client
    board: Board


Answer = Callable[[Request, Site, Person], Awaitable[Response]]


def make_app(
    sites: Sequence[Site],
    logins: Logins | None = None,
    names: frozenset[str] = frozenset(),
    failed: Callable[[], None] = lambda: None,
) -> Starlette:
    """The application; the boards are run as long as it lives.

    Args:
        sites: one or more; the first is shown if none is asked for.
        logins: who may do what; None: everybody may look, and nobody act.
        names: under which the console may be asked for, besides addresses and localhost.
        failed: called if a board cannot be run any more: it shows nothing new, and the probe fails.
    """
    console = _Console(sites, logins or Logins(), names)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for site in sites:
                stack.push_async_callback(_running(site.board, console.tabs[site.name], failed).close)
            yield

    pages, guard = [Route("/", console.page), Route("/healthz", console.health)], console.guarded
    return Starlette(
        routes=[
            *pages,
            Route("/api/session", console.session),
            Route("/api/login", console.login, methods=["POST"]),
            Route("/api/logout", console.logout, methods=["POST"]),
            Route("/api/overview", guard(console.overview)),
            Route("/api/group", guard(console.group)),
            Route("/api/heat", guard(console.heat)),
            *(Route(f"/api/look/{name}", guard(console.looked(work))) for name, work in LOOKS.items()),
            Route("/api/act", guard(console.act), methods=["POST"]),
            Route("/v1/channels/{client}/commands", guard(console.commands), methods=["POST"]),
            Route("/v1/channels/{client}/poll", guard(console.poll), methods=["POST"]),
            Route("/v1/channels/{client}", guard(console.leave), methods=["DELETE"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={RefusedRequest: _refused_request},
        middleware=[Middleware(_Headers, policy=console.policy), Middleware(KnownHosts, names=names)],
        lifespan=lifespan,
    )


async def _refused_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedRequest)
    return refused(error.status, str(error))


def _running(board: Board, tabs: TabChannels, failed: Callable[[], None]) -> Supervisor:
    def fail(name: str, error: StreamleaseError) -> None:
        board.fail(name, error)
        failed()

    supervisor = Supervisor("the console", fail)
    supervisor.start("the reader", board.run(), endless=True)
    supervisor.start("looking for dead tabs", tabs.look_for_dead(), endless=True)
    return supervisor


def policy_of(page: str) -> str:
    """What the page may do, the one script in it by its hash."""
    text = page.partition('<script type="importmap">')[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return (
        f"default-src 'self'; script-src 'self' 'sha256-{digest}'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )


class _Headers:
    """Puts the headers that guard a page on every response."""

    def __init__(self, app: ASGIApp, policy: str) -> None:
        self._app = app
        self._headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                # Files are asked for again with their tag, and answered with 304.
                static = str(scope.get("path", "")).startswith("/static/")
                headers["Cache-Control"] = "no-cache" if static else "no-store"
            await send(message)

        await self._app(scope, receive, with_headers)


class _Console:
    def __init__(self, sites: Sequence[Site], logins: Logins, names: frozenset[str]) -> None:
        self._sites = {site.name: site for site in sites}
        self._names = names
        self._first = sites[0]
        self.tabs = {site.name: TabChannels(site.board) for site in sites}
        self._logins = logins
        self._page = (STATIC / "index.html").read_text("utf-8")
        self.policy = policy_of(self._page)

    # ------------------------------------------------------------ who asks

    def guarded(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """`answer` for who may look, of the server that is asked for, with errors as documents."""

        async def answered(request: Request) -> Response:
            person = self._person(request)
            if person is None:
                return refused(401, "log in to see this")
            name = request.query_params.get("server") or self._first.name
            site = self._sites.get(name)
            if site is None:
                return refused(404, f"the console has no server {name!r}: it has {', '.join(self._sites)}")
            try:
                return await answer(request, site, person)
            except TooManyTabs as error:
                return refused(429, str(error))
            except (UnknownGroup, UnknownSpace) as error:
                return refused(404 if request.method == "GET" else 409, str(error))
            except InvalidInput as error:
                return refused(400, str(error))
            except StreamleaseError as error:
                return refused(409, str(error))

        return answered

    def _person(self, request: Request) -> Person | None:
        try:
            self._logins.look_again()
        except InvalidOption as error:
            log.error("the former tokens go on: %s", error)
        bearer = request.headers.get("authorization", "")
        if bearer and self._logins.by_token:
            return self._logins.with_token(bearer.removeprefix("Bearer "))
        address = plain_address(request.client.host) if request.client is not None else ""
        return (
            self._logins.with_headers(request.headers, address)
            or self._logins.with_cookie(request.cookies.get(self._logins.cookie_name, ""), time.time())
            or self._logins.everyone
        )

    async def session(self, request: Request) -> Response:
        person = self._person(request)
        role = None if person is None else person.role.name.lower()
        return JSONResponse(
            {
                "name": None if person is None else person.name,
                "role": role,
                "login": self._logins.by_token,
                "servers": [*self._sites],
                "roles": roles(),
            }
        )

    async def _own_body(self, request: Request) -> bytes:
        """The body of a request that changes something: see `admin.ui.host_names`."""
        if (why := sent_by_another(request.headers, self._names)) is not None:
            raise RefusedRequest(403, why)
        return await json_body(request)

    async def login(self, request: Request) -> Response:
        if not self._logins.by_token:
            return refused(403, "start 'streamlease ui' with --token-file to log in by token")
        body = await self._own_body(request)
        try:
            token = str(json.loads(body).get("token", ""))
        except (ValueError, AttributeError):
            return refused(400, "give a document with the field token")
        person = self._logins.with_token(token)
        if person is None:
            await asyncio.sleep(LOGIN_SECONDS)
            return refused(401, "the token is missing or wrong")
        answer = JSONResponse({"name": person.name, "role": person.role.name.lower()})
        answer.set_cookie(
            self._logins.cookie_name,
            self._logins.cookie(person, time.time()),
            max_age=LASTS_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def logout(self, request: Request) -> Response:
        await self._own_body(request)
        answer = JSONResponse({})
        answer.delete_cookie(self._logins.cookie_name, httponly=True, samesite="strict")
        return answer

    # ------------------------------------------------------------ what is shown

    async def page(self, _: Request) -> Response:
        return HTMLResponse(self._page)

    async def health(self, _: Request) -> Response:
        troubles = {name: await _trouble(site) for name, site in self._sites.items()}
        found = [why if len(troubles) == 1 else f"{name}: {why}" for name, why in troubles.items() if why]
        error = "; ".join(found) or None
        return JSONResponse({"ready": error is None, "error": error}, 200 if error is None else 503)

    async def overview(self, _: Request, site: Site, person: Person) -> Response:
        await site.board.fresh()
        return JSONResponse({**whole_overview(site.board), "acts": person.role >= ConsoleRole.OPERATOR})

    async def group(self, request: Request, site: Site, _: Person) -> Response:
        await site.board.fresh()
        subscription = request.query_params.get("subscription", "")
        found = site.board.groups.get(subscription)
        return _no_group(site, subscription) if found is None else JSONResponse(whole_group(found))

    async def heat(self, request: Request, site: Site, _: Person) -> Response:
        await site.board.fresh()
        subscription = request.query_params.get("subscription", "")
        found = site.board.groups.get(subscription)
        return _no_group(site, subscription) if found is None else JSONResponse(found.heat_map())

    async def commands(self, request: Request, site: Site, person: Person) -> Response:
        return await channel_requests.commands(request, self.tabs[site.name], person.name)

    async def poll(self, request: Request, site: Site, person: Person) -> Response:
        channels = self.tabs[site.name]
        answer = await channel_requests.poll(request, channels, site.board, person.name)
        if self._person(request) is None:  # who may not look any more gets nothing of what came meanwhile
            channel_requests.leave(request, channels, person.name)
            return refused(401, "log in to see this")
        return answer or Response(status_code=204)

    async def leave(self, request: Request, site: Site, person: Person) -> Response:
        return channel_requests.leave(request, self.tabs[site.name], person.name)

    def looked(self, work: Callable[[Client, Mapping[str, str]], Awaitable[dict[str, Any]]]) -> Answer:
        """The answer to one of `LOOKS`."""

        async def answer(request: Request, site: Site, _: Person) -> Response:
            return JSONResponse(await work(site.client, request.query_params))

        return answer

    # ------------------------------------------------------------ acts

    async def act(self, request: Request, site: Site, person: Person) -> Response:
        body = await self._own_body(request)
        if person.role < ConsoleRole.OPERATOR:
            if not self._logins.by_token and self._logins.everyone is not None:
                return refused(
                    403, "this page only shows: start 'streamlease ui' with --token-file to allow acts"
                )
            return refused(401 if not person.name else 403, "log in as an operator to do this")
        wanted = asked(body)
        if person.role < demanded(wanted):
            return refused(403, f"only an admin may {wanted.act.replace('_', ' ')}: you are an operator")
        says = await do(site.client, wanted, _who(request, person))
        return JSONResponse({"done": not wanted.dry_run, "says": says})


def _no_group(site: Site, subscription: str) -> Response:
    """Why there is nothing to show of a group: it is not there, or it is damaged."""
    damaged = () if site.board.overview is None else site.board.overview.damaged
    for one in damaged:
        if one.what == f"group {subscription}":
            return refused(409, f"{one.what} cannot be read: {one.why}")
    return refused(404, f"there is no group {subscription!r}")


async def _trouble(site: Site) -> str | None:
    """Why what is shown is not the present state; where nobody looks, whether Redis answers."""
    if site.board.failure is not None or not site.board.resting:
        return site.board.trouble
    try:
        await server_time(site.client.redis)
    except StreamleaseError as error:
        return str(error)
    return None


def _who(request: Request, person: Person) -> str:
    address = plain_address(request.client.host) if request.client is not None else "unknown"
    return f"{person.name or 'ui'}@{address}"
