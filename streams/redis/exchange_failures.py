"""What each failure of an exchange with Redis means: one line that says what happened, and what to do.

::

    no connection was to be had        StoreUnavailable, StoreRefused   nothing was done
    it failed after sending began      Indefinite                       it was done, or it was not
    an error reply                     StoreRefused                     nothing was done
    what was to be sent is no text     InvalidInput, InvalidOption      nothing was done
"""

from __future__ import annotations

import re

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from streamlease.protocol.errors import (
    Indefinite,
    InvalidInput,
    InvalidOption,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
)
from streamlease.streams.redis.password_files import NoPassword

LOGIN = (AuthenticationError, AuthorizationError)
_NOT_IN_SCRIPT = ("ACL failure in script", "user executing the script can't run this command")
"""What Redis 7 and Redis 6.2 say if a script calls what its caller may not."""

_PLACE_IN_SCRIPT = re.compile(r",? script: (?:[0-9a-f]{40}, )?on @user_script:\d+\.?$")
"""Where in a script a command stood, as Redis 7 appends it: of no use where the cause is known."""

_LOADING = "loading the dataset"
"""What redis-py keeps of such a reply, if it came while the connection was made."""

FAILURES = (RedisConnectionError, RedisTimeoutError, OSError)


def unavailable(where: str, error: BaseException) -> StoreUnavailable:
    """The error for a Redis that cannot be reached, or that cannot do anything yet; nothing was done."""
    if isinstance(error, BusyLoadingError) or _LOADING in str(error):
        return StoreUnavailable(f"Redis at {where} is reading its data ({reason(error)}): wait until it has")
    return StoreUnavailable(
        f"Redis at {where} does not answer: {reason(error)}; "
        f"start it, or pass --redis URL / set STREAMLEASE_REDIS_URL"
    )


def indefinite(where: str, error: BaseException) -> Indefinite:
    """The error for a connection that failed between sending and the last reply."""
    return Indefinite(
        f"no answer came from Redis at {where} after sending ({reason(error)}): "
        f"it may have been done, or not; look, or repeat what is safe to repeat"
    )


def out_of_memory(error: ResponseError) -> bool:
    """Whether Redis refused a write because it is at its `maxmemory`."""
    return isinstance(error, OutOfMemoryError) or "OOM" in str(error)


def refusal(error: ResponseError) -> StreamleaseError:
    """What an error reply of Redis means to the user; nothing was done."""
    text = " ".join(str(error).split())
    cause = _PLACE_IN_SCRIPT.sub("", text)
    if out_of_memory(error):
        return StoreRefused(
            f"Redis is out of memory ({cause}): raise maxmemory, or shorten the retention of a space"
        )
    if isinstance(error, NoPermissionError) or any(said in text for said in _NOT_IN_SCRIPT):
        return StoreRefused(f"Redis does not let this user do that ({cause}): give the user the rights")
    if isinstance(error, ReadOnlyError) or "READONLY" in text:
        return StoreRefused(f"Redis is a read-only replica ({cause}): connect to its primary")
    if "WRONGTYPE" in text:
        return StoreRefused(f"a key in Redis has another type than it had ({text}): restore it from a backup")
    return StoreRefused(f"Redis answered with an error: {text}")


def no_login(where: str, error: BaseException) -> StreamleaseError:
    """The error for a login that the server refused, or for which there was no password."""
    if isinstance(error, NoPassword):
        return StoreUnavailable(f"cannot log in to Redis at {where}: {reason(error)}")
    return StoreRefused(
        f"Redis at {where} refused the login ({reason(error)}): put user and password into the URL, "
        f"or the password into its password_file"
    )


def _no_text(error: UnicodeEncodeError) -> InvalidInput:
    """The error for a value that cannot be sent; nothing was."""
    return InvalidInput(
        f"{ascii(error.object)[:80]} cannot be encoded as UTF-8 (lone surrogate): remove that character"
    )


def _no_text_in_url() -> InvalidOption:
    """The same for a login; which is not shown."""
    return InvalidOption(
        "the URL of Redis has a user, password or host that cannot be encoded as UTF-8 (lone surrogate): "
        "remove that character, or write it as %XX"
    )


def reason(error: BaseException) -> str:
    """What an error says, in one line."""
    text = " ".join(str(error).split())
    return text or ("it takes too long" if isinstance(error, TimeoutError) else type(error).__name__)


def not_connected(where: str, error: Exception) -> Exception:
    """What it means that no connection was to be had: nothing was sent."""
    if isinstance(error, LOGIN):
        return no_login(where, error)
    if isinstance(error, FAILURES):
        return unavailable(where, error)
    if isinstance(error, ResponseError):
        return refusal(error)
    return _no_text_in_url() if isinstance(error, UnicodeEncodeError) else error


def not_answered(where: str, commands: int, error: Exception) -> Exception:
    """What it means that a connection failed after sending of so many commands began."""
    if isinstance(error, LOGIN):
        return no_login(where, error)
    if isinstance(error, UnicodeEncodeError):
        return _no_text(error)
    if isinstance(error, BusyLoadingError) and commands == 1:
        return unavailable(where, error)
    return indefinite(where, error) if isinstance(error, (*FAILURES, RedisError)) else error
