"""What is remembered of a group's Spark queries outside its journal: hints, which expire by themselves.

Which session reads for a run of a query (`docs/decisions/0127-one-reader-of-a-group-in-a-query.md`); whose
checkpoint is behind its progress (`docs/decisions/0128-progress-tracked-later.md`); of which losses a query
has failed already (`docs/decisions/0165-a-loss-is-told-once.md`).
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlease.registry import keys
from streamlease.streams.redis.connection import AsyncRedis, BlockingRedis, ask, run_blocking
from streamlease.streams.redis.scripts import load_script

_REMEMBER = load_script("streamlease.registry", "remember")

READER_SECONDS = 86_400
"""How long it is known who reads for a run. Both readers of a run have tasks in its first micro-batch."""

LATE_SECONDS = 30 * 86_400
"""How long after a query ran it may go on from a checkpoint that is behind its progress."""

TOLD_SECONDS = 30 * 86_400
"""How long after a query failed of a loss it is not told again."""


def reader_of_run(redis: BlockingRedis, group: str, run: str, session: str) -> str:
    """The session that reads `group` for a run of a query: `session`, unless another one came first.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    remembered = _REMEMBER.run(redis, [keys.readers(group)], [run, session, READER_SECONDS])
    first: bytes = run_blocking(remembered)
    return first.decode()


async def note_late(redis: AsyncRedis, group: str, session: str) -> None:
    """Remember that the checkpoint of the session's query is written later than its micro-batches end.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    await _REMEMBER.run(redis, [keys.late(group)], [session, "late", LATE_SECONDS])


async def is_late(redis: AsyncRedis, group: str, session: str) -> bool:
    """Whether that was noted.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    (found,) = await ask(redis, [("HGET", keys.late(group), session)])
    return found is not None


async def note_told(redis: AsyncRedis, group: str, session: str, passed: Mapping[str, int]) -> None:
    """Remember that the session's query fails, because retention passed it in these streams from there on.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    for name in _told(session, passed):
        await _REMEMBER.run(redis, [keys.told(group)], [name, "told", TOLD_SECONDS])


async def untold(redis: AsyncRedis, group: str, session: str, passed: Mapping[str, int]) -> dict[str, int]:
    """Those of the streams `passed` for which that was not noted, with their offsets.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    (found,) = await ask(redis, [("HMGET", keys.told(group), *_told(session, passed))])
    return {
        stream: offset for (stream, offset), when in zip(passed.items(), found, strict=True) if when is None
    }


def _told(session: str, passed: Mapping[str, int]) -> list[str]:
    return [f"{session} {stream}@{offset}" for stream, offset in passed.items()]
