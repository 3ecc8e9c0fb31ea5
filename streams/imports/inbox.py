"""Inboxes: how clients that know nothing but ``XADD`` feed a space.

::

    XADD sl:{inbox:SPACE} * topic T payload P [key K] [any other field: a header]

A mover, one per leader host, looks at the inboxes of all spaces, appends what it finds and deletes it then.
The position of the last message moved stands in the streams themselves (``transfer``), so a crash between
append and deletion adds nothing twice, and neither do two movers. A mark with a time limit only keeps hosts
from doing the same work at once.

A mover waits for entries with one blocking read of all inboxes. In a cluster no read spans the servers, and
for what is no stream nobody can wait: there it looks at the lengths of all inboxes every ``LOOK_SECONDS``.

An entry cannot become a message if its topic is missing or outside the space, its payload does not fit the
schema, or its id is above the highest position. It goes to ``sl:{inbox:SPACE}:refused`` with the reason, so
that it holds up nothing.
"""

from __future__ import annotations

import asyncio
import logging

from streamlease.protocol.errors import InvalidInput, SchemaMismatch, StreamleaseError, UnknownSpace
from streamlease.protocol.seldom import Seldom
from streamlease.streams.imports.redis_streams import Entry, Mapping, PlainReader, fits
from streamlease.streams.imports.transfer import Item, Transfer
from streamlease.streams.log.keys import inbox_mover, inbox_refused, space_inbox
from streamlease.streams.redis.connection import AsyncRedis, Command, ask, ask_each, is_cluster
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.spaces import Space, SpaceStore

LOOK_SECONDS = 0.5
"""How long a mover pauses after it has looked at the inboxes."""

WAIT_MS = 1000
"""How long one read waits for entries: so late a mover may notice a new space."""

MARK_MS = 10_000
MOST_REFUSED = 10_000
"""About how many refused entries an inbox keeps."""

KEPT_FIELDS = 2000
"""How many fields of a refused entry are kept: a script cannot hand on more than some thousands at once."""

log = logging.getLogger(__name__)


class InboxMover:
    """Moves the inboxes of all spaces.

    Args:
        who: name of this mover, such as that of its host.
        spaces: those of whoever hears of each definition that changes, and has it read anew; None: its own,
            which it reads before each wait.
    """

    def __init__(self, redis: AsyncRedis, who: str, spaces: SpaceStore | None = None) -> None:
        self._redis = redis
        self._seldom = Seldom(log)
        self._who = who
        self._spaces = spaces or SpaceStore(redis)
        self._look = self._spaces.look if spaces is None else spaces.recent
        self._transfers: dict[str, Transfer] = {}
        self._apart = is_cluster(redis)

    async def wait(self) -> bool:
        """Wait a while for entries; whether there may be any.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        inboxes = [space_inbox(space.name) for space in await self._open_spaces()]
        if not inboxes:
            await asyncio.sleep(WAIT_MS / 1000)
        if self._apart or not inboxes:
            return bool(inboxes)
        wait: Command = ("XREAD", "COUNT", 1, "BLOCK", WAIT_MS, "STREAMS", *inboxes, *["0-0"] * len(inboxes))
        (found,) = await ask_each(self._redis, [wait])
        return bool(found)  # an error too: one of them is no stream, and each is looked at by itself

    async def _open_spaces(self) -> list[Space]:
        return [space for space in (await self._look()).listed if not space.ended]

    async def round(self) -> int:
        """Move what is there now, of those spaces that no other mover works at; how many entries.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        spaces = await self._open_spaces()
        asked: list[Command] = [("XLEN", space_inbox(space.name)) for space in spaces]
        lengths = await ask_each(self._redis, asked) if asked else []
        moved = 0
        for space, length in zip(spaces, lengths, strict=True):
            if isinstance(length, StreamleaseError):
                self._seldom.warning("inbox of space %s: %s", space.name, length)
            elif length:
                try:
                    moved += await self._move_if_free(space)
                except StreamleaseError as error:
                    self._seldom.warning("inbox of space %s: %s", space.name, error)
        self._transfers = {space.name: one for space in spaces if (one := self._transfers.get(space.name))}
        return moved

    async def _move_if_free(self, space: Space) -> int:
        if not await self._mark(space.name):
            return 0
        try:
            return await self.move(space)
        finally:
            await self._unmark(space.name)

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
            taken: list[bytes] = []
            unfit: list[tuple[Entry, StreamleaseError]] = []
            for entry in entries:
                try:
                    item = mapping.item(key, entry)
                    await transfer.check(item)
                    items.append(item)
                    taken.append(entry.id)
                except (InvalidInput, SchemaMismatch, UnknownSpace) as error:
                    unfit.append((entry, error))
            await transfer.put(items)
            commands: list[Command] = [("PEXPIRE", inbox_mover(space.name), MARK_MS)]
            await ask(self._redis, [("XDEL", key, *taken), *commands] if taken else commands)
            for entry, why in unfit:
                await self._refuse(space, transfer, entry, why)
            moved += len(items)
        return moved

    async def _refuse(self, space: Space, transfer: Transfer, entry: Entry, error: StreamleaseError) -> None:
        log.warning("inbox of space %s: %s", space.name, error)
        fields: list[bytes | str | int] = [part for pair in entry.fields[:KEPT_FIELDS] for part in pair]
        if len(entry.fields) > KEPT_FIELDS:
            fields += ["refused-fields-left-out", len(entry.fields) - KEPT_FIELDS]
        behind = "" if fits(entry.position) else "{}-{}".format(*await transfer.newest(space.name))
        await load_script("streamlease.streams.imports", "refuse").run(
            self._redis,
            [space_inbox(space.name), inbox_refused(space.name)],
            [entry.id, MOST_REFUSED, behind, str(error), *fields],
        )

    async def _mark(self, space: str) -> bool:
        (set_,) = await ask(self._redis, [("SET", inbox_mover(space), self._who, "NX", "PX", MARK_MS)])
        return set_ is not None

    async def _unmark(self, space: str) -> None:
        (who,) = await ask(self._redis, [("GET", inbox_mover(space))])
        if who == self._who.encode():
            await ask(self._redis, [("DEL", inbox_mover(space))])
