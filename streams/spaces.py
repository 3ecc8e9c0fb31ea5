"""Topic spaces: which topics belong together, and which streams hold them.

All definitions stand in one hash with one version. Whoever changes a definition first looks at all of
them, opens the streams that the new definition needs, and then writes it with the version it looked
at as the precondition; if anybody was faster, it looks again. So no two spaces ever overlap, and the
definition is the moment at which a space exists. A generation number is never used twice, even by a
space that is deleted and created again: a stream id names the same stream for ever.

A new generation (`alter`) comes in steps that anybody may repeat: its streams are made *pending*, the
definition is written, the streams of the former generation are sealed, the new ones opened, and the
former generation is marked as sealed. A pending stream takes nothing, so a key's messages never go
into the new generation while somebody can still append to the old one. What the definition says but is
not yet done, `settle` does: the command itself, and every publisher that meets a pending or sealed stream
(`docs/decisions/0020-generations.md`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from streamlease.protocol.errors import (
    Indefinite,
    InvalidOption,
    SpaceConflict,
    StoreRefused,
    StreamleaseError,
    StreamSealed,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId, check_name
from streamlease.protocol.topics import check_filter, check_topic
from streamlease.streams.connection import AsyncRedis, BlockingRedis, Command, ask, ask_blocking
from streamlease.streams.definitions import (
    MAX_STREAMS,
    Generation,
    ShardBy,
    Space,
    Spaces,
    check_disjoint,
    check_same,
    check_streams,
    follows,
    no_space,
    parse_definition,
    streams_of,
)
from streamlease.streams.durability import WAIT_SECONDS, Durability, check_durability, make_durable
from streamlease.streams.keys import (
    SPACE_DEFINITIONS,
    SPACE_GENERATIONS,
    SPACE_VERSION,
    inbox_refused,
    space_inbox,
    stream_log,
    stream_meta,
    stream_publishers,
)
from streamlease.streams.log import AsyncLog
from streamlease.streams.retention import Retention
from streamlease.streams.schemas import Schema, SchemaLike, Versions
from streamlease.streams.scripts import load_script

__all__ = ["MAX_STREAMS", "Generation", "ShardBy", "Space", "SpaceStore", "Spaces", "streams_of"]

CACHE_SECONDS = 1.0
"""How long a lookup that succeeds may use what was read before."""

_ATTEMPTS = 50


class _Table(NamedTuple):
    version: int
    spaces: dict[str, Space]
    read_at: float


class SpaceStore:
    """The definitions of all spaces in one Redis.

    Args:
        wait_seconds: how long the server may take to make a change as durable as its space asks.
    """

    def __init__(self, redis: AsyncRedis, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._redis = redis
        self._wait_seconds = wait_seconds
        self._log = AsyncLog(redis)
        self._table: _Table | None = None

    async def refresh(self) -> None:
        """Read all definitions anew.

        Raises:
            StoreUnavailable, StoreRefused: Redis does not answer, or with an error.
            Unsupported: a definition was written by another version of Streamlease.
        """
        await self._read()

    def forget(self) -> None:
        """Let the next lookup read anew; for whoever found that a definition is out of date."""
        self._table = None

    async def create(
        self,
        name: str,
        topics: Iterable[str],
        *,
        streams: int = 1,
        shard_by: ShardBy = "topic",
        retention: Retention | None = None,
        durability: str = "memory",
        schema: SchemaLike | None = None,
    ) -> Space:
        """Create a space; if it exists with this same definition, that one.

        Args:
            topics: filters; a message belongs to the space if one of them matches its topic.
            streams: how many streams, 1 to 4096.
            shard_by: ``key`` spreads the messages of one topic by their key, where they have one.
            retention: what is kept; None keeps everything, and takes any of a space that exists.
            schema: typed columns instead of payloads: an Arrow schema, or the JSON form of ``schemas``.
            durability: ``memory``, ``fsync`` or ``replicated:K``; see ``streams.durability``.

        Raises:
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
        check_streams(name, streams)
        if shard_by not in ("topic", "key"):
            raise InvalidOption(f"shard_by {shard_by!r} is unknown: use 'topic' or 'key'")
        promised = Durability.parse(durability)
        await check_durability(self._redis, promised)
        typed = () if schema is None else (Schema.of(schema),)
        for _ in range(_ATTEMPTS):
            table, used = await self._read(name)
            existing = table.spaces.get(name)
            if existing is not None:
                same = check_same(existing, filters, streams, shard_by, retention, promised, typed)
                await self._make_durable(same)
                return same
            check_disjoint(name, filters, table.spaces.values())
            generation = Generation(number=used + 1, streams=streams)
            space = Space(
                name=name,
                topics=filters,
                generations=(generation,),
                shard_by=shard_by,
                retention=retention or Retention(),
                durability=str(promised),
                schemas=typed,
                born=generation.number,
            )
            await self._log.open(space.streams())
            if await self._write(table, name, space.model_dump_json(), generation.number):
                await self._make_durable(space)
                await self.tell_schemas(space)
                return space
        raise _too_busy(name)

    async def change(self, name: str, change: Callable[[Space], Space]) -> Space:
        """Change settings of a space that neither its topics nor its streams depend on, atomically.

        Args:
            change: makes the new definition of the present one; called again if another writer was faster.

        Raises:
            UnknownSpace: there is none.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        for _ in range(_ATTEMPTS):
            table, used = await self._read(name)
            space = table.spaces.get(name)
            if space is None:
                raise no_space(name, table.spaces)
            wanted = change(space)
            if wanted == space or await self._write(table, name, wanted.model_dump_json(), used):
                return await self._make_durable(wanted)
        raise _too_busy(name)

    async def _make_durable(self, space: Space) -> Space:
        """A definition is as durable as the space's messages."""
        touch: Command = ("INCRBY", SPACE_VERSION, 0)
        what = f"the definition of space {space.name}"
        await make_durable(self._redis, touch, what, [space.promised], self._wait_seconds)
        return space

    async def get(self, name: str) -> Space:
        """The space `name`, as it is now.

        Raises:
            UnknownSpace: there is none.
            StoreUnavailable, StoreRefused.
        """
        table, _ = await self._read()
        return _existing(table, name)

    async def list(self) -> Spaces:
        """All spaces by name, as they are now."""
        table, _ = await self._read()
        return sorted(table.spaces.values(), key=lambda space: space.name)

    async def alter_schema(self, name: str, schema: SchemaLike) -> Space:
        """Give a space with a schema the next version of it: the same columns, and more nullable ones.

        When it returns, the streams take the newest version only.

        Raises:
            InvalidOption: a column is not acceptable.
            SchemaMismatch: the space has no schema, or the change is not compatible.
            UnknownSpace: there is no such space.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        wanted = Schema.of(schema)
        space = await self.change(name, lambda space: space.with_schema(wanted))
        await self.tell_schemas(space)
        return space

    async def tell_schemas(self, space: Space) -> None:
        """Bring all streams of `space` to the versions of its definition; publishers do so too."""
        if space.schemas:
            await self._log.set_schemas(space.streams(), Versions(space.schemas))

    async def delete(self, name: str) -> None:
        """Delete a space with all its messages.

        Raises:
            UnknownSpace: there is none.
            StoreUnavailable, StoreRefused, Indefinite: the space may be gone, some of its memory not yet.
        """
        for _ in range(_ATTEMPTS):
            table, used = await self._read(name)
            space = _existing(table, name)
            if await self._write(table, name, "", max(used, space.newest.number)):
                await self._unmake(streams_of(name, (*space.dropping, *space.generations)))
                await ask(self._redis, [("UNLINK", space_inbox(name), inbox_refused(name))])
                return
        raise _too_busy(name)

    async def alter(
        self, name: str, *, streams: int | None = None, rotate: bool = False, expected: int | None = None
    ) -> Space:
        """Give a space a new generation of `streams` streams, and seal the former one. Safe to repeat.

        A space that has so many streams already is only settled, unless `rotate` asks for new ones.

        Args:
            streams: 1 to 4096; None for as many as now.
            rotate: begin a new generation even if the number stays the same.
            expected: the generation that is to be followed, so that a repeated rotation is made once.

        Raises:
            InvalidOption: the number is out of range.
            UnknownSpace: there is no such space.
            StreamSealed: the space was sealed for good.
            SpaceConflict: somebody else altered it otherwise meanwhile.
            NotDurable: it is done, but less durably than the space asks; safe to repeat.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat; a rotation with `expected`.
        """
        if streams is not None:
            check_streams(name, streams)
        made: list[StreamId] = []
        for _ in range(_ATTEMPTS):
            table, used = await self._read(name)
            space = _existing(table, name)
            if space.ended:
                raise StreamSealed(f"space {name} is sealed and takes no more messages: create another space")
            newest, wanted = space.newest, streams or space.newest.streams
            expected = newest.number if expected is None else expected
            if newest.number != expected:
                await self._unmake(set(made) - set(space.streams()))
                if follows(space, expected, wanted):
                    return await self.settle(name)
                raise SpaceConflict(
                    f"space {name} was altered meanwhile: generation {newest.number} has {newest.streams} "
                    f"streams; look at it with 'streamlease space show {name}', and repeat if still wanted"
                )
            if wanted == newest.streams and not rotate:
                return await self.settle(name)
            if not space.settled:
                await self.settle(name)
                continue
            generation = Generation(number=max(used, newest.number) + 1, streams=wanted)
            made = streams_of(name, (generation,))
            await self._log.open(made, "pending")
            altered = space.model_copy(update={"generations": (*space.generations, generation)})
            with suppress(Indefinite):  # then the next look tells
                if await self._write(table, name, altered.model_dump_json(), generation.number):
                    return await self.settle(name)
        raise _too_busy(name)

    async def seal(self, name: str) -> Space:
        """End a space: it takes no more messages, and readers reach the end. Safe to repeat.

        Raises:
            UnknownSpace: there is no such space.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        for _ in range(_ATTEMPTS):
            table, used = await self._read(name)
            space = _existing(table, name)
            ended = space.model_copy(update={"ended": True}).model_dump_json()
            if space.ended or await self._write(table, name, ended, max(used, space.newest.number)):
                return await self.settle(name)
        raise _too_busy(name)

    async def drop_generation(self, name: str, number: int) -> Space:
        """Remove a sealed generation with all its messages: from the definition first. Safe to repeat.

        The leader host that does retention calls it for those that nobody needs (`leader/forgetting.py`).

        Raises:
            UnknownSpace: there is no such space.
            SpaceConflict: the generation is not sealed yet, or it is the newest one.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        for _ in range(_ATTEMPTS):
            table, used = await self._read(name)
            space = _existing(table, name)
            gone = tuple(one for one in space.generations if one.number == number)
            if gone and (not gone[0].sealed or gone[0] is space.newest):
                raise SpaceConflict(
                    f"generation {number} of space {name} is in use: only a sealed one that was followed "
                    f"by another can be dropped; see 'streamlease space show {name}'"
                )
            left = tuple(one for one in space.generations if one.number != number)
            dropped = space.model_copy(update={"generations": left, "dropping": space.dropping + gone})
            if not gone or await self._write(
                table, name, dropped.model_dump_json(), max(used, space.newest.number)
            ):
                return await self.settle(name)
        raise _too_busy(name)

    async def settle(self, name: str) -> Space:
        """Do what the definition says and is not yet done; the space, settled. Safe to repeat.

        All of it is as durable then as the messages of the space.

        Raises:
            UnknownSpace: there is no such space.
            NotDurable: some of it is done, but less durably.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        for _ in range(_ATTEMPTS):
            table, used = await self._read(name)
            space = _existing(table, name)
            if space.settled:
                return await self._make_durable(space)
            ending = space.generations if space.ended else space.generations[:-1]
            # In this order each step is durable before the next one begins.
            await self._make_durable(space)
            sealing = streams_of(name, (one for one in ending if not one.sealed))
            await self._log.seal_all(sealing, space.promised)
            if not space.ended:
                await self.tell_schemas(space)
                await self._log.open(streams_of(name, (space.newest,)), "begin", space.promised)
            await self._bequeath(space)
            await self._unmake(streams_of(name, space.dropping))
            sealed = tuple(one.model_copy(update={"sealed": True}) for one in ending)
            settled = space.model_copy(
                update={"generations": sealed + space.generations[len(ending) :], "dropping": ()}
            )
            if await self._write(table, name, settled.model_dump_json(), max(used, space.newest.number)):
                return await self._make_durable(settled)
        raise _too_busy(name)

    async def _bequeath(self, space: Space) -> None:
        """Let the streams that follow dropped ones know what is gone: a history from before is truncated."""
        heirs = space.heirs()
        states = await self._log.states({one for gone in heirs.values() for one in gone})
        newest = {
            heir: max((states[one].last_append for one in gone if one in states), default=0)
            for heir, gone in heirs.items()
        }
        await self._log.inherit({heir: moment for heir, moment in newest.items() if moment})

    async def _unmake(self, streams: Iterable[StreamId]) -> None:
        """Remove the keys of streams that are in no definition."""
        keys: list[Command] = [
            ("UNLINK", stream_meta(stream), stream_log(stream), stream_publishers(stream))
            for stream in streams
        ]
        if keys:
            await ask(self._redis, keys)

    async def for_topic(self, topic: str) -> Space:
        """The space to which messages of `topic` belong; what was read up to a second ago may serve.

        Raises:
            InvalidTopic: `topic` is malformed.
            UnknownSpace: no space covers it.
            StoreUnavailable, StoreRefused.
        """
        check_topic(topic)
        for table in (self._fresh(), None):
            spaces = (table or (await self._read())[0]).spaces
            for space in spaces.values():
                if space.covers(topic):
                    return space
        raise UnknownSpace(
            f"no space has topics that match {topic!a}; "
            f"create one: streamlease space create NAME --topics ..."
        )

    async def for_filter(self, filter: str) -> Spaces:
        """The spaces, by name, that have topics which `filter` matches.

        Raises:
            InvalidTopic: `filter` is malformed.
            UnknownSpace: no space has such topics.
            StoreUnavailable, StoreRefused.
        """
        check_filter(filter)
        found = [space for space in await self.list() if space.intersects(filter)]
        if not found:
            raise UnknownSpace(
                f"no space has topics that match the filter {filter!a}; "
                f"create one: streamlease space create NAME --topics ..."
            )
        return found

    def _fresh(self) -> _Table | None:
        table = self._table
        return table if table is not None and time.monotonic() - table.read_at < CACHE_SECONDS else None

    async def _read(self, name: str = "") -> tuple[_Table, int]:
        """All definitions, and the highest generation that `name` ever used, -1 if none.

        The version is read first: a definition written in between makes it too old, never too new.
        """
        commands: list[Command] = [
            ("GET", SPACE_VERSION),
            ("HGETALL", SPACE_DEFINITIONS),
            ("HGET", SPACE_GENERATIONS, name),
        ]
        asked_at = time.monotonic()
        version, definitions, used = await ask(self._redis, commands)
        texts = zip(definitions[::2], definitions[1::2], strict=True)
        spaces = {key.decode(): parse_definition(key.decode(), text) for key, text in texts}
        self._table = _Table(int(version or 0), spaces, asked_at)
        return self._table, -1 if used is None else int(used)

    async def _write(self, table: _Table, name: str, text: str, generation: int) -> bool:
        """Write a definition; False if another one changed meanwhile."""
        reply: Any = await load_script("streamlease.streams", "define").run(
            self._redis,
            [SPACE_DEFINITIONS, SPACE_GENERATIONS, SPACE_VERSION],
            [table.version, name, text, generation],
        )
        self._table = None
        return bool(reply[0] == b"written")


def _existing(table: _Table, name: str) -> Space:
    space = table.spaces.get(name)
    if space is None:
        raise no_space(name, table.spaces)
    return space


def _several(topics: Iterable[str]) -> Iterable[str]:
    return [topics] if isinstance(topics, str | bytes) else topics


def _too_busy(name: str) -> StreamleaseError:
    return StoreRefused(f"space {name} was not written: others kept changing definitions; try again")


def read_spaces_blocking(redis: BlockingRedis) -> dict[str, Space]:
    """The definitions of all spaces by name, as they are now.

    Raises:
        Unsupported: a definition was written by another version of Streamlease.
        StoreUnavailable, StoreRefused.
    """
    (found,) = ask_blocking(redis, [("HGETALL", SPACE_DEFINITIONS)])
    names = [name.decode() for name in found[::2]]
    return {name: parse_definition(name, text) for name, text in zip(names, found[1::2], strict=True)}
