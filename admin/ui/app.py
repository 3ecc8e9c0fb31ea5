"""The web application: the console, the documents behind it, live updates as server-sent events, and acts.

====================================  ==========================================================
``GET /``                             the console
``GET /api/session``                  who looks, what they may do, which servers there are
``POST /api/login``, ``/api/logout``  with a token, for a cookie
``GET /api/overview``                 server, hosts, spaces, groups, processes, what needs attention
``GET /api/group?subscription=SUB``   one group: rows of streams, lag over time, events
``GET /api/heat?subscription=SUB``    the lag of its streams over time
``GET /api/look/WHAT``                what somebody opens: see ``LOOKS``
``GET /api/live[?subscription=SUB]``  server-sent events: ``overview``, ``series``, and ``group``
``POST /api/act``                     an operator's act; the header ``Authorization: Bearer TOKEN`` serves too
``GET /healthz``                      200 while Redis answers and the newest look succeeded, else 503
====================================  ==========================================================

All of ``/api`` takes ``server=NAME`` where the console has several. Nothing can be changed unless somebody
logged in who may. The console loads nothing from elsewhere, and answers only under addresses, localhost and
the names that it was told (see ``admin.ui.host_names``).
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
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamlease.admin.ui import live, looks, query_looks
from streamlease.admin.ui.board import Board
from streamlease.admin.ui.host_names import KnownHosts, sent_by_another
from streamlease.admin.ui.logins import LASTS_SECONDS, ConsoleRole, Logins, Person
from streamlease.admin.ui.other_acts import asked, demanded, do, roles
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
LONGEST_BODY = 2 * 1024 * 1024
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
                stack.push_async_callback(_running(site.board, failed).close)
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
            Route("/api/live", guard(console.live)),
            *(Route(f"/api/look/{name}", guard(console.looked(work))) for name, work in LOOKS.items()),
            Route("/api/act", guard(console.act), methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(_Headers, policy=console.policy), Middleware(KnownHosts, names=names)],
        lifespan=lifespan,
    )


def _running(board: Board, failed: Callable[[], None]) -> Supervisor:
    def fail(name: str, error: StreamleaseError) -> None:
        board.fail(name, error)
        failed()

    supervisor = Supervisor("the console", fail)
    supervisor.start("the reader", board.run(), endless=True)
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
        self._logins = logins
        self._page = (STATIC / "index.html").read_text("utf-8")
        self.policy = policy_of(self._page)

    # ------------------------------------------------------------ who asks

    def guarded(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """`answer` for who may look, of the server that is asked for, with errors as documents."""

        async def answered(request: Request) -> Response:
            person = self._person(request)
            if person is None:
                return _refused(401, "log in to see this")
            name = request.query_params.get("server") or self._first.name
            site = self._sites.get(name)
            if site is None:
                return _refused(404, f"the console has no server {name!r}: it has {', '.join(self._sites)}")
            try:
                return await answer(request, site, person)
            except (UnknownGroup, UnknownSpace) as error:
                return _refused(404 if request.method == "GET" else 409, str(error))
            except InvalidInput as error:
                return _refused(400, str(error))
            except StreamleaseError as error:
                return _refused(409, str(error))

        return answered

    def _person(self, request: Request) -> Person | None:
        try:
            self._logins.look_again()
        except InvalidOption as error:
            log.error("the former tokens go on: %s", error)
        bearer = request.headers.get("authorization", "")
        if bearer and self._logins.by_token:
            return self._logins.with_token(bearer.removeprefix("Bearer "))
        address = request.client.host if request.client is not None else ""
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

    async def login(self, request: Request) -> Response:
        if not self._logins.by_token:
            return _refused(403, "start 'streamlease ui' with --token-file to log in by token")
        body, refused = await _body(request, self._names)
        if refused is not None:
            return refused
        try:
            token = str(json.loads(body).get("token", ""))
        except (ValueError, AttributeError):
            return _refused(400, "give a document with the field token")
        person = self._logins.with_token(token)
        if person is None:
            await asyncio.sleep(LOGIN_SECONDS)
            return _refused(401, "the token is missing or wrong")
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
        _, refused = await _body(request, self._names)
        if refused is not None:
            return refused
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
        return JSONResponse({**live.whole_overview(site.board), "acts": person.role >= ConsoleRole.OPERATOR})

    async def group(self, request: Request, site: Site, _: Person) -> Response:
        await site.board.fresh()
        subscription = request.query_params.get("subscription", "")
        found = site.board.groups.get(subscription)
        if found is None:
            return _refused(404, f"there is no group {subscription!r}")
        return JSONResponse(live.whole_group(found))

    async def heat(self, request: Request, site: Site, _: Person) -> Response:
        await site.board.fresh()
        found = site.board.groups.get(request.query_params.get("subscription", ""))
        return _refused(404, "there is no such group") if found is None else JSONResponse(found.heat_map())

    async def live(self, request: Request, site: Site, _: Person) -> Response:
        news = live.events(site.board, request.query_params.get("subscription"))
        # Else a proxy that gathers answers would hold updates back.
        headers = {"X-Accel-Buffering": "no"}
        let_in = self._while_let_in(request, news)
        return StreamingResponse(let_in, headers=headers, media_type="text/event-stream")

    async def _while_let_in(self, request: Request, news: AsyncIterator[str]) -> AsyncIterator[str]:
        """`news`, until whoever asked may not look any more: the browser asks again, and is refused."""
        async for one in news:
            if self._person(request) is None:
                return
            yield one

    def looked(self, work: Callable[[Client, Mapping[str, str]], Awaitable[dict[str, Any]]]) -> Answer:
        """The answer to one of `LOOKS`."""

        async def answer(request: Request, site: Site, _: Person) -> Response:
            return JSONResponse(await work(site.client, request.query_params))

        return answer

    # ------------------------------------------------------------ acts

    async def act(self, request: Request, site: Site, person: Person) -> Response:
        body, refused = await _body(request, self._names)
        if refused is not None:
            return refused
        if person.role < ConsoleRole.OPERATOR:
            if not self._logins.by_token and self._logins.everyone is not None:
                return _refused(
                    403, "this page only shows: start 'streamlease ui' with --token-file to allow acts"
                )
            return _refused(401 if not person.name else 403, "log in as an operator to do this")
        wanted = asked(body)
        if person.role < demanded(wanted):
            return _refused(403, f"only an admin may {wanted.act.replace('_', ' ')}: you are an operator")
        says = await do(site.client, wanted, _who(request, person))
        return JSONResponse({"done": not wanted.dry_run, "says": says})


async def _trouble(site: Site) -> str | None:
    """Why what is shown is not the present state; where nobody looks, whether Redis answers."""
    if site.board.failure is not None or not site.board.resting:
        return site.board.trouble
    try:
        await server_time(site.client.redis)
    except StreamleaseError as error:
        return str(error)
    return None


async def _body(request: Request, names: frozenset[str]) -> tuple[bytes, Response | None]:
    """The body of a request that changes something; else why it is refused: see `admin.ui.host_names`."""
    if (why := sent_by_another(request.headers, names)) is not None:
        return b"", _refused(403, why)
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != "application/json":
        return b"", _refused(415, f"its Content-Type is {ascii(given)[:100]}: send application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_BODY:
            return b"", _refused(413, f"the request is longer than {LONGEST_BODY} bytes")
    return body, None


def _refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": " ".join(why.split())}, status)


def _who(request: Request, person: Person) -> str:
    address = request.client.host if request.client is not None else "unknown"
    return f"{person.name or 'ui'}@{address}"
