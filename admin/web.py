"""``streamlease ui``: the settings of the console; the console itself is ``admin.ui``."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.common_options import RedisUrl, chosen_url
from streamlease.admin.log_format import LogFormat, LogFormatOption, set_up_logs
from streamlease.admin.output import announce
from streamlease.protocol.addresses import check_listen_host, plain_address, shown_address
from streamlease.protocol.errors import InvalidOption, Unsupported
from streamlease.streams.server_sockets import server_socket

if TYPE_CHECKING:
    from streamlease.admin.ui.logins import ProxyHeaders

FIRST = "main"
"""The name of the Redis of ``--redis``."""

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
    server: Annotated[
        list[str] | None,
        typer.Option(
            envvar="STREAMLEASE_UI_SERVERS",
            metavar="NAME=URL",
            help="Another Redis that the console shows, beside --redis, and its name there. May be repeated.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="STREAMLEASE_UI_TOKEN_FILE",
            help="File with the token that acts require (16 characters or more), or a JSON document of "
            "several with roles; then the console shows nothing without a login. Without a file, it only "
            "shows.",
        ),
    ] = None,
    proxy_user_header: Annotated[
        str | None,
        typer.Option(
            envvar="STREAMLEASE_UI_PROXY_USER_HEADER",
            metavar="NAME",
            help="The header in which a reverse proxy says who has logged in there.",
        ),
    ] = None,
    proxy_role_header: Annotated[
        str | None,
        typer.Option(
            envvar="STREAMLEASE_UI_PROXY_ROLE_HEADER",
            metavar="NAME",
            help="The header in which it says their role: observer (without one), operator or admin.",
        ),
    ] = None,
    proxy_address: Annotated[
        list[str] | None,
        typer.Option(
            envvar="STREAMLEASE_UI_PROXY_ADDRESSES",
            metavar="ADDRESS",
            help="Where that proxy is; from elsewhere its headers are ignored. May be repeated. "
            "Default: this machine.",
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
    """Serve the console, a live web page of all that there is, until Ctrl-C.

    Without a document of tokens or a proxy that says who looks, anyone who can reach the port sees
    everything: keep it on a private address.
    """
    if not 0 <= http_port <= 65535:
        raise InvalidOption(f"--http-port is {http_port}: it must be from 0 to 65535")
    try:
        from streamlease.admin.ui.host_names import checked_names
        from streamlease.admin.ui.logins import Logins
        from streamlease.admin.ui.server import serve
        from streamlease.protocol.addresses import host_name
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"the page needs the package {error.name}: run pip install 'streamlease[ui]'"
        ) from None
    logins = Logins(token_file, _proxy(proxy_user_header, proxy_role_header, proxy_address))
    names = checked_names(allow_host or ())
    if listening := host_name(http_host):
        names |= {listening}
    set_up_logs(log_format)
    urls = _servers(chosen_url(redis), server or ())
    with listen(http_host, http_port, "--http-port") as listener:
        announce(f"the page is at http://{shown_address(http_host, listener.getsockname()[1])}/")
        asyncio.run(serve(urls, listener, logins, names))


def _proxy(user: str | None, role: str | None, addresses: list[str] | None) -> ProxyHeaders | None:
    from streamlease.admin.ui.logins import ProxyHeaders

    if user is None:
        if role is not None or addresses:
            raise InvalidOption("--proxy-role-header and --proxy-address need --proxy-user-header: name it")
        return None
    if addresses:
        for address in addresses:
            try:
                ipaddress.ip_address(address)
            except ValueError:
                raise InvalidOption(f"--proxy-address is {address!r}: give an IP address") from None
        return ProxyHeaders(user, role, frozenset(map(plain_address, addresses)))
    return ProxyHeaders(user, role)


def _servers(url: str, more: Iterable[str]) -> dict[str, str]:
    """The URLs of all servers, by name; the first has none that anybody needs to see."""
    urls = {FIRST: url}
    for given in more:
        name, equals, other = given.partition("=")
        if not equals or not name or not other:
            raise InvalidOption(f"--server is {given.partition('=')[0]!r}: write NAME=URL")
        if name in urls:
            raise InvalidOption(f"--server {name} is given twice: choose another name")
        urls[name] = other
    return urls


def listen(host: str, port: int, option: str) -> socket.socket:
    """A socket that listens there.

    Args:
        option: that of the port.

    Raises:
        InvalidOption: that cannot be.
    """
    check_listen_host(host)
    try:
        listener = server_socket(host, port, backlog=BACKLOG)
    except OSError as error:
        raise InvalidOption(
            f"cannot listen on {shown_address(host, port)} ({error.strerror}): "
            f"choose another {option}, or 0 for a free one"
        ) from None
    # asyncio does it only for sockets that name their protocol; else a small answer waits 40 ms for its rest.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
