"""The names under which the page answers: a guard against DNS rebinding.

A foreign page can make its own name point to this server, and the browser then lets that page read what the
server answers. But the request carries the foreign name in ``Host``. So only these are served: addresses,
which nobody can rebind; ``localhost`` and the names below it (RFC 6761); and names allowed at the start.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from streamlease.protocol.addresses import host_name, is_allowed
from streamlease.protocol.errors import InvalidOption

MISDIRECTED = 421


def checked_names(names: Iterable[str]) -> frozenset[str]:
    """Names that are allowed besides addresses and localhost.

    Raises:
        InvalidOption: one is no host name.
    """
    found = set()
    for given in names:
        name = host_name(given)
        if name is None or ":" in given:
            raise InvalidOption(
                f"--allow-host is {given!r}: give the name alone, without scheme, port and path, "
                f"such as streamlease.example.org"
            )
        found.add(name)
    return frozenset(found)


class KnownHosts:
    """Refuses every request whose ``Host`` is not allowed: see :func:`is_allowed`."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Headers(scope=scope).getlist("host")
            if len(given) != 1 or not is_allowed(given[0], self._names):
                shown = ", ".join(map(ascii, given)) if given else "missing"
                why = f"the request's Host is {shown[:200]}: allow it with 'streamlease ui --allow-host NAME'"
                await JSONResponse({"error": why}, MISDIRECTED)(scope, receive, send)
                return
        await self._app(scope, receive, send)
