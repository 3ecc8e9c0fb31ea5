"""Handlers and their types, as they are served."""

from __future__ import annotations

import hashlib
import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from streamlease.protocol.errors import InvalidInput
from streamlease.services.core.shapes import Shape, difference, shape_of

Handler = Callable[[Any], Awaitable[BaseModel]]


@dataclass(frozen=True, slots=True)
class HandlerShapes:
    """The types of one handler."""

    request: Shape
    answer: Shape
    error: Shape | None

    def difference(self, other: HandlerShapes) -> str | None:
        """Where the types of another handler do not agree with these, for people."""
        for what, here, there in (
            ("request", self.request, other.request),
            ("answer", self.answer, other.answer),
            ("error", self.error, other.error),
        ):
            if here is None or there is None:
                if here is not there:
                    return f"the {what} has a type only {'here' if there is None else 'there'}"
                continue
            found = difference(here, there)
            if found is not None:
                return f"the {what} differs at {found} (fingerprints {here.fingerprint}, {there.fingerprint})"
        return None


@dataclass(frozen=True, slots=True)
class ServiceTypes:
    """The types of all handlers of a service, by the name of the request."""

    handlers: Mapping[str, HandlerShapes]
    text: str
    """JSON: {name: [request, answer, error or null]}, each the text of a shape."""
    digest: str

    @classmethod
    def of(cls, handlers: Mapping[str, HandlerShapes]) -> ServiceTypes:
        """Those of these handlers."""
        told = {
            name: [one.request.text, one.answer.text, one.error.text if one.error is not None else None]
            for name, one in handlers.items()
        }
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return cls(dict(handlers), text, hashlib.sha256(text.encode()).hexdigest()[:16])

    @classmethod
    def parse(cls, text: str | bytes) -> ServiceTypes:
        """Read `text` back.

        Raises:
            InvalidInput: it is not of this form.
        """
        try:
            told = json.loads(text)
            handlers = {
                name: HandlerShapes(
                    Shape.parse(request), Shape.parse(answer), None if error is None else Shape.parse(error)
                )
                for name, (request, answer, error) in told.items()
            }
        except (ValueError, TypeError, AttributeError):
            raise InvalidInput(f"{text[:80]!r} are no types of a service") from None
        return cls.of(handlers)

    def difference(self, other: ServiceTypes) -> str | None:
        """Where another service of the same name does not agree; who takes more requests does agree."""
        for name in sorted(self.handlers.keys() & other.handlers.keys()):
            found = self.handlers[name].difference(other.handlers[name])
            if found is not None:
                return f"{name}: {found}"
        return None


@dataclass(frozen=True, slots=True)
class TypedHandler:
    """One handler."""

    name: str
    request: type[BaseModel]
    answer: type[BaseModel]
    error: type[BaseModel] | None
    work: Handler
    shapes: HandlerShapes


def typed_handlers(
    service: str,
    handlers: Mapping[type[BaseModel], Handler],
    errors: Mapping[type[BaseModel], type[BaseModel]],
) -> dict[str, TypedHandler]:
    """The handlers of a service by the name of their request.

    Raises:
        InvalidInput: one is no coroutine function of one model that returns a model.
    """
    if not isinstance(handlers, Mapping) or not handlers:
        raise InvalidInput(f"service {service} has no handlers: pass {{Request: handler}}")
    for request in errors:
        if request not in handlers:
            raise InvalidInput(
                f"service {service} has an error for {_shown(request)}, which it does not take"
            )
    found: dict[str, TypedHandler] = {}
    for request, work in handlers.items():
        handler = _typed(service, request, work, errors.get(request))
        if handler.name in found:
            raise InvalidInput(f"service {service} has two requests with the name {handler.name}: rename one")
        found[handler.name] = handler
    return found


def check_model(what: str, model: Any) -> type[BaseModel]:
    """`model`, if it is a pydantic model that can travel.

    Raises:
        InvalidInput: it is not.
    """
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or model is BaseModel:
        raise InvalidInput(f"{what} is {_shown(model)}: use a pydantic model, a subclass of BaseModel")
    return model


def _typed(service: str, request: Any, work: Any, error: Any) -> TypedHandler:
    check_model(f"a request of service {service}", request)
    where = f"the handler of {request.__name__} in service {service}"
    function = work if inspect.isroutine(work) else getattr(work, "__call__", None)  # noqa: B004
    if inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{where} yields: there is one answer per request, return it")
    if not inspect.iscoroutinefunction(function):
        raise InvalidInput(
            f"{where} is no 'async def': what blocks would stop all requests, await asyncio.to_thread in it"
        )
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as unknown:
        raise InvalidInput(
            f"{where} has annotations that cannot be read ({unknown}): define its types in the module"
        ) from None
    answer = check_model(f"what {where} returns, by its annotation,", hints.pop("return", None))
    if len(hints) == 1 and next(iter(hints.values())) is not request:
        raise InvalidInput(f"{where} takes {_shown(next(iter(hints.values())))}, by its annotation")
    if error is not None:
        check_model(f"the error of {request.__name__} in service {service}", error)
    shapes = HandlerShapes(shape_of(request), shape_of(answer), None if error is None else shape_of(error))
    return TypedHandler(request.__name__, request, answer, error, work, shapes)


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else ascii(value)[:80]
