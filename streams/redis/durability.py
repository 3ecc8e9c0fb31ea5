"""How safe an append must be before it is acknowledged: a choice of the space.

================ ======================= ===============================================================
choice           sent behind the appends what survives
================ ======================= ===============================================================
``memory``       nothing                 what the server's own configuration keeps; often not the last second
``fsync``        ``WAITAOF 1 0``         a crash of the server: it is in its append-only file
``replicated:K`` ``WAIT K``              the loss of the primary: K replicas have it in memory
================ ======================= ===============================================================

The command stands behind the appends in the same pipeline, on the same connection, because both commands
mean "what *this connection* wrote"; so the cost is one wait per pipeline, not per message. A server without
``WAITAOF`` (older than Redis 7.2) is asked for its configuration instead: with ``appendfsync always`` it
writes to disk before it answers.

A write that falls short of its durability is there, and may survive: ``NotDurable`` says where. A
repetition with the same sequence adds nothing; the script touches the publisher's record then, so that the
wait behind it covers the append of the former connection as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from redis.exceptions import ResponseError

from streamlease.protocol.errors import InvalidOption, NotDurable, Unsupported
from streamlease.streams.redis.connection import (
    Command,
    Redis,
    Server,
    address,
    exchange,
    servers,
)

MOST_COPIES = 16

WAIT_SECONDS = 5.0
"""How long a server may take to make one pipeline durable. Below the limit of one answer."""

ASK_CONFIGURATION: Command = ("CONFIG", "GET", "append*")


@dataclass(frozen=True, slots=True, order=True)
class Durability:
    """One of the three choices; ``str`` gives the form in which it is written."""

    kind: Literal["memory", "fsync", "replicated"] = "memory"
    copies: int = 0

    @classmethod
    @lru_cache(maxsize=64)
    def parse(cls, text: str) -> Durability:
        """The choice that `text` names.

        Raises:
            InvalidOption: it names none.
        """
        if text in ("memory", "fsync"):
            return cls("memory" if text == "memory" else "fsync")
        kind, colon, copies = text.partition(":") if isinstance(text, str) else ("", "", "")
        number = int(copies) if colon and copies.isascii() and copies.isdigit() else 0
        if kind == "replicated" and 1 <= number <= MOST_COPIES:
            return cls("replicated", number)
        raise InvalidOption(
            f"durability {text!a} is unknown: "
            f"use memory, fsync or replicated:K with K from 1 to {MOST_COPIES}"
        )

    def __str__(self) -> str:
        return f"{self.kind}:{self.copies}" if self.copies else self.kind


MEMORY = Durability()
FSYNC = Durability("fsync")


def strongest(choices: Iterable[Durability]) -> tuple[Durability, ...]:
    """What satisfies all of `choices` together: a write to disk and a number of copies know no order."""
    wanted = set(choices)
    copies = max((choice.copies for choice in wanted), default=0)
    replicated = (Durability("replicated", copies),) if copies else ()
    return (*((FSYNC,) if FSYNC in wanted else ()), *replicated)


def not_durable(what: str, choice: Durability, why: str, stream: str, offset: int) -> NotDurable:
    """The error for an append that is written, but not as durably as its space demands."""
    return NotDurable(
        f"{what} is written at offset {offset} of stream {stream}, but not as durably as {choice} demands: "
        f"{why}; it may still exist: look at the server, then publish again if it must be certain",
        stream,
        offset,
    )


def why_not_always(reply: Any) -> str:
    """What the answer to ``CONFIG GET append*`` lacks; empty if all is written to disk before an answer."""
    fields = {bytes(name).lower(): bytes(value) for name, value in zip(reply[::2], reply[1::2], strict=False)}
    if fields.get(b"appendonly") != b"yes":
        return "no append-only file is kept (appendonly no)"
    policy = fields.get(b"appendfsync", b"unknown").decode("utf-8", "replace")
    return "" if policy == "always" else f"appendfsync is {policy}, and the server has no WAITAOF"


async def check_durability(client: Redis, choice: Durability) -> None:
    """Whether the server can keep what `choice` promises, as it is configured now.

    Raises:
        Unsupported: it cannot.
        StoreUnavailable, Indefinite: it does not answer.
    """
    for server in await servers(client) if choice != MEMORY else ():
        await _check_server(server, choice)


async def _check_server(client: Server, choice: Durability) -> None:
    if choice.kind == "replicated":
        (reply,) = await exchange(client, [("INFO", "replication")])
        have = _field(reply, "connected_slaves")
        if have is None or int(have) < choice.copies:
            raise Unsupported(
                f"durability {choice} needs {choice.copies} replicas and Redis at {address(client)} has "
                f"{have or 'an unknown number'}: start more, or choose another durability"
            )
        return
    if choice.kind == "fsync":
        (known,) = await exchange(client, [("COMMAND", "INFO", "WAITAOF")])
        if not isinstance(known, ResponseError) and known and known[0]:
            (reply,) = await exchange(client, [("INFO", "persistence")])
            why = "" if _field(reply, "aof_enabled") == "1" else "no append-only file is kept (appendonly no)"
        else:
            (reply,) = await exchange(client, [ASK_CONFIGURATION])
            why = str(reply) if isinstance(reply, ResponseError) else why_not_always(reply)
        if why:
            raise Unsupported(
                f"durability fsync needs more than Redis at {address(client)} does: {why}; "
                f"run CONFIG SET appendonly yes (and before Redis 7.2: CONFIG SET appendfsync always)"
            )


def _field(reply: Any, name: str) -> str | None:
    if isinstance(reply, ResponseError):
        return None
    for line in bytes(reply).decode("utf-8", "replace").splitlines():
        if line.startswith(name + ":"):
            return line.partition(":")[2].strip()
    return None
