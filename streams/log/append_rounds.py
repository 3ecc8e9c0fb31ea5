"""Appends to many streams in one write: grouped by what one call does, and repeated where that helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.collecting import collector_at_rest
from streamlease.streams.log.appends import (
    TOGETHER,
    Append,
    Appended,
    answers_of,
    behind,
    grouped,
    newer,
    outcome_of,
    versions_command,
)
from streamlease.streams.redis.connection import Redis, ask, is_cluster
from streamlease.streams.redis.durability import WAIT_SECONDS
from streamlease.streams.redis.durable import run_settled
from streamlease.streams.redis.scripts import Call

CallOf = Callable[[Sequence[Append]], Call]
"""Makes the one call that does all appends of a group."""


async def write_appends(
    redis: Redis,
    appends: Sequence[Append],
    call_of: CallOf,
    *,
    wait_seconds: float = WAIT_SECONDS,
    evolve: bool = True,
) -> list[Appended | StreamleaseError]:
    """Append entries to different streams; outcomes in order, each on its own. See ``AsyncLog.append_many``.

    Raises:
        InvalidInput: a stream occurs twice.
        StoreUnavailable: nothing was written.
        Indefinite: each may have been written, or not.
    """
    # The keys of two streams of a cluster lie in two slots.
    together = 1 if is_cluster(redis) else TOGETHER
    outcomes = await _outcomes(redis, appends, call_of, wait_seconds, together)
    late = [place for place, one in enumerate(appends) if evolve and behind(one, outcomes[place])]
    if late:
        replies = await ask(redis, [versions_command(appends[place]) for place in late])
        again = newer({place: appends[place] for place in late}, replies)
        if again:
            repeated = await write_appends(redis, [*again.values()], call_of, wait_seconds=wait_seconds)
            for place, outcome in zip(again, repeated, strict=True):
                outcomes[place] = outcome
    return outcomes


async def _outcomes(
    redis: Redis, appends: Sequence[Append], call_of: CallOf, seconds: float, together: int
) -> list[Appended | StreamleaseError]:
    """Append in one write, with at most `together` appends in one call."""
    with collector_at_rest(len(appends)):
        groups = [*grouped(appends, together)]
        choices = {append.durability for append in appends}
        calls = [*map(call_of, groups)]
    answers, waits = await run_settled(redis, calls, [*choices], seconds)
    outcomes: dict[StreamId, Appended | StreamleaseError] = {}
    alone: list[Append] = []
    with collector_at_rest(len(appends)):
        for group, answer in zip(groups, answers, strict=True):
            each = answers_of(group, answer)
            if each is None:
                alone += group
            else:
                for append, own in zip(group, each, strict=True):
                    outcomes[append.stream] = outcome_of(append, waits, own)
    if alone:
        try:
            repeated = await _outcomes(redis, alone, call_of, seconds, 1)
        except (StoreUnavailable, Indefinite) as error:
            repeated = [error] * len(alone)
        outcomes.update((append.stream, one) for append, one in zip(alone, repeated, strict=True))
    return [outcomes[append.stream] for append in appends]
