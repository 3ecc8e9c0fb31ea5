"""Who may do what: bearer tokens with rights by topic filter and act. Pure.

The file of tokens holds no token, only the SHA-256 of each::

    {"tokens": [{"name": "meters", "sha256": "9f86d0...", "publish": ["meters/#"], "consume": ["tariffs/#"]}]}
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from streamlease.protocol.errors import InvalidOption, StreamleaseError
from streamlease.protocol.topics import check_filter, matches


class NotAuthenticated(StreamleaseError):
    """No token came with the request, or none that is known."""


class NotAllowed(StreamleaseError):
    """The token has no right to that."""


class _Token(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=100)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
    publish: tuple[str, ...] = ()
    consume: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None

    @field_validator("publish", "consume")
    @classmethod
    def _filters(cls, filters: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(check_filter, filters))


class _TokensFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: list[_Token]


@dataclass(frozen=True, slots=True)
class ClientRights:
    """What a client may do.

    Args:
        name: of its token; None: it needs none.
    """

    name: str | None
    publish: tuple[str, ...] = ()
    consume: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None
    """The groups of which it may be a member; None: all."""

    def check_publish(self, topic: str) -> None:
        """Raises:
        NotAllowed: it may not publish to `topic`.
        """
        if self.name is not None and not any(matches(filter, topic) for filter in self.publish):
            raise NotAllowed(
                f"token {self.name!a} may not publish to {ascii(topic)[:80]}: "
                f"use another topic, or have a filter that matches it added under 'publish'"
            )

    def check_consume(self, filter: str) -> None:
        """Raises:
        NotAllowed: `filter` matches topics that it may not read.
        """
        if self.name is not None and not any(includes(one, filter) for one in self.consume):
            raise NotAllowed(
                f"token {self.name!a} may not read all of {ascii(filter)[:80]}: "
                f"use a narrower filter, or have one that includes it added under 'consume'"
            )

    def check_group(self, group: str) -> None:
        """Raises:
        NotAllowed: it may not be a member of `group`.
        """
        if self.name is not None and self.groups is not None and group not in self.groups:
            raise NotAllowed(
                f"token {self.name!a} may not be a member of group {ascii(group)[:80]}: "
                f"use another group, or have it added under 'groups'"
            )


EVERYTHING = ClientRights(None)
"""Of a client that needs no token."""


class Tokens:
    """The tokens of a gateway."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._rights = [
            (one.sha256.lower().encode(), ClientRights(one.name, one.publish, one.consume, one.groups))
            for one in tokens
        ]
        self._by_name = {rights.name: rights for _, rights in self._rights}

    @classmethod
    def parse(cls, text: str | bytes, file: str) -> Tokens:
        """The tokens in the text of a file.

        Raises:
            InvalidOption: it is none.
        """
        try:
            found = _TokensFile.model_validate_json(text).tokens
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the document"
            raise InvalidOption(
                f"{file} is no file of tokens: {where}: {' '.join(first['msg'].split())}; write "
                '{"tokens": [{"name": ..., "sha256": ..., "publish": [FILTER...], "consume": [FILTER...]}]}'
            ) from None
        names = [one.name for one in found]
        for name in names:
            if names.count(name) > 1:
                raise InvalidOption(f"{file} has two tokens named {name!a}: give each its own name")
        return cls(found)

    def rights(self, authorization: str | None) -> ClientRights:
        """What the client with that header may do. Takes the same time whichever token it is, or none.

        Raises:
            NotAuthenticated: there is none, or an unknown one.
        """
        if authorization is None:
            raise NotAuthenticated(
                "this gateway wants a token: send the header 'Authorization: Bearer TOKEN'"
            )
        scheme, _, token = authorization.partition(" ")
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest().encode()
        found: ClientRights | None = None
        for known, rights in self._rights:
            if hmac.compare_digest(known, digest):
                found = rights
        if found is None or scheme.lower() != "bearer":
            raise NotAuthenticated(
                "the token is unknown: check it, and send it as 'Authorization: Bearer TOKEN'"
            )
        return found

    def rights_of(self, name: str) -> ClientRights:
        """What the client of that name may do now, though it makes no request.

        Raises:
            NotAllowed: there is no such token (any more).
        """
        found = self._by_name.get(name)
        if found is None:
            raise NotAllowed(f"there is no token {name!a} any more: have it added again")
        return found


def includes(allowed: str, wanted: str) -> bool:
    """Whether every topic that the filter `wanted` matches is matched by `allowed`; both are checked."""
    have, want = allowed.split("/"), wanted.split("/")
    if want[0].startswith("$") and have[0] in ("+", "#"):
        return False
    for place, level in enumerate(have):
        if level == "#":
            return True
        if place == len(want) or want[place] == "#":
            return False
        if level not in ("+", want[place]):
            return False
        if place == len(have) - 2 and have[-1] == "#" and place == len(want) - 1:
            return True  # a/# matches a as well
    return len(have) == len(want)
