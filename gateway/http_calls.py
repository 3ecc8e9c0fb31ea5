"""One request: what it says, who makes it, and whether somebody still waits for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.types import Message, Receive, Scope, Send

from streamlease.gateway.core.bearer import EVERYTHING, ClientRights
from streamlease.gateway.core.rates import GatewayLimits, OpenPolls, Rates
from streamlease.gateway.core.refusals import BodyTooLarge, OtherHost
from streamlease.gateway.token_file import TokenFile
from streamlease.protocol.addresses import is_allowed
from streamlease.protocol.errors import InvalidInput

MOST_PARAMETERS = 64


class ClientGone(Exception):
    """The client does not wait for the answer any more."""


class HttpCall:
    """A request.

    Args:
        rights: what its client may do.
        client: who that is, for limits.
        route: which kind of address it asks: one of a few.
        status: of the answer; 0 before there is one.
        waits: it is a long poll or an event stream.
    """

    __slots__ = (
        "_headers",
        "_send",
        "client",
        "receive",
        "received_bytes",
        "rights",
        "route",
        "scope",
        "sent_bytes",
        "status",
        "waits",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self._send = send
        self.rights: ClientRights = EVERYTHING
        self.client = ""
        self.route = "other"
        self.status = 0
        self.waits = False
        self.received_bytes = 0
        self.sent_bytes = 0
        self._headers: dict[bytes, bytes] | None = None

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """By name in lower case; of several with one name the last."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        return self._headers

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
        raw: bytes = self.scope.get("raw_path") or self.scope["path"].encode()
        return raw.partition(b"?")[0][len(prefix) :]

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
            Gone: it did not come whole.
        """
        told = self.headers.get(b"content-length")
        if told is not None and told.isdigit() and int(told) > most:
            raise _too_large(most)
        message = await self.receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            whole: bytes = message.get("body", b"")
            self.received_bytes = len(whole)
            if len(whole) > most:
                raise _too_large(most)
            return whole
        parts, size = [], 0
        while True:
            if message["type"] != "http.request":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            self.received_bytes = size
            if size > most:
                raise _too_large(most)
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)
            message = await self.receive()

    @asynccontextmanager
    async def leaving(self) -> AsyncIterator[asyncio.Future[None]]:
        """A future that is done when the client has gone."""
        task = asyncio.get_running_loop().create_task(self._gone())
        try:
            yield task
        finally:
            task.cancel()

    async def _gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.sent_bytes += len(message.get("body", b""))
        await self._send(message)

    async def answer(self, status: int, body: bytes, type: bytes, *more: tuple[bytes, bytes]) -> None:
        """Send a whole answer."""
        headers = [
            (b"content-type", type),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            *more,
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


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
        now = asyncio.get_running_loop().time()
        if self._tokens is not None:
            call.rights = self._tokens.rights(call.header(b"authorization"), now)
            call.client = f"token {call.rights.name}"
        else:
            self._check_local(call)
            client = call.scope.get("client")
            call.client = client[0] if client else ""
        self._rates.take(call.client, now)

    def _check_local(self, call: HttpCall) -> None:
        """Without tokens, no foreign page may have a browser ask for what its user may see."""
        host = call.header(b"host")
        if not _is_local(host):
            raise OtherHost(
                f"the request's Host is {ascii(host)[:80]}: without a file of tokens only localhost and "
                f"addresses are answered"
            )
        origin = call.header(b"origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise OtherHost(
                f"a page of {ascii(origin)[:80]} makes the request: without a file of tokens no page of "
                f"another host may"
            )


@lru_cache(maxsize=256)
def _is_local(host: str | None) -> bool:
    return is_allowed(host, frozenset())


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {most} bytes: send it in parts")
