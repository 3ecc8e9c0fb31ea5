"""The names under which the page answers, and which pages may send it something.

**DNS rebinding.** A foreign page can make its own name point to this server, and the browser then lets that
page read what the server answers. But the request carries the foreign name in ``Host``. So only these are
served: addresses, which nobody can rebind; ``localhost`` and the names below it (RFC 6761); and names allowed
at the start.

**Requests that another site forges.** A foreign page can make a browser send a request here, with the cookie
or through the proxy that has logged somebody in, though it cannot read the answer. So whatever changes
something must be JSON, which a browser sends to another origin only after asking, and nobody answers that
question here; and where the browser says which page sends it, that page must be the console's own
(``sent_by_another``). A browser names the origin with every POST; ``Sec-Fetch-Site`` only over HTTPS and to
this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def sent_by_another(headers: Mapping[str, str], names: frozenset[str]) -> str | None:
    """Why a request that changes something is not one of the console's own page, or of a script; None: it is.

    Args:
        names: under which the console may be asked for.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return None if site in ("same-origin", "none") else "this is asked by another site"
    origin = headers.get("origin")
    if origin is None or _own(origin, headers.get("host", ""), names):
        return None
    return (
        f"this is asked by {ascii(origin)[:200]}, which is not this page: if it is its address at a proxy, "
        f"allow that name with 'streamlease ui --allow-host NAME'"
    )


def _own(origin: str, host: str, names: frozenset[str]) -> bool:
    """Whether an ``Origin`` is the address that was asked, or an allowed name in front of it."""
    scheme, _, rest = origin.partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    if port is None:
        return False
    return rest.lower().removesuffix(port) == host.lower().removesuffix(port) or host_name(rest) in names


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
