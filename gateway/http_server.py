"""Serves an application on a listening socket until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from streamlease.gateway.http_app import GatewayApp

LAST_SECONDS = 2
"""How long open requests may go on once the end is wanted."""

IDLE_SECONDS = 75
"""How long a connection without a request is kept: longer than load balancers do."""


class HttpServer(uvicorn.Server):
    """uvicorn, which ends well at a signal.

    Args:
        signals: whether SIGTERM and Ctrl-C end it.
    """

    def __init__(self, config: uvicorn.Config, *, signals: bool = True) -> None:
        super().__init__(config)
        self._signals = (signal.SIGTERM, signal.SIGINT) if signals else ()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would end the process by the very signal that it caught, as if it had not been served."""
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.add_signal_handler(number, self.end)
        yield

    def end(self) -> None:
        """Answer what is open, and end."""
        self.should_exit = True


def gateway_config(app: GatewayApp, **options: Any) -> uvicorn.Config:
    """How a gateway is served."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=LAST_SECONDS,
        timeout_keep_alive=IDLE_SECONDS,
        server_header=False,
        lifespan="on",
        ws="none",
        http="httptools",
        **options,
    )
