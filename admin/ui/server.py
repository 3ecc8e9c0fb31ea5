"""Serves the application on a listening socket until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn

from streamlease.admin.ui.app import make_app
from streamlease.admin.ui.board import Board
from streamlease.agent.client import connect

LAST_SECONDS = 2
"""How long open requests, such as live updates, may go on once the end is wanted."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would end the process by the very signal that it caught, as if it had not been served."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        yield

    def end(self) -> None:
        """Answer what is open, and end."""
        self.should_exit = True


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
        server = _Server(config)
        await server.serve(sockets=[listener])
        if board.failure is not None:
            raise board.failure
