"""What a Redis keeps: keys of five types, and when each of them expires."""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import ResponseError

Id = tuple[int, int]
"""Of an entry of a stream: milliseconds and sequence."""

LAST_ID = (2**64 - 1, 2**64 - 1)


class Hash(dict[bytes, bytes]):
    """Fields in the order in which they came."""


class Set(dict[bytes, None]):
    """Members in the order in which they came."""


class Sorted(dict[bytes, float]):
    """Members and their scores."""

    def ordered(self) -> list[bytes]:
        """The members by score, and by name where scores are equal."""
        return sorted(self, key=lambda member: (self[member], member))


class Stream:
    """Entries in the order of their ids."""

    def __init__(self) -> None:
        self.ids: list[Id] = []
        self.fields: list[list[bytes]] = []
        self.last: Id = (0, 0)
        self.added = 0

    def __len__(self) -> int:
        """How many entries are there."""
        return len(self.ids)

    def add(self, id: Id, fields: list[bytes]) -> None:
        """Put an entry behind all others."""
        self.ids.append(id)
        self.fields.append(fields)
        self.last = id
        self.added += 1

    def between(self, first: Id, last: Id) -> range:
        """The places of the entries from `first` to `last`, both included."""
        return range(bisect_left(self.ids, first), bisect_right(self.ids, last))

    def drop(self, count: int) -> int:
        """Remove so many of the oldest."""
        count = max(0, min(count, len(self.ids)))
        del self.ids[:count], self.fields[:count]
        return count


T = TypeVar("T", Hash, Set, Sorted, Stream)
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class Keyspace:
    """All keys of a server.

    Args:
        now: milliseconds since 1970.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self._values: dict[bytes, bytes | Hash | Set | Sorted | Stream] = {}
        self._expires: dict[bytes, int] = {}

    def get(self, key: bytes) -> bytes | Hash | Set | Sorted | Stream | None:
        """What the key holds, unless its time is over."""
        expires = self._expires.get(key)
        if expires is not None and expires <= self.now():
            self.remove(key)
        return self._values.get(key)

    def text(self, key: bytes) -> bytes | None:
        """The string that the key holds.

        Raises:
            ResponseError: it holds something else.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, bytes):
            raise ResponseError(WRONG_TYPE)
        return value

    def of(self, key: bytes, kind: type[T]) -> T | None:
        """What the key holds, if that is a `kind`.

        Raises:
            ResponseError: it holds something else.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, kind):
            raise ResponseError(WRONG_TYPE)
        return value

    def seen(self, key: bytes, kind: type[T]) -> T:
        """The same; an empty one, which is not kept, if the key is not there."""
        found = self.of(key, kind)
        return kind() if found is None else found

    def made(self, key: bytes, kind: type[T]) -> T:
        """The same; an empty one is made if the key is not there."""
        value = self.of(key, kind)
        if value is None:
            value = self._values[key] = kind()
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Let the key hold a string, for ever."""
        self._values[key] = value
        self._expires.pop(key, None)

    def change(self, key: bytes, value: bytes) -> None:
        """Let the key hold another string, for as long as before."""
        self._values[key] = value

    def remove(self, key: bytes) -> bool:
        """Forget the key; whether it was there."""
        self._expires.pop(key, None)
        return self._values.pop(key, None) is not None

    def tidy(self, key: bytes) -> None:
        """A key that holds nothing is none; a stream is one even when empty."""
        value = self._values.get(key)
        if not value and isinstance(value, Hash | Set | Sorted):
            self.remove(key)

    def expire(self, key: bytes, at: int) -> bool:
        """Forget the key at that time; False if it is not there."""
        if self.get(key) is None:
            return False
        self._expires[key] = at
        return True

    def persist(self, key: bytes) -> bool:
        """Keep the key for ever; whether it had a time."""
        return self.get(key) is not None and self._expires.pop(key, None) is not None

    def left(self, key: bytes) -> int:
        """For how many ms it is there; -1: for ever, -2: it is not."""
        if self.get(key) is None:
            return -2
        expires = self._expires.get(key)
        return -1 if expires is None else expires - self.now()

    def names(self) -> list[bytes]:
        """All keys."""
        return [key for key in list(self._values) if self.get(key) is not None]

    def take_over(self, other: Keyspace) -> None:
        """Keep a copy of what `other` keeps."""
        self._values = copy.deepcopy(other._values)
        self._expires = dict(other._expires)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._expires.clear()
