"""The ways to read without a group: each stream as it is, or by epochs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from streamlease.agent.collections.catalog_messages import CatalogMessages
from streamlease.agent.epochs.epoch_reading import EpochSubscription, checked_mode
from streamlease.agent.own_parts import OwnParts
from streamlease.agent.plain.listening import PlainSubscription
from streamlease.agent.plain.selecting import ByFilter, WholeSpace, check_plain
from streamlease.catalog.shown import Shown
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.offsets import offset_of
from streamlease.protocol.topics import is_of_catalog
from streamlease.registry.starts import Start
from streamlease.streams.entries.schemas import SchemaLike
from streamlease.streams.log.tails import Tails
from streamlease.streams.log.times import MICROSECOND, microseconds
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore

if TYPE_CHECKING:
    from streamlease.agent.membership.agent import Agent
    from streamlease.catalog.followed import Catalog

Since = int | datetime | Mapping[str, int] | None
"""The last offset that is known already, of each stream or by stream, or a moment; None: nothing is known."""

FOLLOWED = 4096
"""Most messages in a batch of a space that is followed."""


def after(since: Since) -> Start:
    """The start at what came right after `since`; None: the earliest.

    Raises:
        InvalidInput: the moment has no time zone.
        InvalidOption: it is no point in a stream.
    """
    if since is None:
        return "earliest"
    if isinstance(since, datetime):
        microseconds(since)
        return since + MICROSECOND
    if isinstance(since, Mapping):
        return {stream: offset_of(f"since of {stream}", offset) + 1 for stream, offset in since.items()}
    if not isinstance(since, int) or isinstance(since, bool):
        raise InvalidOption(f"since is {ascii(since)[:80]}: use an offset, a datetime, or offsets by stream")
    return since + 1


def read_plain(
    redis: AsyncRedis,
    tails: Tails,
    spaces: SpaceStore,
    agent: Callable[[], Awaitable[Agent]],
    catalog: Callable[[str], Catalog],
    shown: Shown,
    readers: OwnParts,
    filter: str,
    start: Start,
    epochs: str,
    max_batch: int,
    schema: SchemaLike | None,
    *,
    follow: bool,
) -> PlainSubscription | EpochSubscription | CatalogMessages:
    """What ``client.listen`` and ``client.history`` return; see there.

    Raises:
        InvalidTopic, InvalidOption: an argument is not acceptable.
        InvalidInput: the catalog has no such collection.
    """
    filter = check_plain(filter)
    if is_of_catalog(filter):
        if epochs != "off" or schema is not None:
            raise InvalidOption(f"{ascii(filter)[:80]} has no epochs and no schema: leave them out")
        return CatalogMessages(filter, catalog, start, follow=follow, max_batch=max_batch, shown=shown)
    common: dict[str, Any] = {
        "follow": follow,
        "schema": schema,
        "need_keepers": _keepers_of(agent),
        "shown": shown,
    }
    if epochs != "off":
        return readers.add(EpochSubscription(redis, spaces, filter, start, checked_mode(epochs), **common))
    return readers.add(
        PlainSubscription(redis, tails, spaces, ByFilter(filter), start, max_batch=max_batch, **common)
    )


def follow_space(
    redis: AsyncRedis, tails: Tails, spaces: SpaceStore, agent: Callable[[], Awaitable[Agent]], space: str
) -> PlainSubscription:
    """All messages of one space, whatever their topics, as they come from now on; see ``client.listen``.

    Where Redis lost messages that were read, as in a failover, it ends with ``MissingOffsets``, and no others
    ever get their offsets.

    Raises:
        UnknownSpace: when entered, there is none.
    """
    common: dict[str, Any] = {
        "follow": True, "max_batch": FOLLOWED, "need_keepers": _keepers_of(agent), "keep_offsets": True
    }  # fmt: skip
    return PlainSubscription(redis, tails, spaces, WholeSpace(space), "latest", **common)


def read_spaces(
    redis: AsyncRedis, tails: Tails, spaces: SpaceStore, some: Sequence[str], since: Since
) -> PlainSubscription:
    """All messages of some spaces that are there now, whatever their topics; see ``client.history``.

    Raises:
        UnknownSpace: when entered, one is not there.
    """
    return PlainSubscription(
        redis, tails, spaces, WholeSpace(*some), after(since), follow=False, max_batch=FOLLOWED
    )


def _keepers_of(agent: Callable[[], Awaitable[Agent]]) -> Callable[[], Awaitable[None]]:
    async def need_keepers() -> None:
        (await agent()).need_keepers()

    return need_keepers
