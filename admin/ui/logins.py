"""Who looks at the console, and what they may do there. Pure, but for reading the file.

============ ==========================================================================
role         may
============ ==========================================================================
``observer`` see everything, messages included
``operator`` act on groups and hosts, publish, replay dead letters
``admin``    delete groups, let them expire, give publishers up
============ ==========================================================================

Who somebody is, the console learns in one of three ways:

* from a file with one token: everyone may look, and who logs in with the token is an admin;
* from a file of several, which holds the SHA-256 of each; then nobody sees anything without logging in::

    {"tokens": [{"name": "ana", "sha256": "9f86d0...", "role": "operator"}]}

* from the headers of a reverse proxy that has logged people in, if the request comes from its address.

A login becomes a cookie that names person, role and end, signed with a key made of the file. So it holds in
every console that has the same file, is kept nowhere, and is void when the file changes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamlease.protocol.errors import InvalidOption

SHORTEST_TOKEN = 16
LASTS_SECONDS = 12 * 3600
RoleName = Literal["observer", "operator", "admin"]


class ConsoleRole(IntEnum):
    """A higher one may all that a lower one may."""

    OBSERVER = 1
    OPERATOR = 2
    ADMIN = 3

    @classmethod
    def named(cls, name: str) -> ConsoleRole | None:
        """The role with that name; None: there is none."""
        return cls.__members__.get(name.strip().upper())


@dataclass(frozen=True, slots=True)
class Person:
    """Who looks."""

    name: str
    role: ConsoleRole


class _Token(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^@\s]+$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
    role: RoleName


class _TokensFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: list[_Token]


@dataclass(frozen=True, slots=True)
class ProxyHeaders:
    """What a reverse proxy says of who looks.

    Args:
        user: the header with the name.
        role: the header with the role; without one everybody is an observer.
        addresses: where the proxy is: from anywhere else the headers are ignored.
    """

    user: str
    role: str | None = None
    addresses: frozenset[str] = frozenset({"127.0.0.1", "::1"})

    def person(self, headers: Mapping[str, str], address: str) -> Person | None:
        """Who it says that looks; None: it does not say."""
        name = headers.get(self.user, "").strip()
        if address not in self.addresses or not name or len(name) > 200:
            return None
        told = ConsoleRole.named(headers.get(self.role, "")) if self.role is not None else None
        return Person(name, told or ConsoleRole.OBSERVER)


class Logins:
    """The ways to log in.

    Args:
        file: with one token, or several.
        proxy: whose headers are believed.

    Raises:
        InvalidOption: the file cannot be read, or is none of tokens.
    """

    def __init__(self, file: Path | None = None, proxy: ProxyHeaders | None = None) -> None:
        self._file = file
        self._proxy = proxy
        self._tokens: list[tuple[bytes, Person]] = []
        self._key = b""
        self._open = True
        self._state = None if file is None else _state(file)
        if file is not None:
            self._read(file)
        self._open = self._open and proxy is None

    @property
    def by_token(self) -> bool:
        """Whether somebody can log in with a token."""
        return self._file is not None

    @property
    def cookie_name(self) -> str:
        """Of this file's logins: browsers give the cookies of a machine to all of its ports."""
        return f"streamlease_{hashlib.sha256(self._key).hexdigest()[:8]}"

    @property
    def everyone(self) -> Person | None:
        """Who somebody is who did not log in; None: nobody who may see anything."""
        return Person("", ConsoleRole.OBSERVER) if self._open else None

    def _read(self, file: Path) -> None:
        try:
            text = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOption(f"--token-file is {file}, which cannot be read: {error}") from None
        self._key = hashlib.sha256(b"console cookies " + text.encode()).digest()
        if not text.startswith("{"):
            if len(text) < SHORTEST_TOKEN or not text.isascii() or not text.isprintable():
                raise InvalidOption(
                    f"the token in {file} has {len(text)} characters: "
                    f"it needs {SHORTEST_TOKEN} or more, printable ASCII"
                )
            self._tokens, self._open = [(_digest(text), Person("", ConsoleRole.ADMIN))], True
            return
        try:
            found = _TokensFile.model_validate_json(text).tokens
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the document"
            raise InvalidOption(
                f"{file} is no file of tokens: {where}: {' '.join(first['msg'].split())}; write "
                '{"tokens": [{"name": ..., "sha256": ..., "role": "observer"|"operator"|"admin"}]}'
            ) from None
        self._tokens = [
            (one.sha256.lower().encode(), Person(one.name, ConsoleRole[one.role.upper()])) for one in found
        ]
        self._open = False

    def look_again(self) -> None:
        """Read the file again if it was replaced; a file that is none leaves all as it was.

        Raises:
            InvalidOption: it is none.
        """
        if self._file is not None and (state := _state(self._file)) != self._state:
            self._read(self._file)
            self._open = self._open and self._proxy is None
            self._state = state

    def with_token(self, token: str) -> Person | None:
        """Whose token it is; None: nobody's. It takes the same time for each."""
        digest = _digest(token)
        found = None
        for known, person in self._tokens:
            if hmac.compare_digest(known, digest):
                found = person
        return found

    def cookie(self, person: Person, now: float) -> str:
        """A login, to be kept by a browser."""
        said = [person.name, person.role.name, int(now) + LASTS_SECONDS]
        text = base64.urlsafe_b64encode(json.dumps(said).encode()).decode()
        return f"{text}.{self._signed(text)}"

    def with_cookie(self, cookie: str, now: float) -> Person | None:
        """Who logged in; None: it is over, or was never given here."""
        text, _, signature = cookie.partition(".")
        if not self._key or not hmac.compare_digest(
            self._signed(text).encode(), signature.encode("utf-8", "replace")
        ):
            return None
        try:
            name, role, until = json.loads(base64.urlsafe_b64decode(text))
        except (ValueError, TypeError, binascii.Error):
            return None
        return Person(name, ConsoleRole[role]) if now < until else None

    def with_headers(self, headers: Mapping[str, str], address: str) -> Person | None:
        """Who the reverse proxy says that it is; None: it says nothing."""
        return None if self._proxy is None else self._proxy.person(headers, address)

    def _signed(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest().encode()


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
