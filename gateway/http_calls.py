"""One request: what it says, who makes it, and whether somebody still waits for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from time import monotonic
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.types import Message, Scope

from streamlease.gateway.core.bearer import EVERYTHING, ClientRights, NotAuthenticated
from streamlease.gateway.core.rates import GatewayLimits, OpenPolls, Rates
from streamlease.gateway.core.refusals import BodyTooLarge, OtherHost
from streamlease.gateway.http1.exchange import ClientGone, HttpExchange, header_lines
from streamlease.gateway.token_file import TokenFile
from streamlease.protocol.addresses import is_allowed
from streamlease.protocol.errors import InvalidInput

MOST_PARAMETERS = 64

__all__ = ["Callers", "ClientGone", "HttpCall"]


class HttpCall:
    """A request, as ``gateway.http1`` reads it.

    Args:
        rights: what its client may do.
        client: who that is, for limits.
        route: which kind of address it asks: one of a few.
        status: of the answer; 0 before there is one.
        waits: it is a long poll or an event stream.
    """

    __slots__ = (
        "_exchange",
        "_tokens",
        "_version",
        "client",
        "headers",
        "received_bytes",
        "rights",
        "route",
        "scope",
        "sent_bytes",
        "status",
        "waits",
    )

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.rights: ClientRights = EVERYTHING
        self.client = ""
        self.route = "other"
        self.status = 0
        self.waits = False
        self.received_bytes = 0
        self.sent_bytes = 0
        self._exchange: HttpExchange = scope["extensions"]["exchange"]
        self._tokens: TokenFile | None = None
        self._version = 0
        self.headers = self._exchange.headers
        """By name in lower case; of several with one name the last."""

    def authenticate(self, tokens: TokenFile, now: float) -> None:
        """Find the rights of the token that came with it.

        Args:
            now: seconds, of any clock.

        Raises:
            NotAuthenticated: there is none, or an unknown one.
        """
        self.rights = tokens.rights(self.header(b"authorization"), now)
        self._tokens, self._version = tokens, tokens.version

    def renew_rights(self) -> None:
        """Of a request that has waited: its token may have lost rights since, or be gone.

        Raises:
            NotAuthenticated: it is.
        """
        if self._tokens is None:
            return
        now = monotonic()
        self._tokens.look(now)
        if self._tokens.version != self._version:
            self.authenticate(self._tokens, now)

    def check_still_consumes(self, filter: str) -> None:
        """Of a request that has waited.

        Raises:
            NotAuthenticated, NotAllowed: its token may not read `filter` any more.
        """
        self.renew_rights()
        self.rights.check_consume(filter)

    def header(self, name: bytes) -> str | None:
        """A header as text."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def parameters(self) -> dict[str, str]:
        """The parameters in the query of the URL.

        Raises:
            InvalidInput: they are malformed, or one occurs twice.
        """
        try:
            pairs = parse_qsl(
                self.scope["query_string"].decode("ascii"),
                keep_blank_values=True,
                strict_parsing=bool(self.scope["query_string"]),
                errors="strict",
                max_num_fields=MOST_PARAMETERS,
            )
        except ValueError:  # also what is no UTF-8
            shown = self.scope["query_string"][:80]
            raise InvalidInput(
                f"the query {shown!r} of the URL is malformed: write name=value&..., in UTF-8 with escapes"
            ) from None
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(name for name, _ in pairs if [one for one, _ in pairs].count(name) > 1)
            raise InvalidInput(f"the parameter {ascii(twice)[:80]} occurs twice: give it once")
        return found

    def raw_below(self, prefix: str) -> bytes:
        """What stands behind `prefix` in the path, as it came."""
        raw: bytes = self.scope["raw_path"]
        return raw[len(prefix) :]

    def below(self, prefix: str) -> str:
        """What stands behind `prefix` in the path, without escapes.

        Raises:
            InvalidInput: it is no UTF-8.
        """
        rest = self.raw_below(prefix)
        try:
            return unquote_to_bytes(rest).decode() if b"%" in rest else rest.decode()
        except UnicodeDecodeError:
            raise InvalidInput(f"the path {rest[:80]!r} is no UTF-8: escape each byte of it as %XX") from None

    async def body(self, most: int) -> bytes:
        """The whole body.

        Raises:
            BodyTooLarge: it is longer than `most` bytes.
            ClientGone: it did not come whole.
        """
        told = self.headers.get(b"content-length")
        if told is not None and told.isdigit() and int(told) > most:
            raise _too_large(most)
        parts, size, more = [], 0, True
        while more:
            part, more = await self._exchange.part()
            size += len(part)
            self.received_bytes = size
            if size > most:
                raise _too_large(most)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @asynccontextmanager
    async def leaving(self) -> AsyncIterator[asyncio.Future[None]]:
        """A future that is done when nobody waits for the answer any more."""
        yield self._exchange.gone()

    async def send(self, message: Message) -> None:
        """Send a part of an answer that comes in parts; see ASGI."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.sent_bytes += len(message.get("body", b""))
        await self._exchange.send(message)

    async def answer(self, status: int, body: bytes, type: bytes, *more: tuple[bytes, bytes]) -> None:
        """Send a whole answer."""
        self.status, self.sent_bytes = status, len(body)
        lines = _usual_lines(type)
        self._exchange.answer(status, lines + header_lines(more) if more else lines, body)
        await self._exchange.drained()


@lru_cache(maxsize=64)
def _usual_lines(type: bytes) -> bytes:
    return header_lines(
        [(b"content-type", type), (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    )


class Callers:
    """Who makes requests, what they may do, and how much.

    Args:
        tokens: None: everybody may do everything, as long as no page of another host asks.
    """

    def __init__(self, tokens: TokenFile | None, limits: GatewayLimits) -> None:
        self._tokens = tokens
        self._rates = Rates(limits.requests_per_second)
        self.polls = OpenPolls(limits.open_polls, limits.client_polls)

    def admit(self, call: HttpCall) -> None:
        """Find out who makes the request.

        Raises:
            NotAuthenticated: it needs a token.
            OtherHost: a page of another host makes it.
            TooMuch: it is one too many.
        """
        now = monotonic()
        client = call.scope.get("client")
        address = client[0] if client else ""
        if self._tokens is None:
            call.client = address
            self._rates.take(address, now)
            self._check_local(call)
            return
        try:
            call.authenticate(self._tokens, now)
        except NotAuthenticated:
            self._rates.take(f"unknown {address}", now)  # whoever guesses tokens is limited, too
            raise
        call.client = f"token {call.rights.name}"
        self._rates.take(call.client, now)

    def _check_local(self, call: HttpCall) -> None:
        """Without tokens, no foreign page may have a browser ask for what its user may see."""
        host = call.headers.get(b"host")
        if not _is_local(host):
            raise OtherHost(
                f"the request's Host is {ascii(call.header(b'host'))[:80]}: without a file of tokens only "
                f"localhost and addresses are answered"
            )
        origin = call.headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2] != host:
            raise OtherHost(
                f"a page of {ascii(call.header(b'origin'))[:80]} makes the request: without a file of tokens "
                f"no page of another host may"
            )


@lru_cache(maxsize=256)
def _is_local(host: bytes | None) -> bool:
    return is_allowed(None if host is None else host.decode("latin-1"), frozenset())


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {most} bytes: send it in parts")
