"""Inboxes: how clients that know nothing but ``XADD`` feed a space.

::

    XADD sl:{inbox:SPACE} * topic T payload P [key K] [any other field: a header]

A mover, one per leader host, looks at the inboxes of all spaces, appends what it finds and deletes it then.
The position of the last message moved stands in the streams themselves (``transfer``), so a crash between
append and deletion adds nothing twice, and neither do two movers. A mark with a time limit only keeps hosts
from doing the same work at once.

An entry that can be no message, because its topic is missing or outside of the space, or its payload does
not fit the schema, goes into ``sl:{inbox:SPACE}:refused`` with the reason, so that it holds up nothing.
"""

from __future__ import annotations

import logging

from streamlease.protocol.errors import InvalidInput, SchemaMismatch, StreamleaseError, UnknownSpace
from streamlease.streams.connection import AsyncRedis, Command, ask
from streamlease.streams.keys import inbox_mover, inbox_refused, space_inbox
from streamlease.streams.plain import Entry, Mapping, PlainReader
from streamlease.streams.scripts import load_script
from streamlease.streams.spaces import Space, SpaceStore
from streamlease.streams.transfer import Item, Transfer

LOOK_SECONDS = 0.5
"""How often the inboxes are looked at."""

MARK_MS = 10_000
MOST_REFUSED = 10_000
"""About how many refused entries an inbox keeps."""

log = logging.getLogger(__name__)


class InboxMover:
    """Moves the inboxes of all spaces.

    Args:
        who: name of this mover, such as that of its host.
    """

    def __init__(self, redis: AsyncRedis, who: str) -> None:
        self._redis = redis
        self._who = who
        self._spaces = SpaceStore(redis)
        self._transfers: dict[str, Transfer] = {}

    async def round(self) -> int:
        """Move what is there now, of those spaces that no other mover works at; how many entries.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        spaces = [space for space in await self._spaces.list() if not space.ended]
        asked: list[Command] = [("XLEN", space_inbox(space.name)) for space in spaces]
        lengths = await ask(self._redis, asked) if asked else []
        moved = 0
        for space, length in zip(spaces, lengths, strict=True):
            if length and await self._mark(space.name):
                try:
                    moved += await self.move(space)
                except StreamleaseError as error:
                    log.warning("inbox of space %s: %s", space.name, error)
                finally:
                    await self._unmark(space.name)
        self._transfers = {space.name: one for space in spaces if (one := self._transfers.get(space.name))}
        return moved

    async def move(self, space: Space) -> int:
        """Move all entries that are in the inbox of `space`; how many."""
        key = space_inbox(space.name)
        reader = PlainReader(self._redis, key, (-1, -1))
        mapping = Mapping(
            topic_field="topic",
            payload_field="payload",
            key_field="key",
            typed=space.newest_schema is not None,
            named=False,
        )
        transfer = self._transfers.get(space.name)
        if transfer is None:
            transfer = Transfer(self._redis, f"inbox:{space.name}", space=space.name, spaces=self._spaces)
            self._transfers[space.name] = transfer
        moved = 0
        while entries := await reader.next():
            items: list[Item] = []
            for entry in entries:
                try:
                    item = mapping.item(key, entry)
                    await transfer.check(item)
                    items.append(item)
                except (InvalidInput, SchemaMismatch, UnknownSpace) as error:
                    await self._refuse(space, entry, error)
            await transfer.put(items)
            taken: Command = ("XDEL", key, *(entry.id for entry in entries))
            await ask(self._redis, [taken, ("PEXPIRE", inbox_mover(space.name), MARK_MS)])
            moved += len(items)
        return moved

    async def _refuse(self, space: Space, entry: Entry, error: StreamleaseError) -> None:
        log.warning("inbox of space %s: %s", space.name, error)
        fields = [part for pair in entry.fields for part in pair]
        await load_script("streamlease.streams", "refuse").run(
            self._redis,
            [space_inbox(space.name), inbox_refused(space.name)],
            [entry.id, MOST_REFUSED, str(error), *fields],
        )

    async def _mark(self, space: str) -> bool:
        (set_,) = await ask(self._redis, [("SET", inbox_mover(space), self._who, "NX", "PX", MARK_MS)])
        return set_ is not None

    async def _unmark(self, space: str) -> None:
        (who,) = await ask(self._redis, [("GET", inbox_mover(space))])
        if who == self._who.encode():
            await ask(self._redis, [("DEL", inbox_mover(space))])
