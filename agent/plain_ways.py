"""The ways to read without a group: each stream as it is, or by epochs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from streamlease.agent.epochs.epoch_reading import EpochSubscription, checked_mode
from streamlease.agent.listening import PlainSubscription, after, check_plain
from streamlease.registry.starts import Start
from streamlease.streams.entries.schemas import SchemaLike
from streamlease.streams.log.tails import Tails
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore

if TYPE_CHECKING:
    from streamlease.agent.membership.agent import Agent

__all__ = ["after", "read_plain"]


def read_plain(
    redis: AsyncRedis,
    tails: Tails,
    spaces: SpaceStore,
    agent: Callable[[], Awaitable[Agent]],
    filter: str,
    start: Start,
    epochs: str,
    max_batch: int,
    schema: SchemaLike | None,
    *,
    follow: bool,
) -> PlainSubscription | EpochSubscription:
    """What ``client.listen`` and ``client.history`` return; see there.

    Raises:
        InvalidTopic, InvalidOption: an argument is not acceptable.
    """
    check_plain(filter)
    if epochs == "off":
        return PlainSubscription(
            redis, tails, spaces, filter, start, follow=follow, max_batch=max_batch, schema=schema
        )
    mode = checked_mode(epochs)
    return EpochSubscription(redis, spaces, agent, filter, start, mode, follow=follow, schema=schema)
