"""The web application: a page, the documents behind it, live updates as server-sent events, and acts.

====================================  ==========================================================
``GET /``                             the page
``GET /api/overview``                 server, hosts, spaces, groups
``GET /api/group?subscription=SUB``   one group: rows of streams, lag over time, events
``GET /api/live[?subscription=SUB]``  server-sent events: ``overview``, and of one group ``group``
``POST /api/act``                     an operator's act, with ``Authorization: Bearer TOKEN``
``GET /healthz``                      200 while the newest look at Redis succeeded, else 503
====================================  ==========================================================

Nothing can be changed unless a token was given at the start. The page loads nothing from elsewhere, and
answers only under addresses, localhost and the names that it was told (see ``admin.ui.host_names``).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
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

from streamlease.admin.facts.fact_tables import ON_PAGE
from streamlease.admin.ui.board import Board, GroupBoard, StreamRow
from streamlease.admin.ui.host_names import KnownHosts
from streamlease.admin.ui.page_acts import asked, do
from streamlease.protocol.errors import InvalidInput, StreamleaseError
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from streamlease.agent.client import Client

STATIC = Path(__file__).parent / "static"
LONGEST_BODY = 65_536
QUIET_SECONDS = 15.0
"""After so long without news a comment goes out, so that a dead connection is noticed."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def make_app(
    client: Client,
    board: Board,
    token: str | None = None,
    names: frozenset[str] = frozenset(),
    failed: Callable[[], None] = lambda: None,
) -> Starlette:
    """The application for `client`; `board` is run as long as the application lives.

    Args:
        token: what a request for an act must show; None: no acts at all.
        names: under which the page may be asked for, besides addresses and localhost.
        failed: called if the board cannot be run any more: the page shows nothing new, and its probe fails.
    """
    site = _Site(client, board, token)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        def fail(name: str, error: StreamleaseError) -> None:
            board.fail(name, error)
            failed()

        supervisor = Supervisor("the page", fail)
        supervisor.start("the reader", board.run(), endless=True)
        try:
            yield
        finally:
            await supervisor.close()

    return Starlette(
        routes=[
            Route("/", site.page),
            Route("/healthz", site.health),
            Route("/api/overview", site.overview),
            Route("/api/group", site.group),
            Route("/api/live", site.live),
            Route("/api/act", site.act, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(_Headers), Middleware(KnownHosts, names=names)],
        lifespan=lifespan,
    )


def make_page() -> str:
    """The page, with the heads of its tables."""
    text = (STATIC / "index.html").read_text("utf-8")
    for name, columns in ON_PAGE.items():
        head = columns.head(StreamRow._fields if name == "streams" else ())
        text = text.replace(f"<thead>{{{name}}}</thead>", f"<thead>{head}</thead>")
    return text


class _Headers:
    """Puts `HEADERS` on every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)


class _Site:
    def __init__(self, client: Client, board: Board, token: str | None) -> None:
        self._client = client
        self._board = board
        self._token = token
        self._page = make_page()

    async def page(self, _: Request) -> Response:
        return HTMLResponse(self._page)

    async def health(self, _: Request) -> Response:
        error = self._board.trouble
        return JSONResponse({"ready": error is None, "error": error}, 200 if error is None else 503)

    async def overview(self, _: Request) -> Response:
        return JSONResponse(self._overview())

    async def group(self, request: Request) -> Response:
        found = self._board.groups.get(request.query_params.get("subscription", ""))
        if found is None:
            return _refused(404, f"there is no group {request.query_params.get('subscription')!r}")
        return JSONResponse(_whole(found))

    async def live(self, request: Request) -> Response:
        return StreamingResponse(
            self._events(request.query_params.get("subscription")), media_type="text/event-stream"
        )

    async def act(self, request: Request) -> Response:
        if self._token is None:
            return _refused(
                403, "this page only shows: start 'streamlease ui' with --token-file to allow acts"
            )
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return _refused(401, "the token is missing or wrong")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_BODY:
                return _refused(413, f"the request is longer than {LONGEST_BODY} bytes")
        try:
            wanted = asked(body)
            says = await do(self._client, wanted, _who(request))
        except InvalidInput as error:
            return _refused(400, str(error))
        except StreamleaseError as error:
            return _refused(409, str(error))
        return JSONResponse({"done": not wanted.dry_run, "says": says})

    def _overview(self) -> dict[str, Any]:
        board = self._board
        return {
            **({} if board.overview is None else board.overview.as_json()),
            "error": board.trouble,
            "took_ms": round(board.took * 1000, 1),
            "acts": self._token is not None,
        }

    async def _events(self, subscription: str | None) -> AsyncIterator[str]:
        number = -1
        viewer = _Viewer()
        while True:
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    number = await self._board.after(number)
            except TimeoutError:
                yield ": still here\n\n"
                continue
            except StreamleaseError:
                yield _message("overview", self._overview())  # with the error, and for the last time
                return
            yield _message("overview", self._overview())
            if subscription is not None:
                found = self._board.groups.get(subscription)
                yield _message("group", {"gone": True} if found is None else viewer.changes(found))


class _Viewer:
    """What one viewer of a group was sent already."""

    def __init__(self) -> None:
        self._rows: dict[str, StreamRow] = {}
        self._events = -1

    def changes(self, group: GroupBoard) -> dict[str, Any]:
        """What is new since the last call; at the first, everything."""
        if self._events < 0:
            self._rows, self._events = group.rows, group.written
            return _whole(group)
        before, self._rows = self._rows, group.rows
        events = [event for event in group.events if event["number"] > self._events]
        self._events = group.written
        return {
            "whole": False,
            "rows": [row for stream, row in group.rows.items() if before.get(stream) is not row],
            "gone": sorted(before.keys() - group.rows.keys()),
            "lag": [group.lag[-1]],
            "events": events,
            "summary": _summary(group),
        }


def _whole(group: GroupBoard) -> dict[str, Any]:
    return {
        "whole": True,
        "rows": list(group.rows.values()),
        "gone": [],
        "lag": list(group.lag),
        "events": list(group.events),
        "summary": _summary(group),
    }


def _summary(group: GroupBoard) -> dict[str, Any]:
    return {} if group.summary is None else group.summary.as_json()


def _message(event: str, data: dict[str, Any]) -> str:
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'), default=str)}\n\n"


def _refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": " ".join(why.split())}, status)


def _who(request: Request) -> str:
    address = request.client.host if request.client is not None else "unknown"
    return f"ui@{address}"
