"""The calls of one process: any number at once, each with one answer, or an error that says what is known.

::

    nobody takes it, also after `wait`         NoService        nothing was done
    all who take it have enough to do          ServiceBusy      nothing was done
    the types do not agree                     TypeMismatch     nothing was done
    the handler raised an error                ServiceError
    Redis did not get the request              StoreUnavailable, StoreRefused   nothing was done
    no answer in time, or its server died      Indefinite       it was done, or it was not

A request goes to one server. It goes to another one only if it is certain that the first did not take it:
its stream is gone, or it says so. Who waits for an answer looks after the lease of the server: when news
come, and when the lease would have passed.
"""

from __future__ import annotations

import asyncio
import json
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from streamlease.protocol.errors import (
    InvalidInput,
    InvalidOption,
    MessageTooLarge,
    NoService,
    ServiceBusy,
    ServiceError,
    TypeMismatch,
)
from streamlease.protocol.ids import check_name
from streamlease.services import metrics
from streamlease.services.asking import Asked, Asking, indefinite
from streamlease.services.core.frames import (
    REFUSED_BUSY,
    REFUSED_LEAVING,
    REFUSED_TYPE,
    AnswerFrame,
    FailureFrame,
)
from streamlease.services.core.rotation import Rotation
from streamlease.services.core.shapes import Shape, difference, shape_of
from streamlease.services.directory import LOOK_SECONDS, Directory
from streamlease.services.handlers import check_model
from streamlease.services.outbox import Outbox
from streamlease.services.registration import ServiceRow
from streamlease.streams.tasks import Supervisor

A = TypeVar("A", bound=BaseModel)

LARGEST_PAYLOAD = 1024 * 1024
"""Bytes of a request, and of an answer, in JSON."""

MOST_CALLS = 20_000
"""So many calls of one process are under way at once."""

MOST_BYTES = 64 * 1024 * 1024
"""And so many bytes of their requests."""

LONGEST_SECONDS = 24 * 3600.0
MOST_AGREEMENTS = 10_000


class Caller:
    """The calling side of a process. Made and used on one event loop.

    Args:
        sender: id of this process.
    """

    def __init__(self, sender: str, outbox: Outbox, directory: Directory, tasks: Supervisor) -> None:
        self._sender = sender
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self.asking = Asking(outbox, directory, tasks)
        self._rotations: dict[str, Rotation] = {}
        self._agreements: dict[tuple[str, str, Shape, Shape, Shape | None], str] = {}

    async def call(
        self,
        service: str,
        request: BaseModel,
        answer: type[A],
        error: type[BaseModel] | None,
        wait: float,
        seconds: float,
    ) -> A:
        """As of `ClientServices.call`, with `seconds` for the answer."""
        check_name("a service", service)
        began, outcome = self._loop.time(), "answered"
        try:
            return await self._call(service, request, answer, error, wait, seconds)
        except BaseException as raised:
            outcome = type(raised).__name__
            raise
        finally:
            metrics.called(service, outcome, self._loop.time() - began)

    async def _call(
        self,
        service: str,
        request: BaseModel,
        answer: type[A],
        error: type[BaseModel] | None,
        wait: float,
        seconds: float,
    ) -> A:
        _check_seconds("wait", wait, 0.0)
        _check_seconds("timeout", seconds, 0.001)
        if not isinstance(request, BaseModel):
            raise InvalidInput(f"the request is {ascii(request)[:80]}: pass an instance of a pydantic model")
        check_model("answer", answer)
        wanted_error = None if error is None else shape_of(check_model("error", error))
        model = type(request)
        payload = model.__pydantic_serializer__.to_json(request, by_alias=True)
        self._check_room(service, payload)
        asked = Asked(service, model.__name__, payload, shape_of(model), shape_of(answer), wanted_error)
        outcome = await self._find_and_ask(asked, wait, seconds)
        if isinstance(outcome, FailureFrame):
            raise _failure(service, outcome, error)
        try:
            parsed: A = answer.__pydantic_validator__.validate_json(outcome.payload)
            return parsed
        except ValidationError as invalid:
            why = _first(invalid)
            raise TypeMismatch(
                f"service '{service}' has answered, but {answer.__name__} does not take the answer: {why}; "
                f"the handler has run"
            ) from None

    def _check_room(self, service: str, payload: bytes) -> None:
        if len(payload) > LARGEST_PAYLOAD:
            raise MessageTooLarge(
                f"a request to service '{service}' has {len(payload)} bytes: at most {LARGEST_PAYLOAD}; "
                f"publish it, and pass where it is"
            )
        if len(self.asking) >= MOST_CALLS or self.asking.bytes + len(payload) > MOST_BYTES:
            raise ServiceBusy(
                f"{len(self.asking)} calls of this process are under way: at most {MOST_CALLS}, with "
                f"{MOST_BYTES >> 20} MiB of requests; wait for some"
            )

    # ------------------------------------------------------------ who is asked

    async def _find_and_ask(self, asked: Asked, wait: float, seconds: float) -> AnswerFrame | FailureFrame:
        begun = self._loop.time()
        give_up: float | None = None
        passed: set[str] = set()
        """Addresses that do not take it."""
        busy = mismatch = ""
        while True:
            rows = self._directory.known(asked.service)
            if rows is None:
                rows = await self._directory.rows(asked.service)
            row = self._next(asked.service, rows, passed)
            if row is None:
                if busy or mismatch:
                    raise ServiceBusy(busy) if busy else TypeMismatch(mismatch)
                if self._directory.known(asked.service) is not None:
                    await self._wait_for(asked.service, begun + wait, wait)
                continue
            judged = self._agreements.get((row.digest, asked.name, asked.request, asked.answer, asked.error))
            if judged is None:
                judged = await self._judge(asked, row)
                if not judged:  # its types are gone, and so is the row
                    self._directory.doubt(asked.service)
                    passed.add(row.server)
                    continue
            if not judged.startswith("="):
                mismatch = judged
                passed.add(row.server)
                continue
            give_up = give_up or self._loop.time() + seconds
            outcome = await self.asking.ask(asked, row.server, judged[1:], give_up, seconds)
            if isinstance(outcome, AnswerFrame | FailureFrame):
                return outcome
            passed.add(row.server)
            if outcome is None or outcome.reason == REFUSED_LEAVING:
                self._directory.doubt(asked.service)
            elif outcome.reason == REFUSED_BUSY:
                busy = f"service '{asked.service}': {outcome.why}"
            elif outcome.reason == REFUSED_TYPE:
                raise TypeMismatch(f"service '{asked.service}': {outcome.why}")
            else:
                raise indefinite(asked.service, outcome.why)

    def _next(self, service: str, rows: list[ServiceRow], passed: set[str]) -> ServiceRow | None:
        left = [one for one in rows if one.server not in passed] if passed else rows
        if not left:
            return None
        turns = self._rotations.get(service)
        if turns is None:
            if len(self._rotations) >= MOST_AGREEMENTS:
                self._rotations.clear()
            turns = self._rotations[service] = Rotation(self._sender)
        return left[turns.next([one.server for one in left])]

    async def _wait_for(self, service: str, until: float, wait: float) -> None:
        left = until - self._loop.time()
        if left <= 0:
            waited = f" within {wait:g} s" if wait else ""
            raise NoService(
                f"nobody serves '{service}'{waited}: start a server, or wait longer"
                if wait
                else f"nobody serves '{service}': start a server, or pass wait=SECONDS"
            )
        await self._directory.news(min(left, LOOK_SECONDS))
        self._directory.doubt(service)

    async def _judge(self, asked: Asked, seen: ServiceRow) -> str:
        """``=`` and the fingerprint with which the request agrees; or what does not; empty: nobody knows."""
        types = await self._directory.types(seen.digest)
        if types is None:
            return ""
        theirs = types.handlers.get(asked.name)
        judged = ""
        if theirs is None:
            takes = ", ".join(sorted(types.handlers))
            judged = f"service '{asked.service}' takes no {asked.name}: it takes {takes}"
        else:
            pairs = [
                ("request", asked.request, theirs.request),
                ("answer", asked.answer, theirs.answer),
                ("error", asked.error, theirs.error),
            ]
            for what, here, there in pairs:
                found = difference(here, there) if here is not None and there is not None else None
                if found is not None and here is not None and there is not None:
                    judged = (
                        f"the {what} of {asked.name} to service '{asked.service}' has another type there: "
                        f"{found} (fingerprints {here.fingerprint} here, {there.fingerprint} there)"
                    )
                    break
            else:
                judged = f"={theirs.request.fingerprint}"
        if len(self._agreements) >= MOST_AGREEMENTS:
            self._agreements.clear()
        self._agreements[seen.digest, asked.name, asked.request, asked.answer, asked.error] = judged
        return judged


def _failure(service: str, frame: FailureFrame, error: type[BaseModel] | None) -> ServiceError:
    try:
        told = json.loads(frame.payload)
        message, kind, detail = str(told["message"]), str(told["kind"]), told.get("error")
    except (ValueError, TypeError, KeyError, AttributeError):
        return ServiceError(f"the handler of service '{service}' failed, and what it said cannot be read")
    parsed = None
    if error is not None and detail is not None:
        try:
            parsed = error.model_validate_json(json.dumps(detail))
        except ValidationError as invalid:
            message += f" (and {error.__name__} does not take its error: {_first(invalid)})"
    failure = ServiceError(message, parsed)
    failure.kind = kind
    return failure


def _first(invalid: ValidationError) -> str:
    first = invalid.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def _check_seconds(what: str, seconds: float, least: float) -> None:
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not least <= seconds <= LONGEST_SECONDS
    ):
        raise InvalidOption(
            f"{what} is {ascii(seconds)[:40]}: use seconds from {least:g} to {LONGEST_SECONDS:g}"
        )
