"""Points in time as operators write them: a time of day, or a duration from now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.quantities import LATEST, parse_duration

if TYPE_CHECKING:
    from streamlease.streams.redis.connection import AsyncRedis


def parse_time(text: str) -> int | None:
    """An ISO-8601 time in milliseconds since 1970, or None; without a zone it is of this machine."""
    try:
        return round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


async def parse_moment(redis: AsyncRedis, what: str, text: str, *, ahead: bool) -> int:
    """`text` as milliseconds since 1970 by the clock of Redis.

    Args:
        what: name of the option, for the message.
        ahead: whether a duration counts forward from now, or back.

    Raises:
        InvalidOption: neither a time nor a duration, or a time that is on the wrong side of now.
    """
    from streamlease.streams.log.times import server_time

    now = await server_time(redis) // 1000
    moment = parse_time(text)
    if moment is None:
        try:
            length = parse_duration(what, text)
        except InvalidOption:
            raise InvalidOption(
                f"{what} {ascii(text)[:80]} is neither a time such as 2026-01-31T12:00:00Z "
                f"nor a duration such as 10m"
            ) from None
        moment = now + length if ahead else max(0, now - length)
    if moment > LATEST:
        raise InvalidOption(f"{what} {ascii(text)[:80]} is too far ahead: 9999-12-31T23:59:59Z is the latest")
    if ahead and moment <= now:
        raise InvalidOption(
            f"{what} {ascii(text)[:80]} has passed: give a later time, or a duration such as 10m"
        )
    return moment
