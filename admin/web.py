"""``streamlease ui``: the settings of the web page; the page itself is ``admin.ui``."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Annotated

import typer

from streamlease.admin.common_options import RedisUrl, chosen_url
from streamlease.admin.log_format import LogFormat, LogFormatOption, set_up_logs
from streamlease.admin.output import line
from streamlease.protocol.addresses import check_listen_host
from streamlease.protocol.errors import InvalidOption, Unsupported

SHORTEST_TOKEN = 16
BACKLOG = 1024
"""Connections that the system takes before the process has looked at them."""


def ui(
    redis: RedisUrl = None,
    http_host: Annotated[
        str, typer.Option(envvar="STREAMLEASE_UI_HOST", help="Address to listen on.")
    ] = "127.0.0.1",
    http_port: Annotated[
        int, typer.Option(envvar="STREAMLEASE_UI_PORT", help="Port to listen on; 0 picks a free one.")
    ] = 8090,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="STREAMLEASE_UI_TOKEN_FILE",
            help="File with the token that acts require (16 characters or more). Without it, "
            "the page only shows.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            envvar="STREAMLEASE_UI_ALLOW_HOSTS",
            metavar="NAME",
            help="A host name under which browsers may open the page, such as that of a proxy. May be "
            "repeated. IP addresses and localhost are always allowed; any other name is refused.",
        ),
    ] = None,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve a live web page of groups, streams, spaces and hosts until Ctrl-C.

    Anyone who can reach the port sees everything: keep it on a private address, or behind a proxy with a
    login.
    """
    if not 0 <= http_port <= 65535:
        raise InvalidOption(f"--http-port is {http_port}: it must be from 0 to 65535")
    token = None if token_file is None else _token(token_file)
    try:
        from streamlease.admin.ui.host_names import checked_names
        from streamlease.admin.ui.server import serve
        from streamlease.protocol.addresses import host_name
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"the page needs the package {error.name}: run pip install 'streamlease[ui]'"
        ) from None
    names = checked_names(allow_host or ())
    if listening := host_name(http_host):
        names |= {listening}
    set_up_logs(log_format)
    url = chosen_url(redis)
    with listen(http_host, http_port, "--http-port") as listener:
        line(f"the page is at http://{http_host}:{listener.getsockname()[1]}/")
        asyncio.run(serve(url, listener, token, names))


def listen(host: str, port: int, option: str) -> socket.socket:
    """A socket that listens there.

    Args:
        option: that of the port.

    Raises:
        InvalidOption: that cannot be.
    """
    check_listen_host(host)
    try:
        listener = socket.create_server((host, port), backlog=BACKLOG)
    except OSError as error:
        raise InvalidOption(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another {option}, or 0 for a free one"
        ) from None
    # asyncio does it only for sockets that name their protocol; else a small answer waits 40 ms for its rest.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _token(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"--token-file is {file}, which cannot be read: {error}") from None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise InvalidOption(
            f"the token in {file} has {len(token)} characters: "
            f"it needs {SHORTEST_TOKEN} or more, printable ASCII"
        )
    return token
