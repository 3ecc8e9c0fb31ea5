"""Serves an application on a listening socket until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from streamlease.agent.client import connect
from streamlease.gateway.between.gateway_lines import certificate_digest
from streamlease.gateway.http1.http_connection import HttpConnection
from streamlease.gateway.open_files import open_all_that_may_be
from streamlease.protocol.errors import InvalidOption
from streamlease.streams.entries.decoding import prepare

if TYPE_CHECKING:
    from streamlease.channels.core.channel_limits import ChannelLimits
    from streamlease.gateway.core.rates import GatewayLimits
    from streamlease.gateway.http_app import GatewayApp
    from streamlease.gateway.token_file import TokenFile
    from streamlease.gateway.webhooks.webhook_service import WebhookSettings

LAST_SECONDS = 2
"""How long open requests may go on once the end is wanted."""

IDLE_SECONDS = 75
"""How long a connection without a request is kept: longer than load balancers do."""

TICKS_PER_SWEEP = 10
"""So often, in tenths of a second, clients that take too long are looked for."""


class HttpServer(uvicorn.Server):
    """uvicorn, which ends well at a signal.

    Args:
        signals: whether SIGTERM and Ctrl-C end it.
        begun: called when requests are answered.
    """

    def __init__(
        self, config: uvicorn.Config, *, signals: bool = True, begun: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config)
        self._begun = begun
        self._signals = (signal.SIGTERM, signal.SIGINT) if signals else ()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would end the process by the very signal that it caught, as if it had not been served."""
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.add_signal_handler(number, self.end)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        if self.started:
            self._begun()

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn, which comes here ten times a second."""
        if counter % TICKS_PER_SWEEP == 0:
            now = asyncio.get_running_loop().time()
            for connection in [*self.server_state.connections]:
                if isinstance(connection, HttpConnection):
                    connection.sweep(now)
        return await super().on_tick(counter)

    def end(self) -> None:
        """Answer what is open, and end."""
        self.should_exit = True


class GatewayServer(HttpServer):
    """The same for a gateway, which begins before requests are answered, and ends after."""

    def __init__(
        self,
        app: GatewayApp,
        config: uvicorn.Config,
        *,
        signals: bool = True,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config, signals=signals, begun=begun)
        self._app = app

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.

        Raises:
            StoreUnavailable, StoreRefused: Redis does not do what a gateway needs at the start.
        """
        with self.capture_signals():
            async with self._app.living():
                await super().serve(sockets)


def gateway_config(app: GatewayApp, **options: Any) -> uvicorn.Config:
    """How a gateway is served."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=LAST_SECONDS,
        timeout_keep_alive=IDLE_SECONDS,
        server_header=False,
        lifespan="off",
        ws="none",
        http=HttpConnection,
        proxy_headers=False,
        **options,
    )


async def serve_gateway(
    url: str,
    listener: socket.socket,
    tokens: TokenFile | None,
    limits: GatewayLimits,
    certificate: Path | None,
    key: Path | None,
    ready: Callable[[], None],
    webhooks: WebhookSettings | None = None,
    channels: ChannelLimits | None = None,
) -> None:
    """Serve until told to end.

    Args:
        ready: called when requests are answered.

    Raises:
        InvalidOption: certificate and key cannot be used.
        StoreUnavailable, StoreRefused, Unsupported: Redis does not answer at the start, or does not suit.
    """
    from streamlease.gateway.http_app import GatewayApp

    open_all_that_may_be(limits)
    prepare()
    async with connect(url) as client:
        app = GatewayApp(
            client,
            tokens=tokens,
            limits=limits,
            channel_limits=channels,
            webhooks=webhooks,
            digest=_digest(certificate),
        )
        config = gateway_config(app, ssl_certfile=certificate, ssl_keyfile=key)
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise InvalidOption(
                f"--certificate {certificate} and --key {key} cannot be used ({error}): "
                f"give two PEM files that belong together"
            ) from None
        await GatewayServer(app, config, begun=ready).serve(sockets=[listener])


def _digest(certificate: Path | None) -> str:
    """That of the certificate by which other gateways know this one; empty if they cannot."""
    try:
        return "" if certificate is None else certificate_digest(certificate.read_text())
    except (OSError, ValueError):  # what else is wrong with it is told when it is loaded
        return ""


def run_quickly(work: Coroutine[Any, Any, None]) -> None:
    """``asyncio.run``, on the event loop that takes half of the processor time where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(work)
    else:
        uvloop.run(work)
