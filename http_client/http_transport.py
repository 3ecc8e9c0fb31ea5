"""One exchange with a gateway over httpx, and what its failure means."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from streamlease.http.core.gateway_errors import (
    GatewayGarbled,
    GatewayUnavailable,
    error_of,
)
from streamlease.http.core.given import check_text
from streamlease.protocol.errors import Indefinite, InvalidInput, InvalidOption, Unsupported

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
EVENT_SILENCE_SECONDS = 45.0
"""A gateway sends something every 15 s; a connection without it is dead."""

Trust = ssl.SSLContext | str | bool


class GatewayAnswer:
    """A successful answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        """Its JSON.

        Raises:
            GatewayGarbled: it is none.
        """
        import json

        try:
            return json.loads(self.body)
        except ValueError:
            raise GatewayGarbled(
                f"the answer is not JSON, so not from a gateway: {ascii(self.body)[:80]}"
            ) from None


class GatewayConnection:
    """Connections to one gateway, or to several behind a load balancer."""

    def __init__(self, url: str, token: str | None, trust: Trust) -> None:
        parts = urlsplit(url if isinstance(url, str) else "")
        if token is not None:
            check_text("the token", token)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidOption(
                f"{ascii(url)[:80]} is no address of a gateway: give one such as http://127.0.0.1:8640"
            )
        try:
            import httpx
        except ModuleNotFoundError:
            raise Unsupported(
                "the client of the gateway needs httpx: pip install 'streamlease[http]'"
            ) from None
        self._url = url.rstrip("/")
        self._httpx = httpx
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            verify=ssl.create_default_context(cafile=trust) if isinstance(trust, str) else trust,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> GatewayAnswer:
        """Send a request and wait for its answer.

        Raises:
            GatewayUnavailable: there is no connection; nothing was done.
            Indefinite: no answer came; it may have been done.
            GatewayRefused, or an error of ``streamlease.protocol.errors``: the answer is a problem.
            InvalidInput: the client is closed.
        """
        request = self._request(method, path, parameters, headers, body, seconds)
        with_failures = _Failures(self._httpx, self._url)
        async with with_failures:
            response = await self._client.send(request)
        if response.status_code >= 300:
            raise error_of(response.status_code, response.content, response.headers.get("retry-after"))
        return GatewayAnswer(response.status_code, response.headers, response.content)

    @asynccontextmanager
    async def parts(self, path: str, parameters: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The parts of an endless answer, as they come. Raises what `exchange` does."""
        accept = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        request = self._request("GET", path, parameters, accept, None, EVENT_SILENCE_SECONDS)
        async with _Failures(self._httpx, self._url):
            response = await self._client.send(request, stream=True)
            try:
                if response.status_code != 200:
                    body = await response.aread()
                    raise error_of(response.status_code, body, response.headers.get("retry-after"))
                yield response.aiter_bytes()
            finally:
                await response.aclose()

    def _request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        seconds: float,
    ) -> httpx.Request:
        if self._client.is_closed:
            raise InvalidInput("the client is closed: connect again")
        return self._client.build_request(
            method,
            self._url + path,
            params=parameters,
            headers=headers,
            content=body,
            timeout=self._httpx.Timeout(seconds, connect=CONNECT_SECONDS, pool=None),
        )


class _Failures:
    """Around an exchange: errors of httpx become those of this project."""

    def __init__(self, httpx: Any, url: str) -> None:
        self._httpx = httpx
        self._url = url

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        httpx = self._httpx
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            raise GatewayUnavailable(
                f"no connection to the gateway at {self._url} ({error}): is it running?"
            ) from error
        if isinstance(error, (httpx.TransportError, httpx.DecodingError)):
            raise Indefinite(
                f"no whole answer from the gateway at {self._url} ({type(error).__name__} {error}): "
                "it may have been done"
            ) from error


def topic_path(topic: str) -> str:
    """The address of a topic: a slash at its beginning, which some proxies drop, is escaped."""
    path = quote(topic, safe="/")
    return f"/v1/topics/%2F{path[1:]}" if path.startswith("/") else f"/v1/topics/{path}"
