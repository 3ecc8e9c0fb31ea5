"""A password that stands in a file, which is read anew for each connection.

So whoever changes a password, or has tokens that last minutes, writes the file, and no program is started
again. A connection that stands keeps its login: Redis asks for it once.
"""

from __future__ import annotations

from pathlib import Path

from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError


class NoPassword(AuthenticationError):
    """There is no password in the file: the server was not asked. In redis-py's terms, so that it closes."""


class PasswordFile(CredentialProvider):
    """The login of `user`, or of the default user, with the password that the file holds by then."""

    def __init__(self, path: str, user: str | None) -> None:
        self._path = Path(path)
        self._user = user

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Called by redis-py for each new connection.

        Raises:
            NoPassword: the file cannot be read, is empty, or is no text.
        """
        try:
            text = self._path.read_text("utf-8")
        except OSError as error:
            raise NoPassword(
                f"the password file {str(self._path)!a} cannot be read: {error.strerror}: "
                f"write the password there, or mend its rights"
            ) from None
        except UnicodeDecodeError:
            raise NoPassword(
                f"the password file {str(self._path)!a} is no UTF-8: write the password there"
            ) from None
        password = text.rstrip("\r\n")
        if not password:
            raise NoPassword(f"the password file {str(self._path)!a} is empty: write the password there")
        return (self._user, password) if self._user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The same: a small file of this machine is read in less time than a thread takes to start."""
        return self.get_credentials()
