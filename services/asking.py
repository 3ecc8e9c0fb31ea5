"""One request to one server, and the watch over servers that die in the middle of one.

Who waits for an answer looks after the lease of its server: when news come, and when the lease would have
passed by what was seen last. Without Redis nobody knows, and the time-out holds.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from streamlease.protocol.errors import Indefinite, StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.services import keys
from streamlease.services.core.frames import (
    AnswerFrame,
    FailureFrame,
    RefusalFrame,
    cancel_head,
    request_head,
)
from streamlease.services.core.shapes import Shape
from streamlease.services.directory import Directory
from streamlease.services.outbox import Outbox, Outgoing
from streamlease.streams.tasks import Supervisor

GRACE_SECONDS = 0.25
"""How long an answer may be behind the news that its server is gone."""

LEAST_SECONDS = 0.1
"""Between two looks after servers."""

CANCEL_SECONDS = 10.0
"""How long it is tried to tell a server that nobody waits any more."""

_UNANSWERED = (StoreUnavailable, StoreRefused, Indefinite)

Outcome = AnswerFrame | FailureFrame | RefusalFrame | None
"""What came; None: the server is gone, and has not got the request."""


class Asked(NamedTuple):
    """What somebody wants of a service."""

    service: str
    name: str
    payload: bytes
    request: Shape
    answer: Shape
    error: Shape | None


class _Call:
    """One request to one server."""

    __slots__ = ("answered", "number", "sent", "service")

    def __init__(self, number: int, service: str, answered: asyncio.Future[Outcome]) -> None:
        self.number = number
        self.service = service
        self.answered = answered
        self.sent = False

    @property
    def over(self) -> bool:
        return self.answered.done()

    def tell(self, outcome: Outcome) -> None:
        if not self.answered.done():
            self.answered.set_result(outcome)

    def fail(self, error: StreamleaseError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)

    def fail_indefinite(self, why: str) -> None:
        self.fail(indefinite(self.service, why))

    def gone(self) -> None:
        if self.sent:
            self.fail_indefinite("its server went before it was known whether it had the request")
        else:
            self.tell(None)

    def refused(self, error: StreamleaseError) -> None:
        if self.sent:
            self.fail_indefinite(f"it was sent, and sent again, which Redis refused ({error})")
        else:
            self.fail(error)


class Asking:
    """The requests of one process that are under way. Made and used on one event loop."""

    def __init__(self, outbox: Outbox, directory: Directory, tasks: Supervisor) -> None:
        self._outbox = outbox
        self._directory = directory
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self.bytes = 0
        """Of the requests."""
        self._calls: dict[int, _Call] = {}
        self._by_address: dict[str, dict[int, _Call]] = {}
        self._some = asyncio.Event()
        self._minding: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._calls)

    async def ask(self, asked: Asked, address: str, judged: str, give_up: float, seconds: float) -> Outcome:
        """What came of it.

        Raises:
            Indefinite: it was done, or it was not. StoreUnavailable, StoreRefused: it was not sent.
        """
        self._number += 1
        number = self._number
        call = _Call(number, asked.service, self._loop.create_future())
        self._calls[number] = call
        there = self._by_address.get(address)
        if there is None:
            there = self._by_address[address] = {}
            if self._minding is None:
                self._minding = self._tasks.start("minding servers", self._mind_servers(), endless=True)
            self._some.set()
        there[number] = call
        self.bytes += len(asked.payload)
        expires = self._directory.redis_ms(give_up)
        head = request_head(number, expires, asked.request.fingerprint, judged, asked.service, asked.name)
        key = keys.requests(address)
        self._outbox.post(key, Outgoing(head, asked.payload, give_up, call))
        timer = self._loop.call_at(give_up, self._late, call, seconds)
        answered = False
        try:
            outcome = await call.answered
            answered = True
            return outcome
        finally:
            timer.cancel()
            if not answered and call.sent:
                # Cancelled, or given up: its handler need not go on.
                self._outbox.post(key, Outgoing(cancel_head(number), b"", give_up + CANCEL_SECONDS))
            self.bytes -= len(asked.payload)
            del self._calls[number], there[number]
            if not there:
                del self._by_address[address]

    def _late(self, call: _Call, seconds: float) -> None:
        if call.sent:
            call.fail_indefinite(f"no answer came within {seconds:g} s")
        else:
            call.fail(
                StoreUnavailable(
                    f"the request to service '{call.service}' could not be sent within {seconds:g} s: "
                    f"Redis does not answer; nothing was done"
                )
            )

    def heard(self, outcome: AnswerFrame | FailureFrame | RefusalFrame) -> None:
        """An answer came; one that nobody waits for is dropped."""
        call = self._calls.get(outcome.call)
        if call is not None:
            call.tell(outcome)

    def end(self, error: StreamleaseError) -> None:
        """No answer will be heard any more."""
        for call in self._calls.values():
            if call.sent:
                call.fail_indefinite(str(error))
            else:
                call.fail(error)

    # ------------------------------------------------------------ servers that die

    async def _mind_servers(self) -> None:
        while True:
            if not self._by_address:
                self._some.clear()
                await self._some.wait()
            until = self._directory.until
            end = min(until.get(address, 0) for address in self._by_address)
            left = (end - self._directory.redis_ms()) / 1000
            await self._directory.news(max(left, LEAST_SECONDS))
            if not self._by_address:
                continue
            try:
                seen = await self._directory.look()
            except _UNANSWERED:
                await asyncio.sleep(LEAST_SECONDS)  # without Redis nobody knows: the time-outs hold
                continue
            for address, calls in self._by_address.items():
                if address not in seen.until:
                    self._loop.call_later(GRACE_SECONDS, _end, [*calls.values()])


def _end(calls: list[_Call]) -> None:
    for call in calls:
        call.fail_indefinite("its server has died, or was cut off")


def indefinite(service: str, why: str) -> Indefinite:
    """The error for a request of which nobody knows whether it was done."""
    return Indefinite(
        f"a call of service '{service}' has no answer: {why}; it was done, or it was not: look, or call "
        f"again if that does no harm"
    )
