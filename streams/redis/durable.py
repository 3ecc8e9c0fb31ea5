"""Script calls that count as done only once they are as durable as demanded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.redis.cluster import Answer
from streamlease.streams.redis.connection import Redis, refusal
from streamlease.streams.redis.durability import WAIT_SECONDS, Durability, Waits
from streamlease.streams.redis.scripts import Call, run_waiting


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
