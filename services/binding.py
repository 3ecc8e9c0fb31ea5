"""The serving side of a process: which request goes to which handler, and what comes of it.

Each request is a task, so one that waits delays no other. A service takes `limit` of them at once and
refuses more: the caller asks another server, or is told that it is busy. A handler is cancelled when its
caller gave up.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from streamlease.protocol.errors import ServiceError
from streamlease.services import keys
from streamlease.services.core.frames import (
    REFUSED_BROKEN_OFF,
    REFUSED_BUSY,
    REFUSED_LEAVING,
    REFUSED_TYPE,
    RequestFrame,
    answer_head,
    failure_head,
    refusal_head,
)
from streamlease.services.handlers import TypedHandler
from streamlease.services.metrics import ServiceCounts
from streamlease.services.outbox import Outbox, Outgoing

LARGEST_ANSWER = 1024 * 1024
LONGEST_MESSAGE = 1000
"""Characters of an error that travel."""

BEHIND_SECONDS = 10.0
"""How long it is tried to send an answer after its caller has given up, should the clocks differ."""

ANSWER_TRIES = 5
"""So often an answer is sent again to a caller that has no stream just now."""

_logger = logging.getLogger(__name__)


class Binding:
    """One service of this process.

    Args:
        limit: how many requests are at work at once.
        has_lapsed: whether callers may have given up what came and was not begun.
    """

    def __init__(
        self,
        service: str,
        handlers: Mapping[str, TypedHandler],
        limit: int,
        outbox: Outbox,
        has_lapsed: Callable[[], bool],
    ) -> None:
        self.service = service
        self.handlers = handlers
        self.leaving = False
        """It takes nothing more."""
        self._limit = limit
        self._has_lapsed = has_lapsed
        self._outbox = outbox
        self._loop = asyncio.get_running_loop()
        self._running: dict[tuple[str, int], tuple[asyncio.Task[None], int]] = {}
        """By caller and its number: the task, and when the caller gives up (ms of the clock of Redis)."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._counts = ServiceCounts(service)

    def __len__(self) -> int:
        """How many requests are at work."""
        return len(self._running)

    def take(self, sender: str, frame: RequestFrame, seconds: float) -> None:
        """Begin with a request whose caller waits for so long."""
        handler = self.handlers.get(frame.name)
        if self.leaving:
            self._refuse(sender, frame.call, REFUSED_LEAVING, "it ends", seconds)
        elif handler is None:
            why = f"it takes no {frame.name}: it takes {', '.join(sorted(self.handlers))}"
            self._refuse(sender, frame.call, REFUSED_TYPE, why, seconds)
        elif handler.shapes.request.fingerprint not in (frame.own, frame.judged):
            why = (
                f"{frame.name} has another type there: fingerprints {frame.own} of the request, "
                f"{handler.shapes.request.fingerprint} of the handler"
            )
            self._refuse(sender, frame.call, REFUSED_TYPE, why, seconds)
        elif len(self._running) >= self._limit:
            why = f"{self._limit} requests are at work there, and it takes no more: try again later"
            self._refuse(sender, frame.call, REFUSED_BUSY, why, seconds)
        else:
            until = self._loop.time() + seconds + BEHIND_SECONDS
            task = self._loop.create_task(self._work(handler, sender, frame, until))
            self._running[sender, frame.call] = task, frame.expires
            self._counts.running.inc()
            self._idle.clear()

    def _refuse(self, sender: str, call: int, reason: str, why: str, seconds: float) -> None:
        self._counts.other(reason)
        refuse(self._outbox, sender, call, reason, why, seconds)

    def cancel(self, sender: str, call: int) -> bool:
        """The caller wants no answer any more; whether that was at work here."""
        running = self._running.get((sender, call))
        if running is None:
            return False
        running[0].cancel()
        return True

    def expire(self, redis_ms: int) -> None:
        """Cancel what nobody waits for any more at that time of Redis."""
        for task, expires in [*self._running.values()]:
            if expires + BEHIND_SECONDS * 1000 < redis_ms:
                task.cancel()

    async def drain(self, seconds: float) -> None:
        """Answer what is at work, for so long; what is not done then is broken off, and told so."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            pass
        await self.break_off()

    async def break_off(self) -> None:
        """Break off what is at work."""
        while self._running:
            for (sender, call), (task, _) in [*self._running.items()]:
                if not task.cancelling():
                    why = "its server ended, and the handler was not done"
                    refuse(self._outbox, sender, call, REFUSED_BROKEN_OFF, why, BEHIND_SECONDS)
                task.cancel()
            await asyncio.wait([task for task, _ in self._running.values()], timeout=0.05)

    # ------------------------------------------------------------ one request

    async def _work(self, handler: TypedHandler, sender: str, frame: RequestFrame, until: float) -> None:
        """The task of one request: it never raises."""
        began = self._loop.time()
        try:
            if self._has_lapsed():
                self._counts.other("late")
                return  # the process stood still before it came to this
            head, payload, answered = await self._answer(handler, frame)
            count = self._counts.answered if answered else self._counts.failed
            count(self._loop.time() - began)
            self._outbox.post(keys.answers(sender), Outgoing(head, payload, until, tries=ANSWER_TRIES))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            self._counts.other("cancelled")
            if task is None or not task.cancelling():
                head, payload = self._failed(handler, frame, asyncio.CancelledError("nobody asked for it"))
                self._outbox.post(keys.answers(sender), Outgoing(head, payload, until, tries=ANSWER_TRIES))
            # Otherwise who cancelled it has told the caller, or is the caller.
        finally:
            del self._running[sender, frame.call]
            self._counts.running.dec()
            if not self._running:
                self._idle.set()

    async def _answer(self, handler: TypedHandler, frame: RequestFrame) -> tuple[bytes, bytes, bool]:
        """Head and payload of the answer, and whether it is none of failure."""
        try:
            request = handler.request.__pydantic_validator__.validate_json(frame.payload)
        except ValidationError as invalid:
            first = invalid.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            why = f"{handler.name} does not take the request: {place}: {first['msg']}"
            return refusal_head(frame.call, REFUSED_TYPE), why.encode(), False
        try:
            answer = await handler.work(request)
            if type(answer) is not handler.answer and not isinstance(answer, handler.answer):
                raise TypeError(f"it returned {type(answer).__name__}, not {handler.answer.__name__}")
            payload: bytes = handler.answer.__pydantic_serializer__.to_json(answer, by_alias=True)
            if len(payload) > LARGEST_ANSWER:
                raise ValueError(f"its answer has {len(payload)} bytes: at most {LARGEST_ANSWER}")
            return answer_head(frame.call, handler.shapes.answer.fingerprint), payload, True
        except ServiceError as error:
            return failure_head(frame.call), self._told(handler, error), False
        except Exception as error:
            return *self._failed(handler, frame, error), False

    def _failed(
        self, handler: TypedHandler, frame: RequestFrame, error: BaseException
    ) -> tuple[bytes, bytes]:
        _logger.error("service %s: the handler of %s failed", self.service, handler.name, exc_info=error)
        said = " ".join(str(error).split())
        what = f"{type(error).__name__}: {said}".removesuffix(": ")
        message = f"the handler of {handler.name} in service '{self.service}' failed: {what}"
        return failure_head(frame.call), _failure(message, type(error).__name__, None)

    def _told(self, handler: TypedHandler, error: ServiceError) -> bytes:
        """What a caller is told of an error that a handler raised for it."""
        if error.error is None:
            return _failure(str(error), type(error).__name__, None)
        if handler.error is None or not isinstance(error.error, handler.error):
            named = "none" if handler.error is None else handler.error.__name__
            message = f"{error} (with an error of type {type(error.error).__name__}; serve was told {named})"
            return _failure(message, type(error).__name__, None)
        return _failure(str(error), type(error).__name__, error.error)


def refuse(outbox: Outbox, sender: str, call: int, reason: str, why: str, seconds: float) -> None:
    """Tell a caller why there is no answer."""
    until = asyncio.get_running_loop().time() + seconds + BEHIND_SECONDS
    outbox.post(
        keys.answers(sender), Outgoing(refusal_head(call, reason), why.encode(), until, tries=ANSWER_TRIES)
    )


def _failure(message: str, kind: str, error: BaseModel | None) -> bytes:
    told: dict[str, Any] = {
        "message": " ".join(message.split())[:LONGEST_MESSAGE],
        "kind": kind,
        "error": None,
    }
    if error is not None:
        told["error"] = error.model_dump(mode="json", by_alias=True)
    return json.dumps(told).encode()
