"""Requests that another gateway has to answer are passed on to it, and its answers back.

The client's token goes along, so no gateway trusts another one. A request says which gateway it means: one
that has taken the address of another by now does not answer for it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from streamlease.gateway.between.gateway_lines import GatewayLines, PassedAnswer, Unreachable
from streamlease.gateway.between.gateway_presence import GatewayPresence
from streamlease.gateway.http_calls import ClientGone, HttpCall
from streamlease.protocol.addresses import shown_address

FORWARDED = b"streamlease-forwarded"
"""A header of requests that another gateway passes on: which one it means."""

SIGN_LOOK_SECONDS = 0.5
"""How often it is looked whether a gateway that answers late is still alive."""

AVOID_SECONDS = 10.0
"""For how long a gateway that was not reached is not asked again."""

MISDIRECTED = 421
PASSED_BACK = (b"streamlease-next", b"retry-after", b"allow", b"www-authenticate")
PASSED_ON = (b"authorization", b"accept", b"content-type")


class PassingOn:
    """Passes requests on; an asynchronous context manager, around the connections that it keeps.

    Args:
        digest: of the certificate with which this gateway serves; empty: it serves without TLS.
    """

    def __init__(self, presence: GatewayPresence, digest: str) -> None:
        self._presence = presence
        self._digest = digest
        self._lines = GatewayLines()
        self._avoided: dict[str, float] = {}

    def address(self, call: HttpCall) -> str:
        """Where the request reached this gateway, so that others reach it there; empty: they do not."""
        host, port = call.scope.get("server") or ("", None)
        if port is None or (call.scope["scheme"] == "https") is not bool(self._digest):
            return ""
        there = shown_address(host, port)
        return f"https://{there}#{self._digest}" if self._digest else f"http://{there}"

    async def ask(
        self, call: HttpCall, gateway: str, address: str, body: bytes, gone: asyncio.Future[None] | None
    ) -> PassedAnswer | None:
        """The answer of another gateway to a request; None: it is dead, or not reached, and did nothing.

        Args:
            gone: done when nobody waits for the answer any more.

        Raises:
            Unreachable: it did not answer, and may have done what was asked.
            ClientGone: nobody waits.
            StoreUnavailable, StoreRefused.
        """
        loop = asyncio.get_running_loop()
        if not address or gateway in ("", self._presence.id):
            return None
        if self._avoided.get(address, 0.0) > loop.time() or not await self._presence.alive(gateway):
            return None
        headers = [(name, value) for name in PASSED_ON if (value := call.headers.get(name)) is not None]
        headers.append((FORWARDED, gateway.encode()))
        asking = loop.create_task(self._lines.ask(address, _method(call), _target(call), headers, body))
        try:
            while not asking.done():
                either: set[asyncio.Future[Any]] = {asking} if gone is None else {asking, gone}
                await asyncio.wait(either, timeout=SIGN_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if gone is not None and gone.done():
                    raise ClientGone
                if not asking.done() and not await self._presence.alive(gateway):
                    raise Unreachable("it gives no sign of life", asked=True)
            return asking.result()
        except Unreachable as error:
            if error.asked:
                raise
            self._avoided[address] = loop.time() + AVOID_SECONDS
            return None
        finally:
            asking.cancel()

    async def __aenter__(self) -> PassingOn:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._lines.close()


def passed_headers(passed: PassedAnswer) -> tuple[tuple[bytes, bytes], ...]:
    """What goes back beside status, type and body."""
    return tuple((name, passed.headers[name]) for name in PASSED_BACK if name in passed.headers)


def _method(call: HttpCall) -> str:
    method: str = call.scope["method"]
    return "GET" if method == "HEAD" else method


def _target(call: HttpCall) -> bytes:
    raw: bytes = call.scope.get("raw_path") or call.scope["path"].encode()
    query: bytes = call.scope["query_string"]
    return raw.partition(b"?")[0] + (b"?" + query if query else b"")
