"""Records in Redis that cannot be read: told in one line, and kept from hurting others.

Each kind of record is parsed in one place. What that place cannot read becomes a ``StreamleaseError`` with
the key and what to do (`parsing`, `number`). Anywhere else a ``ValueError`` or a ``pydantic.ValidationError``
is a defect of the program, and nobody catches it.

A look at many things asks for all of them at once. Only if one of them is damaged does it ask again, for
smaller and smaller parts, until the damaged ones are singled out and all others are seen (`readable`). That
Redis does not answer is no damage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import ValidationError

from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError, Unsupported
from streamlease.streams.redis.connection import Command, Redis, ask_each

Item = TypeVar("Item", bound=Hashable)
Result = TypeVar("Result")

MALFORMED = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""What parsing raises for bytes that nobody wrote on purpose, a ``pydantic.ValidationError`` among them."""


@contextmanager
def parsing(what: str, key: str) -> Iterator[None]:
    """Around the parsing of what Redis holds of `what` under `key`, and around nothing else.

    Raises:
        Unsupported: it cannot be read.
    """
    try:
        yield
    except MALFORMED as error:
        raise Unsupported(
            f"{what} is damaged, or of a later version ({why(error):.200}): restore key {key} from a backup"
        ) from None


def number(key: str, held: bytes | None, none: int = 0) -> int:
    """A number that Redis holds under `key`; `none` if it holds nothing.

    Raises:
        Unsupported: it is no number.
    """
    try:
        return none if held is None else int(held)
    except ValueError:
        raise Unsupported(
            f"key {key} holds {held!r:.80}, which is no number: restore it from a backup"
        ) from None


def is_damage(error: StreamleaseError) -> bool:
    """Whether what was read is damaged, or its key is of another type."""
    return isinstance(error, Unsupported) or "WRONGTYPE" in str(error)


async def ask_of_any_type(redis: Redis, commands: Sequence[Command]) -> list[Any]:
    """`ask`, for commands of which each reads its own key; one of another type gives ``Unsupported``.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    replies = await ask_each(redis, commands)
    for place, (reply, command) in enumerate(zip(replies, commands, strict=True)):
        if isinstance(reply, StreamleaseError):
            if not is_damage(reply):
                raise reply
            replies[place] = Unsupported(f"key {command[1]!s} is of another type: restore it from a backup")
    return replies


async def readable(
    items: Sequence[Item], work: Callable[[Sequence[Item]], Awaitable[Mapping[Item, Result]]]
) -> tuple[dict[Item, Result], dict[Item, str]]:
    """What `work` gives for `items`; for those that cannot be read, why.

    Raises:
        StoreUnavailable, Indefinite: Redis does not answer.
        What `work` raises for all of several items alike: then none of them is at fault.
    """
    try:
        return (dict(await work(items)) if items else {}), {}
    except (StoreUnavailable, Indefinite):
        raise
    except StreamleaseError as error:
        found, damaged = await _halves(items, work, error)
        if len(items) > 1 and len(damaged) == len(items) and len(set(damaged.values())) == 1:
            raise
        return found, damaged


async def _halves(
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], Awaitable[Mapping[Item, Result]]],
    failed: BaseException,
) -> tuple[dict[Item, Result], dict[Item, str]]:
    if len(items) == 1:
        return {}, {items[0]: why(failed)}
    found: dict[Item, Result] = {}
    damaged: dict[Item, str] = {}
    middle = len(items) // 2
    for part in (items[:middle], items[middle:]):
        try:
            found |= await work(part)
        except (StoreUnavailable, Indefinite):
            raise
        except StreamleaseError as error:
            good, bad = await _halves(part, work, error)
            found |= good
            damaged |= bad
    return found, damaged


async def attempt(work: Awaitable[Result]) -> tuple[Result | None, str]:
    """What one look finds, or why it finds nothing.

    Raises:
        StoreUnavailable, Indefinite: Redis does not answer.
    """
    try:
        return await work, ""
    except (StoreUnavailable, Indefinite):
        raise
    except StreamleaseError as error:
        return None, why(error)


def why(error: BaseException) -> str:
    """An error as one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        text = f"{first['msg']}, not {first['input']!r:.60}"
        return " ".join((f"{place}: {text}" if place else text).split())
    text = " ".join(str(error).split())
    return text if isinstance(error, StreamleaseError) else f"{type(error).__name__}: {text}"
