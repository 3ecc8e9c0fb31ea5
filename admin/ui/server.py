"""Serves the application on a listening socket until SIGTERM or Ctrl-C."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

import uvicorn

from streamlease.admin.ui.app import Site, make_app
from streamlease.admin.ui.board import Board
from streamlease.admin.ui.logins import Logins
from streamlease.agent.client import connect
from streamlease.gateway.http_server import LAST_SECONDS, HttpServer


async def serve(
    urls: Mapping[str, str], listener: socket.socket, logins: Logins, names: frozenset[str]
) -> None:
    """Serve until told to end.

    Args:
        urls: of the servers, by name.

    Raises:
        StoreUnavailable, Unsupported: Redis does not answer at the start, or does not suit.
        TaskFailed: what the console shows could not be read any more, by a defect.
    """
    async with contextlib.AsyncExitStack() as stack:
        sites = []
        for name, url in urls.items():
            client = await stack.enter_async_context(connect(url, embedded=False))
            sites.append(Site(name, client, Board(client)))

        def end() -> None:
            server.end()

        app = make_app(sites, logins, names, end)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=LAST_SECONDS
        )
        server = HttpServer(config)
        await server.serve(sockets=[listener])
        for site in sites:
            if site.board.failure is not None:
                raise site.board.failure
