"""What the catalog has of groups: who leads them, and whose their streams are.

Who leads is a record of each group; whose a stream is, is what the records of its journal come to, and a
follower folds them as a new leader would. So a leader does nothing for followers but publish that it wrote.

A journal says whose a stream was when its leader wrote last. While nobody leads, nobody says that those who
are named there are alive: then they hold nothing, until the next leader says what they hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import Any

from streamlease.catalog.catalog_cursors import no_cursor
from streamlease.catalog.item_sources import POINT, ItemChange, differences
from streamlease.catalog.items import CatalogItem, LeaderItem, LeaseItem
from streamlease.leader.journal import Recovery, recover, recover_behind, recover_upto
from streamlease.protocol.errors import CatalogTruncated, InvalidTopic, StreamleaseError
from streamlease.protocol.seldom import Seldom
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import leadership
from streamlease.registry.groups import Groups
from streamlease.registry.keys import GROUPS_NEWS
from streamlease.registry.keys import news as group_news
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.damaged import is_damage
from streamlease.streams.redis.lines.bells import Bells

_logger = logging.getLogger(__name__)


class GroupBell:
    """Notes of which group something was pushed."""

    def __init__(self, group: str, due: set[str], changed: asyncio.Event) -> None:
        self._group = group
        self._due = due
        self._changed = changed

    def set(self) -> None:
        """Something was pushed."""
        self._due.add(self._group)
        self._changed.set()


class GroupSource:
    """A collection with items of each group, which is looked at again when something of it is pushed."""

    def __init__(self, redis: AsyncRedis) -> None:
        self._redis = redis
        self._groups = Groups(redis)
        self._items: dict[str, dict[str, CatalogItem]] = {}
        """Of each group that was looked at."""
        self._due: set[str] = set()
        """Groups to look at again."""
        self._bells: Bells | None = None
        self._changed = asyncio.Event()
        self._watched: dict[str, GroupBell] = {}

    def watch(self, bells: Bells, changed: asyncio.Event) -> None:
        """Have `changed` set when something may be new."""
        self._bells, self._changed = bells, changed
        bells.watch_channel(GROUPS_NEWS, changed)
        for name in self._items:
            self._watch(name)

    def look_again(self) -> None:
        """Look at all groups next time."""
        self._due.update(self._items)

    async def everything(self) -> dict[str, CatalogItem]:
        """All items, by key."""
        self._due.update(self._items)
        await self._look()
        return self._all()

    def _all(self) -> dict[str, CatalogItem]:
        return {key: item for items in self._items.values() for key, item in items.items()}

    async def as_of(self, at: Any) -> dict[str, CatalogItem]:
        """All items at a point that was told before, by key."""
        raise NotImplementedError

    async def since(self, at: Any) -> list[ItemChange]:
        """What changed from a point that was told before."""
        return differences(await self.as_of(at), self._all())

    async def between(self, at: Any, end: Any) -> list[ItemChange]:
        """What changed from one point that was told before to a later one."""
        return differences(await self.as_of(at), await self.as_of(end))

    async def news(self) -> list[ItemChange]:
        """What changed."""
        former = dict(self._items)
        looked = await self._look()
        changes: list[ItemChange] = []
        for name in looked:
            changes += differences(former.get(name, {}), self._items.get(name, {}))
        return changes

    async def _look(self) -> list[str]:
        """Look at groups that came and at those that are due; which these were, and those that went."""
        groups = {str(group): group for group in await self._groups.list()}
        gone = [name for name in self._items if name not in groups]
        due = [name for name in groups if name in self._due or name not in self._items]
        self._due.clear()
        try:
            found = await self._read([groups[name] for name in due])
        except BaseException:
            self._due.update(due)
            raise
        for name in gone:
            del self._items[name]
            if self._bells is not None and name in self._watched:
                self._bells.forget_channel(_channel(name), self._watched.pop(name))
        self._items |= found
        for name in found:
            self._watch(name)
        return [*due, *gone]

    async def _read(self, groups: list[SharedSubscription]) -> dict[str, dict[str, CatalogItem]]:
        raise NotImplementedError

    def _watch(self, name: str) -> None:
        if self._bells is not None and name not in self._watched:
            # With the subscription it is set once more: what came meanwhile is seen.
            self._watched[name] = GroupBell(name, self._due, self._changed)
            self._bells.watch_channel(_channel(name), self._watched[name])


class LeaderSource(GroupSource):
    """Who leads which group. Its points are the items themselves, one for each group."""

    @property
    def at(self) -> dict[str, Any]:
        """The point up to which everything was told."""
        items = [item for one in self._items.values() for item in one.values()]
        return {item.subscription: [item.host, item.term] for item in items if isinstance(item, LeaderItem)}

    async def as_of(self, at: Any) -> dict[str, CatalogItem]:
        """What a point says itself.

        Raises:
            InvalidInput: it is no such point.
        """
        if not isinstance(at, Mapping):
            raise no_cursor("leaders")
        try:
            return {
                name: LeaderItem(subscription=name, host=host, term=term) for name, (host, term) in at.items()
            }
        except (TypeError, ValueError):
            raise no_cursor("leaders") from None

    async def _read(self, groups: list[SharedSubscription]) -> dict[str, dict[str, CatalogItem]]:
        records = await leadership.read_all(self._redis, [group.id for group in groups])
        found: dict[str, dict[str, CatalogItem]] = {}
        for group in groups:
            name, record = str(group), records[group.id]
            found[name] = {name: LeaderItem(subscription=name, host=record.leader, term=record.term)}
        return found


UNLED = "unled"
"""The point of a group that nobody leads: it has no leases, whatever its journal says."""


class LeaseSource(GroupSource):
    """Which stream of a group is whose, while somebody leads it. Its points are entries of the journals.

    A journal that cannot be read is said, and its group has no leases.
    """

    def __init__(self, redis: AsyncRedis) -> None:
        super().__init__(redis)
        self._folded: dict[str, Recovery] = {}
        """What the journal of each group comes to."""
        self._unled: set[str] = set()
        """Groups that nobody leads."""
        self._seldom = Seldom(_logger)

    @property
    def at(self) -> dict[str, str]:
        """The point up to which everything was told."""
        return {
            name: UNLED if name in self._unled else self._folded[name].last_id.decode()
            for name in self._items
            if name in self._unled or name in self._folded
        }

    async def as_of(self, at: Any) -> dict[str, CatalogItem]:
        """What the journals come to at a point that was told before.

        Raises:
            CatalogTruncated: it is not kept any more.
            InvalidInput: it is no such point.
        """
        if not isinstance(at, Mapping):
            raise no_cursor("leases")
        former: dict[str, CatalogItem] = {}
        for name, last_id in at.items():
            try:
                group, last = SharedSubscription.parse(name), last_id.encode("ascii")
            except (AttributeError, UnicodeEncodeError, InvalidTopic):
                raise no_cursor("leases") from None
            if last_id == UNLED:
                continue
            if not POINT.fullmatch(last_id):
                raise no_cursor("leases")
            if self.at.get(name) == last_id:
                former |= self._items[name]
                continue
            folded = await self._readable(group, recover_upto(self._redis, group.id, last))
            if folded is None:
                raise CatalogTruncated("leases")
            former |= _leases(name, folded)
        return former

    async def _read(self, groups: list[SharedSubscription]) -> dict[str, dict[str, CatalogItem]]:
        found: dict[str, dict[str, CatalogItem]] = {}
        records = await leadership.read_all(self._redis, [group.id for group in groups])
        for group in groups:
            name = str(group)
            if records[group.id].leader is None:
                self._unled.add(name)
                found[name] = {}
                continue
            self._unled.discard(name)
            # If reading fails in the middle, the state is of no entry: begin anew then.
            folded = await self._readable(group, self._fold(group, self._folded.pop(name, None)))
            found[name] = {}
            if folded is not None:
                self._folded[name], found[name] = folded, _leases(name, folded)
        return found

    async def _fold(self, group: SharedSubscription, former: Recovery | None) -> Recovery:
        further = None if former is None else await recover_behind(self._redis, group.id, former)
        return further or await recover(self._redis, group.id)

    async def _readable(
        self, group: SharedSubscription, reading: Awaitable[Recovery | None]
    ) -> Recovery | None:
        try:
            return await reading
        except StreamleaseError as error:
            if not is_damage(error):
                raise
            self._seldom.warning("the leases of %s are left out: %s", group, error)
            return None


def _leases(subscription: str, folded: Recovery) -> dict[str, CatalogItem]:
    return {
        f"{subscription} {stream}": LeaseItem(
            subscription=subscription, stream=stream, borrower=one.owner, lease_epoch=one.lease_epoch
        )
        for stream, one in folded.state.streams.items()
        if one.owner is not None
    }


def _channel(name: str) -> str:
    return group_news(SharedSubscription.parse(name).id)
