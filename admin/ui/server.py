"""Serves the application on a listening socket until SIGTERM or Ctrl-C."""

from __future__ import annotations

import socket

import uvicorn

from streamlease.admin.ui.app import make_app
from streamlease.admin.ui.board import Board
from streamlease.agent.client import connect
from streamlease.gateway.http_server import LAST_SECONDS, HttpServer


async def serve(url: str, listener: socket.socket, token: str | None, names: frozenset[str]) -> None:
    """Serve until told to end.

    Raises:
        StoreUnavailable, Unsupported: Redis does not answer at the start, or does not suit.
        TaskFailed: what the page shows could not be read any more, by a defect.
    """
    async with connect(url, embedded=False) as client:
        board = Board(client)

        def end() -> None:
            server.end()

        app = make_app(client, board, token, names, end)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=LAST_SECONDS
        )
        server = HttpServer(config)
        await server.serve(sockets=[listener])
        if board.failure is not None:
            raise board.failure
