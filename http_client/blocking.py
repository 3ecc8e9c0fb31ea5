"""The blocking twin of ``streamlease.http.connect``, for programs without an event loop::

    with blocking.connect("http://127.0.0.1:8640") as gateway:
        gateway.publish("flights/JFK/LAX", "landed", key="N14228")
        with gateway.follow("flights/#", since=kept) as pages:
            for page in pages:
                ...
                keep(page.next)

A client has an event loop of its own in a thread. The classes are bridges to the asynchronous ones
(`agent/loop.py`), which say what the methods do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from streamlease.agent.loop import LoopThread, ManagerBridge, opening, waiting
from streamlease.http import gateway_client, page_following
from streamlease.http.core.follow_machine import FollowCounts
from streamlease.http.core.gateway_pages import GatewayPage
from streamlease.http.http_transport import Trust

if TYPE_CHECKING:
    from typing import Self


class PageFollower(ManagerBridge[page_following.PageFollower]):
    """``gateway.follow(...)``: a context manager and an iterator of pages, for one thread at a time."""

    @property
    def cursor(self) -> str:
        """Behind the last page, once the next one is asked for."""
        return self._inner.cursor

    @property
    def counts(self) -> FollowCounts:
        """What happened so far."""
        return self._inner.counts

    def __iter__(self) -> Iterator[GatewayPage]:
        while (page := self._loop.call(_next(self._inner))) is not None:
            yield page

    def receive(self, headers: Mapping[str, str], body: bytes) -> None:
        """Take a callback, in any thread; see the asynchronous `receive`."""
        self._loop.call(self._inner.receive(headers, body))

    close = waiting(page_following.PageFollower.close)


async def _next(follower: page_following.PageFollower) -> GatewayPage | None:
    return await anext(follower, None)


class GatewayClient(ManagerBridge[gateway_client.GatewayClient]):
    """The blocking twin of ``streamlease.http.gateway_client.GatewayClient``; for several threads."""

    def __init__(self, url: str, *, token: str | None = None, trust: Trust = True) -> None:
        inner = gateway_client.GatewayClient(url, token=token, trust=trust)
        super().__init__(LoopThread("streamlease-http"), inner)

    def __enter__(self) -> Self:
        return self

    def _leave(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, end the thread."""
        try:
            self._loop.call(self._inner.close())
        finally:
            self._loop.stop()

    publish = waiting(gateway_client.GatewayClient.publish)
    publish_many = waiting(gateway_client.GatewayClient.publish_many)
    since = waiting(gateway_client.GatewayClient.since)
    follow = opening(gateway_client.GatewayClient.follow, PageFollower)


def connect(url: str, *, token: str | None = None, trust: Trust = True) -> GatewayClient:
    """See ``streamlease.http.connect``."""
    return GatewayClient(url, token=token, trust=trust)
