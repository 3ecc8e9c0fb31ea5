"""The services of one client: `serve` and `call`, on an endpoint that is made by the first of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypedDict, TypeVar, Unpack

from pydantic import BaseModel

from streamlease.services.endpoint import LEASE_MS, Endpoint
from streamlease.services.handlers import Handler
from streamlease.services.service import Serving
from streamlease.streams.redis.connection import AsyncRedis

A = TypeVar("A", bound=BaseModel)

Handlers = Mapping[type[BaseModel], Handler]


class ServeOptions(TypedDict, total=False):
    """How a service is served."""

    errors: Mapping[type[BaseModel], type[BaseModel]] | None
    """Request -> the type of the error that its handler may raise as ``ServiceError(message, error)``."""
    limit: int
    """So many requests are at work at once, 1000 if not given; more are refused as busy."""
    drain: float
    """For so many seconds what is at work may still be answered at the end."""


class CallOptions(TypedDict, total=False):
    """How a service is called."""

    error: type[BaseModel] | None
    """The type of the error that the handler may raise, to have it in ``ServiceError.error``."""
    wait: float
    """For so many seconds, wait until somebody serves that name; 0 if not given."""
    timeout: float
    """And then so long for the answer."""


class ClientServices:
    """Belongs to one event loop.

    Args:
        process: name of the client in the catalog.
    """

    def __init__(self, redis: AsyncRedis, process: str = "") -> None:
        self._redis = redis
        self._process = process
        self._endpoint: Endpoint | None = None
        self._starting = asyncio.Lock()

    def serve(self, service: str, handlers: Handlers, **options: Unpack[ServeOptions]) -> Serving:
        """Serve a name; as of `Serving`."""
        return Serving(self.endpoint, service, handlers, **options)

    async def call(
        self,
        service: str,
        request: BaseModel,
        *,
        answer: type[A],
        error: type[BaseModel] | None = None,
        wait: float = 0.0,
        timeout: float = 30.0,  # noqa: ASYNC109 - the name is the contract
    ) -> A:
        """Ask one of those who serve a name, in turn, for one answer.

        Args:
            request: goes to the handler of the requests of its class's name.
            answer: the type of the answer.
            error: the type of the error that the handler may raise, to have it in ``ServiceError.error``.
            wait: for so many seconds, wait until somebody serves that name.
            timeout: and then so long for the answer.

        Raises:
            NoService, ServiceBusy: nobody takes it; nothing was done. Both are worth another try later.
            TypeMismatch: the types do not agree with those of the server.
            ServiceError: the handler raised an error.
            Indefinite: no answer came: it was done, or it was not.
            StoreUnavailable, StoreRefused: it was not sent.
            InvalidInput, InvalidOption, MessageTooLarge: it cannot be sent.
        """
        endpoint = self._endpoint
        if endpoint is None or endpoint.error is not None:
            endpoint = await self.endpoint()
        return await endpoint.caller.call(service, request, answer, error, wait, timeout)

    async def endpoint(self) -> Endpoint:
        """The endpoint, started at its first use, and anew when it ended by a defect."""
        async with self._starting:
            if self._endpoint is not None and self._endpoint.error is not None:
                ended, self._endpoint = self._endpoint, None
                await ended.close()
            if self._endpoint is None:
                endpoint = Endpoint(self._redis, LEASE_MS, self._process)
                await endpoint.start()
                self._endpoint = endpoint
            return self._endpoint

    async def close(self) -> None:
        """End what was not ended before."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.close()
