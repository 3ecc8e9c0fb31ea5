"""Which keys a command has, and their names in what Redis says of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.exceptions import ResponseError

MOST_NAMED = 4

_NO_KEY = {
    "ACL", "AUTH", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "ECHO", "INFO", "PING", "PUBLISH",
    "ROLE", "SCAN", "SCRIPT", "TIME", "WAIT", "WAITAOF",
}  # fmt: skip
_KEY_SECOND = {"MEMORY", "OBJECT", "XINFO"}
_ALL_KEYS = {"DEL", "EXISTS", "TOUCH", "UNLINK"}


def keys_of(command: Sequence[Any]) -> list[str | bytes]:
    """The keys of a command of the kinds that this project sends; none for those that have no key."""
    name = str(command[0]).upper()
    if name in _NO_KEY:
        return []
    if name in ("EVALSHA", "EVAL"):
        found: Iterable[Any] = command[3 : 3 + int(command[2])]
    elif name in ("XREAD", "XREADGROUP"):
        words = [word.upper() if isinstance(word, str) else word for word in command]
        rest = command[words.index("STREAMS") + 1 :]
        found = rest[: len(rest) // 2]
    elif name in _ALL_KEYS:
        found = command[1:]
    else:
        found = command[2:3] if name in _KEY_SECOND else command[1:2]
    return [key if isinstance(key, bytes) else str(key) for key in found]


def name_keys(commands: Sequence[Sequence[Any]], replies: list[Any]) -> None:
    """Let those of `replies` that say that a key has another type say which one: Redis does not."""
    for place, (command, reply) in enumerate(zip(commands, replies, strict=True)):
        if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
            keys, more = keys_of(command), []
            if len(keys) > MOST_NAMED:
                keys, more = keys[:MOST_NAMED], ["..."]
            named = [key if isinstance(key, str) else key.decode("utf-8", "replace") for key in keys]
            replies[place] = ResponseError(f"{reply}; key {', '.join(named + more)}")
