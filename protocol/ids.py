"""Names and identities: spaces, streams, sessions, borrowers.

Identities of living things are never reused: they are random, and whoever makes one is handed the source
of randomness, so that a simulation can replay it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from typing import NamedTuple

from streamlease.protocol.errors import InvalidInput

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}\Z")
_NUMBER = re.compile(r"(?:0|[1-9][0-9]*)\Z")

Token = Callable[[], str]
"""Gives a fresh random token at each call."""


def random_token() -> str:
    """96 random bits as text: unique without coordination."""
    return secrets.token_hex(12)


def check_name(what: str, name: str) -> str:
    """`name`, if it can name a space, a session or a borrower.

    Raises:
        InvalidInput: not 1 to 63 of ``A-Z a-z 0-9 _ -``, or beginning with ``-``.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        shown = ascii(name)[:80]
        raise InvalidInput(f"{what} {shown} is not a name: use 1 to 63 letters, digits, '_' or '-'")
    return name


LEAST_LEAP = 1 << 20
"""Terms rise by at least so much when writes may have been lost: more than are ever issued in between."""

LONGEST_LEAP = 1 << 36
"""At least 2^17 leaps of this length fit into the integers that Lua counts exactly (2^53)."""

MOST_NUMBER = (1 << 53) - 1
"""The highest number that Lua counts exactly: no offset, term or lease epoch is above it."""

HIGHEST_TOLD = 1 << 52
"""A higher term is not believed to whoever says that he saw it: above it there must be room to rise."""


class StreamId(NamedTuple):
    """One stream: a shard of a generation of a space. Its text form is ``space.generation.shard``."""

    space: str
    generation: int
    shard: int

    def __str__(self) -> str:
        return f"{self.space}.{self.generation}.{self.shard}"

    @classmethod
    def of(cls, given: StreamId | str) -> StreamId:
        """What `given` is, or says.

        Raises:
            InvalidInput: it is no stream.
        """
        if isinstance(given, StreamId):
            return given
        return cls.parse(given if isinstance(given, str) else ascii(given))

    @classmethod
    def all_of(cls, given: Iterable[StreamId | str]) -> list[StreamId]:
        """Those of a list; raises as `of`."""
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise InvalidInput(f"streams is {ascii(given)[:80]}: give a list, such as ['flights.0.3']")
        return [cls.of(one) for one in given]

    @classmethod
    def parse(cls, text: str) -> StreamId:
        """Read the text form back.

        Raises:
            InvalidInput: `text` is not ``NAME.GENERATION.SHARD``.
        """
        space, _, rest = text.partition(".")
        generation, _, shard = rest.partition(".")
        if not (_NAME.match(space) and _NUMBER.match(generation) and _NUMBER.match(shard)):
            raise InvalidInput(
                f"{ascii(text)[:80]} is not a stream: write SPACE.GENERATION.SHARD, such as flights.0.3"
            )
        return cls(space, int(generation), int(shard))
