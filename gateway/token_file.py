"""The file of tokens: read at the start, and again when it was replaced: tokens change without a restart."""

from __future__ import annotations

import logging
from pathlib import Path
from time import monotonic

from streamlease.gateway.core.bearer import ClientRights, Tokens
from streamlease.protocol.errors import InvalidOption

LOOK_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class TokenFile:
    """The tokens in a file.

    Raises:
        InvalidOption: it cannot be read, or is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._state()
        self._tokens = self._read()
        self._looked = self._looked_for = 0.0
        self.version = 0
        """Goes up when the tokens were read again."""

    def rights(self, authorization: str | None, now: float) -> ClientRights:
        """See ``Tokens.rights``.

        Args:
            now: seconds, of any clock.
        """
        self.look(now)
        return self._tokens.rights(authorization)

    def look(self, now: float) -> None:
        """Read the file again if it was replaced; it is looked at once a second at most."""
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look()

    def rights_of(self, name: str) -> ClientRights:
        """See ``Tokens.rights_of``."""
        now = monotonic()
        if now - self._looked_for >= LOOK_SECONDS:
            self._looked_for = now
            self._look()
        return self._tokens.rights_of(name)

    def _look(self) -> None:
        try:
            state = self._state()
            if state != self._seen:
                self._seen = state
                self._tokens = self._read()
                self.version += 1
                _logger.info("gateway: the tokens in %s were read again", self._path)
        except InvalidOption as error:
            _logger.error("gateway: the former tokens go on: %s", error)

    def _state(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> Tokens:
        try:
            text = self._path.read_bytes()
        except OSError as error:
            raise self._unreadable(error) from None
        return Tokens.parse(text, str(self._path))

    def _unreadable(self, error: OSError) -> InvalidOption:
        return InvalidOption(f"the file of tokens {self._path} cannot be read: {error.strerror}")
