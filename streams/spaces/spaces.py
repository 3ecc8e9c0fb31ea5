"""Topic spaces: which topics belong together, and which streams hold them.

All definitions stand in one hash with one version. Whoever changes a definition first looks at all of
them, opens the streams that the new definition needs, and then writes it with the version it looked
at as the precondition; if anybody was faster, it looks again. So no two spaces ever overlap, and the
definition is the moment at which a space exists. A generation number is never used twice, even by a
space that is deleted and created again: a stream id names the same stream for ever.

Definitions are read and written in `streams/spaces/table.py`; how a space gets other streams is the subject
of `streams/spaces/altering.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from streamlease.protocol.errors import InvalidOption, SpaceConflict, UnknownSpace, Unsupported
from streamlease.protocol.ids import check_name
from streamlease.protocol.topics import CATALOG_TOPICS, check_filter, check_topic, is_of_catalog
from streamlease.streams import clock
from streamlease.streams.entries.schemas import Schema, SchemaLike
from streamlease.streams.log.keys import OF_EPOCHS, archive_table, epochs_part, inbox_refused, space_inbox
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import Redis, ask
from streamlease.streams.redis.durability import WAIT_SECONDS, Durability, check_durability
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.altering import Generations
from streamlease.streams.spaces.archive_place import another_place, check_place, leave_former, take_place
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.collection_settings import check_collection
from streamlease.streams.spaces.definitions import (
    MAX_STREAMS,
    Generation,
    ShardBy,
    ShardHash,
    Space,
    Spaces,
    check_compact_after,
    check_same,
    check_streams,
    streams_of,
)
from streamlease.streams.spaces.epoch_settings import TIMEOUT_MS, EpochSettings, check_not_merged
from streamlease.streams.spaces.known import Known
from streamlease.streams.spaces.retention import Retention
from streamlease.streams.spaces.space_options import archive_of, retention_of
from streamlease.streams.spaces.table import ATTEMPTS, DefinitionTable, too_busy

__all__ = ["MAX_STREAMS", "Generation", "Known", "ShardBy", "Space", "SpaceStore", "Spaces", "streams_of"]

_NOTE_LINEAGE = load_script("streamlease.streams.spaces", "note_lineage")


class SpaceStore:
    """The definitions of all spaces in one Redis.

    Args:
        wait_seconds: how long the server may take to make a change as durable as its space asks.
    """

    def __init__(self, redis: Redis, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._redis = redis
        self._log = AsyncLog(redis)
        self._table = DefinitionTable(redis, wait_seconds)
        self.generations = Generations(redis, self._table)

    def forget(self) -> None:
        """Let the next lookup read anew; for whoever found that a definition is out of date."""
        self._table.forget()

    async def create(
        self,
        name: str,
        topics: Iterable[str],
        *,
        streams: int = 1,
        shard_by: ShardBy = "topic",
        shard_hash: ShardHash | None = None,
        retention: Retention | str | None = None,
        durability: str = "memory",
        schema: SchemaLike | None = None,
        compact_after_ms: int | None = None,
        epochs: int = 0,
        epochs_timeout: float | None = None,
        epochs_on_loss: str | None = None,
        collection: bool = False,
        archive: ArchiveSettings | str | None = None,
    ) -> Space:
        """Create a space; if it exists with this same definition, that one.

        Args:
            topics: filters; a message belongs to the space if one of them matches its topic.
            streams: how many streams, 1 to 4096.
            shard_by: ``key`` spreads the messages of one topic by their key, where they have one.
            shard_hash: ``blake2b``, or ``sha256``, for programs in languages that have no BLAKE2b and append
                by themselves; None: the first, or what a space that exists has. It stays so.
            retention: what is kept, or an age, such as ``7d``; None keeps everything, and takes any of a
                space that exists.
            schema: typed columns instead of payloads: an Arrow schema, or the JSON form of ``schemas``.
            compact_after_ms: small entries are merged when they are so old; None merges none, and takes any
                age of a space that exists.
            durability: ``memory``, ``fsync`` or ``replicated:K``; see ``streams.redis.durability``.
            epochs: of how many dimensions its epochs are, 1 to 8; 0: messages have no epochs. It stays so.
            epochs_timeout: seconds of silence after which an epoch publisher is lost; None: 30, or what a
                space that exists has.
            epochs_on_loss: what becomes then of the epochs that it had open: ``abort`` drops what it sent in
                them, ``wait`` waits for an operator; None: ``abort``, or what a space that exists has.
            collection: its messages are changes of a multiset, and have a diff. It stays so.
            archive: where older messages go, or its address; the place is tried. None: nowhere, or what a
                space has that exists.

        Raises:
            ArchiveUnavailable: the place for the archive cannot be written.
            InvalidInput: a name, filter, number or schema is not acceptable.
            Unsupported: the server cannot be as durable as that.
            NotDurable: the space exists, but not durably itself; safe to repeat.
            SpaceConflict: the space exists otherwise, or its topics overlap another one's.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        check_name("space", name)
        filters = tuple(dict.fromkeys(check_filter(filter) for filter in _several(topics)))
        if not filters:
            raise InvalidOption(f"space {name} has no topics: give at least one filter, such as '{name}/#'")
        if any(map(is_of_catalog, filters)):
            raise InvalidOption(f"topics below {CATALOG_TOPICS} are of the catalog: give the space others")
        check_streams(name, streams)
        retention, archive = retention_of(retention), archive_of(archive)
        if shard_by not in ("topic", "key"):
            raise InvalidOption(f"shard_by {shard_by!r} is unknown: use 'topic' or 'key'")
        if shard_hash not in (None, "blake2b", "sha256"):
            raise InvalidOption(f"shard_hash {shard_hash!r} is unknown: use 'blake2b' or 'sha256'")
        check_compact_after(compact_after_ms)
        time = EpochSettings.checked(name, epochs, epochs_timeout, epochs_on_loss)
        check_not_merged(name, time.dimensions, compact_after_ms)
        promised = Durability.parse(durability)
        await check_durability(self._redis, promised)
        typed = () if schema is None else (Schema.of(schema),)
        check_collection(name, collection, typed, compact_after_ms)
        for _ in range(ATTEMPTS):
            seen, used = await self._table.read(name)
            existing = seen.spaces.get(name)
            if existing is not None:
                same = check_same(
                    existing,
                    filters,
                    streams,
                    shard_by,
                    shard_hash,
                    retention,
                    promised,
                    typed,
                    compact_after_ms,
                    time,
                    collection,
                    archive,
                )
                await self._table.make_durable(same)
                return same
            for one in typed:
                one.check_case()
            seen.known.check_free(name, filters)
            generation = Generation(number=used + 1, streams=streams)
            space = Space(
                name=name,
                topics=filters,
                generations=(generation,),
                shard_by=shard_by,
                shard_hash=shard_hash or "blake2b",
                retention=retention or Retention(),
                durability=str(promised),
                schemas=typed,
                compact_after_ms=compact_after_ms,
                born=generation.number,
                epochs=time.dimensions,
                epochs_timeout_ms=time.timeout_ms or TIMEOUT_MS,
                epochs_on_loss=time.on_loss or "abort",
                collection=collection,
                archive=archive,
            )
            if archive is not None:
                await take_place(self._redis, archive.uri, name, space.born, seen.known)
            await self._log.open(space.streams(), "epochs" if space.epochs else "open")
            if space.epochs:
                await _NOTE_LINEAGE.run(
                    self._redis, [epochs_part(name, part) for part in ("writers", "state")]
                )
            if await self._table.write(seen, name, space.model_dump_json(), generation.number):
                await self._table.make_durable(space)
                await self.generations.tell_schemas(space)
                return space
        raise too_busy(name)

    async def change(self, name: str, change: Callable[[Space], Space]) -> Space:
        """Change settings of a space that neither its topics nor its streams depend on, atomically.

        Args:
            change: makes the new definition of the present one; called again if another writer was faster.

        Raises:
            UnknownSpace: there is none.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        for _ in range(ATTEMPTS):
            seen, used = await self._table.read(name)
            space = seen.known.get(name)
            wanted = change(space)
            if wanted == space or await self._table.write(seen, name, wanted.model_dump_json(), used):
                return await self._table.make_durable(wanted)
        raise too_busy(name)

    async def get(self, name: str) -> Space:
        """The space `name`, as it is now.

        Raises:
            UnknownSpace: there is none.
            Unsupported: its definition is damaged, or was written by another version of Streamlease.
            StoreUnavailable, StoreRefused.
        """
        return (await self.look()).get(name)

    async def list(self) -> Spaces:
        """All spaces by name, as they are now; for who needs every one of them, else see `look`.

        Raises:
            Unsupported: a definition is damaged, or was written by another version of Streamlease.
            StoreUnavailable, StoreRefused.
        """
        known = await self.look()
        for damaged in known.damaged.values():
            raise damaged.error
        return known.listed

    async def look(self) -> Known:
        """All spaces, as they are now, and apart from them those whose definitions cannot be read.

        The streams of a damaged space are still there: whoever forgets what no space names keeps those.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        return (await self._table.read_all()).known

    async def look_with_others(self) -> Known:
        """What `look` finds; all who ask while it is being read share the next reading.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        return (await self._table.read_next()).known

    async def recent(self) -> Known:
        """What `look` finds, as of a second ago at most; all who want it within that second are one question.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        fresh = self._table.fresh()
        return (fresh if fresh is not None else await self._table.read_together()).known

    async def redefined(self, name: str, change: Callable[[Space], Space]) -> tuple[Space, Space]:
        """A space, and what `change` would make of it; nothing is changed.

        Raises:
            As `change` does, and `redefine`, which may find more.
        """
        before = await self.get(name)
        after = change(before)
        await check_place(self._redis, before, after)
        return before, after

    async def redefine(self, name: str, change: Callable[[Space], Space]) -> Space:
        """Change settings of a space that is used: as `change`, and what is outside of its definition.

        A new place for its archive is tried and taken, the former one is let go, and its streams learn what
        schema they take from now on.

        Raises:
            UnknownSpace: there is no such space.
            SpaceConflict: the place belongs to others; or it has files elsewhere, or moved meanwhile.
            ArchiveUnavailable: files cannot be written, read and removed there.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        before, after = await self.redefined(name, change)
        place = another_place(before, after)
        if place is not None:
            await take_place(self._redis, place.uri, name, before.born, await self.look())

        def checked(now: Space) -> Space:
            if place is not None and (now.archive, now.born) != (before.archive, before.born):
                raise SpaceConflict(f"space {name} got another archive meanwhile: look at it, and try again")
            return change(now)

        space = await self.change(name, checked)
        if place is not None:
            await leave_former(self._redis, before, space)
        await self.generations.tell_schemas(space)
        return space

    async def delete(self, name: str) -> None:
        """Delete a space with all its messages, also one whose definition is damaged.

        Raises:
            UnknownSpace: there is no such space.
            StoreUnavailable, StoreRefused, Indefinite: the space may be gone, some of its memory not yet.
        """
        for _ in range(ATTEMPTS):
            seen, used = await self._table.read(name)
            damaged = seen.known.damaged.get(name)
            space = seen.known.get(name) if damaged is None else None
            highest = used if space is None else max(used, space.newest.number)
            # Which streams a damaged one has, only their keys say; looked for while they have a definition.
            streams = (
                await self.generations.with_keys(name)
                if space is None
                else streams_of(name, (*space.dropping, *space.generations))
            )
            highest = max((highest, *(stream.generation for stream in streams)))
            if await self._table.write(seen, name if damaged is None else damaged.key, "", highest):
                await self.generations.unmake(streams)
                of_epochs = [epochs_part(name, part) for part in OF_EPOCHS]
                gone = (
                    ("UNLINK", space_inbox(name), inbox_refused(name)),
                    ("UNLINK", *of_epochs),
                    ("UNLINK", archive_table(name)),
                )
                await ask(self._redis, gone)
                return
        raise too_busy(name)

    def at_hand(self, topic: str) -> Space | None:
        """The space to which messages of `topic` belong, if that needs no look into Redis.

        Raises:
            InvalidTopic: `topic` is malformed.
        """
        check_topic(topic)
        fresh = self._table.fresh()
        if fresh is not None:
            with suppress(UnknownSpace, Unsupported):
                return fresh.known.for_topic(topic)
        return None

    async def for_topic(self, topic: str) -> Space:
        """The space to which messages of `topic` belong; what was read up to a second ago may serve.

        Raises:
            InvalidTopic: `topic` is malformed.
            UnknownSpace: no space covers it.
            Unsupported: the definition of the space that covers it is damaged.
            StoreUnavailable, StoreRefused.
        """
        space = self.at_hand(topic)
        if space is not None:
            return space
        called = clock.seconds()
        while True:
            seen = await self._table.read_together()
            try:
                return seen.known.for_topic(topic)
            except (UnknownSpace, Unsupported):
                if seen.read_at >= called:
                    raise  # else it was asked for before, and may not have what was there then

    async def for_filter(self, filter: str, *, partly: bool = False) -> Spaces:
        """The spaces, by name, that have topics which `filter` matches.

        Args:
            partly: leave out spaces that cannot be read, as long as there are others.

        Raises:
            InvalidTopic: `filter` is malformed.
            UnknownSpace: no space has such topics.
            Unsupported: a space that has such topics cannot be read, so some would be missing.
            StoreUnavailable, StoreRefused.
        """
        check_filter(filter)
        return (await self.look()).for_filter(filter, partly=partly)


def _several(topics: Iterable[str]) -> Iterable[str]:
    if isinstance(topics, str | bytes):
        return [topics]
    if isinstance(topics, Iterable):
        return topics
    raise InvalidOption(f"topics is {ascii(topics)[:80]}: give a list of filters, such as ['flights/#']")
