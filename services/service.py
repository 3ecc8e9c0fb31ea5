"""``client.serve(...)``: a service as a context manager."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self

from pydantic import BaseModel

from streamlease.protocol.errors import InvalidInput, InvalidOption
from streamlease.protocol.ids import check_name
from streamlease.services.endpoint import Endpoint
from streamlease.services.handlers import Handler, typed_handlers

MOST_AT_ONCE = 100_000
LONGEST_DRAIN = 3600.0


class Serving:
    """One service of this process: served from `__aenter__` until `__aexit__` has answered what is at work.

    Args:
        endpoint: that of the client.
        limit: how many requests are at work at once; more are refused as busy.
        drain: for how many seconds what is at work may still be answered at the end.

    Raises:
        InvalidInput, InvalidOption: at once.
    """

    def __init__(
        self,
        endpoint: Callable[[], Awaitable[Endpoint]],
        service: str,
        handlers: Mapping[type[BaseModel], Handler],
        *,
        errors: Mapping[type[BaseModel], type[BaseModel]] | None = None,
        limit: int = 1000,
        drain: float = 10.0,
    ) -> None:
        self.service = check_name("a service", service)
        self._handlers = typed_handlers(service, handlers, errors or {})
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_AT_ONCE:
            raise InvalidOption(f"limit is {ascii(limit)[:40]}: use 1 to {MOST_AT_ONCE} requests at once")
        if isinstance(drain, bool) or not isinstance(drain, int | float) or not 0 <= drain <= LONGEST_DRAIN:
            raise InvalidOption(f"drain is {ascii(drain)[:40]}: use 0 to {LONGEST_DRAIN:g} seconds")
        self._limit = limit
        self._drain = drain
        self._find = endpoint
        self._endpoint: Endpoint | None = None

    async def __aenter__(self) -> Self:
        """Serve it.

        Raises:
            InvalidOption: this client serves that name already.
            ServiceConflict: others serve it with types that do not agree.
            StoreUnavailable, StoreRefused, Indefinite: it is not served.
        """
        if self._endpoint is not None:
            raise InvalidInput(f"service '{self.service}' is entered already: call serve again")
        endpoint = await self._find()
        await endpoint.bind(self.service, self._handlers, self._limit)
        self._endpoint = endpoint
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Take no more requests, answer what is at work, and leave. A second call does nothing."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.unbind(self.service, self._drain)
