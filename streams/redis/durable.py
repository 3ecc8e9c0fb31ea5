"""Script calls that count as done only once they are as durable as demanded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakSet

from redis.exceptions import ResponseError

from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.redis.cluster_slots import Answer
from streamlease.streams.redis.connection import Command, Redis, address, identity, refusal
from streamlease.streams.redis.durability import (
    ASK_CONFIGURATION,
    MEMORY,
    WAIT_SECONDS,
    Durability,
    why_not_always,
)
from streamlease.streams.redis.scripts import Call, run_waiting


class Waits:
    """The commands that make one pipeline durable, and what their replies mean.

    Args:
        client: whose server it is; a server is asked once what it knows.
        choices: all that the appends of the pipeline demand.
        seconds: how long the server may wait, for each command.
    """

    def __init__(
        self,
        client: Redis,
        choices: Iterable[Durability],
        seconds: float = WAIT_SECONDS,
    ) -> None:
        self._client = client
        self._seconds = seconds
        self._choices = sorted({choice for choice in choices if choice != MEMORY})
        self.commands: tuple[Command, ...] = tuple(map(self._command, self._choices))

    def _command(self, choice: Durability) -> Command:
        milliseconds = max(1, round(self._seconds * 1000))
        if choice.kind == "replicated":
            return ("WAIT", choice.copies, milliseconds)
        if _has_no_waitaof(self._client):
            return ASK_CONFIGURATION
        return ("WAITAOF", 1, 0, milliseconds)

    def failure(self, choice: Durability, replies: Sequence[Any]) -> str:
        """Why what was written is not as durable as `choice`; empty if it is.

        Args:
            replies: those to `commands`, in order.
        """
        if choice == MEMORY:
            return ""
        place = self._choices.index(choice)
        if len(replies) <= place:
            return "the server did not say"
        return _judge(choice, self.commands[place], replies[place], self._seconds, self._client)

    def missing(self, replies: Sequence[Any]) -> bool:
        """Whether the server turned out to know no ``WAITAOF``; from now on it is asked otherwise."""
        unknown = any(
            command[0] == "WAITAOF" and isinstance(reply, ResponseError) and _is_unknown(reply)
            for command, reply in zip(self.commands, replies, strict=False)
        )
        if unknown:
            _WITHOUT_WAITAOF.add(identity(self._client))
        return unknown


_WITHOUT_WAITAOF: WeakSet[Any] = WeakSet()
"""Connection pools of servers older than Redis 7.2. Only saves a round trip: each reply is judged anew."""


def _has_no_waitaof(client: Redis) -> bool:
    return identity(client) in _WITHOUT_WAITAOF


def _is_unknown(reply: ResponseError) -> bool:
    return "unknown command" in str(reply).lower()


def _judge(choice: Durability, command: Command, reply: Any, seconds: float, client: Redis) -> str:
    if isinstance(reply, ResponseError):
        return f"Redis at {address(client)} answered {command[0]!s} with: {' '.join(str(reply).split())}"
    if command[0] == "WAIT":
        have = int(reply)
        late = f"{have} of {choice.copies} replicas confirmed it within {seconds:g} s"
        return "" if have >= choice.copies else late
    if command[0] == "WAITAOF":
        return "" if int(reply[0]) >= 1 else f"it did not reach the disk within {seconds:g} s"
    return why_not_always(reply)


async def run_settled(
    client: Redis, calls: Sequence[Call], choices: Sequence[Durability], seconds: float = WAIT_SECONDS
) -> tuple[list[Answer], Waits]:
    """Run `calls` in one write, with the waits for all of `choices` behind them.

    A server that turns out to know no ``WAITAOF`` gets the calls once more, so they must bear a repetition.

    Raises:
        StoreUnavailable: nothing ran.
        Indefinite: each of them ran, or did not.
    """
    while True:
        waits = Waits(client, choices, seconds)
        answers = await run_waiting(client, calls, waits.commands)
        if sum(waits.missing(answer.waited) for answer in answers) == 0:
            return answers, waits


async def run_durably(
    client: Redis, call: Call, choices: Sequence[Durability], seconds: float = WAIT_SECONDS
) -> tuple[Any, str]:
    """Run one call; its reply, and why it is not as durable as all of `choices`, or an empty text.

    Raises:
        StoreUnavailable, StoreRefused: it did not run.
        Indefinite: it ran, or it did not.
    """
    (answer,), waits = await run_settled(client, [call], choices, seconds)
    if isinstance(answer.reply, ResponseError):
        raise refusal(answer.reply)
    if isinstance(answer.reply, StreamleaseError):
        raise answer.reply
    reasons = (waits.failure(choice, answer.waited) for choice in choices)
    return answer.reply, next(filter(None, reasons), "")
