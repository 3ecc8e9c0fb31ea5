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

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from streamlease.protocol.errors import (
    Indefinite,
    InvalidInput,
    InvalidOption,
    NotDurable,
    SpaceConflict,
    StoreRefused,
    StreamleaseError,
    StreamSealed,
    UnknownSpace,
    Unsupported,
)
from streamlease.protocol.ids import StreamId, check_name
from streamlease.protocol.topics import check_filter, check_topic
from streamlease.streams import clock
from streamlease.streams.entries.schemas import Schema, SchemaLike, Versions
from streamlease.streams.log.keys import (
    SPACE_DEFINITIONS,
    SPACE_GENERATIONS,
    SPACE_VERSION,
    inbox_refused,
    space_inbox,
    stream_log,
    stream_meta,
    stream_publishers,
)
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import (
    Command,
    Redis,
    ask,
    servers,
)
from streamlease.streams.redis.damaged import number
from streamlease.streams.redis.durability import WAIT_SECONDS, Durability, check_durability, strongest
from streamlease.streams.redis.durable import run_durably
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.definitions import (
    MAX_STREAMS,
    Generation,
    ShardBy,
    Space,
    Spaces,
    check_same,
    check_streams,
    follows,
    streams_of,
)
from streamlease.streams.spaces.known import Known, read_definitions
from streamlease.streams.spaces.retention import Retention

__all__ = ["MAX_STREAMS", "Generation", "Known", "ShardBy", "Space", "SpaceStore", "Spaces", "streams_of"]

CACHE_SECONDS = 1.0
"""How long a lookup that succeeds may use what was read before."""

_ATTEMPTS = 50

Streams = list[StreamId]


class _Table(NamedTuple):
    version: int | None
    """None: it was read by somebody who changes nothing."""
    known: Known
    read_at: float

    @property
    def spaces(self) -> Mapping[str, Space]:
        return self.known.spaces


class SpaceStore:
    """The definitions of all spaces in one Redis.

    Args:
        wait_seconds: how long the server may take to make a change as durable as its space asks.
    """

    def __init__(self, redis: Redis, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._redis = redis
        self._wait_seconds = wait_seconds
        self._log = AsyncLog(redis)
        self._table: _Table | None = None
        self._reading: asyncio.Future[_Table] | None = None
        """What is being read now, for all who look for the space of a topic."""

    async def refresh(self) -> None:
        """Read all definitions anew.

        Raises:
            StoreUnavailable, StoreRefused: Redis does not answer, or with an error.
        """
        await self.look()

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
            durability: ``memory``, ``fsync`` or ``replicated:K``; see ``streams.redis.durability``.

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
            for one in typed:
                one.check_case()
            table.known.check_free(name, filters)
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
            space = table.known.get(name)
            wanted = change(space)
            if wanted == space or await self._write(table, name, wanted.model_dump_json(), used):
                return await self._make_durable(wanted)
        raise _too_busy(name)

    async def _make_durable(self, space: Space) -> Space:
        """A definition is as durable as the space's messages."""
        touch = load_script("streamlease.streams.spaces", "touch").call([SPACE_DEFINITIONS, SPACE_VERSION])
        wanted = strongest([space.promised])
        _, why = await run_durably(self._redis, touch, wanted, self._wait_seconds) if wanted else (None, "")
        if why:
            raise NotDurable(
                f"the definition of space {space.name} is written, but not as durably as {space.promised} "
                f"demands: {why}; it may still exist: look at the server, then repeat"
            )
        return space

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
        return (await self._read_all()).known

    async def recent(self) -> Known:
        """What `look` finds, as of a second ago at most; all who want it within that second are one question.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        fresh = self._fresh()
        return (fresh if fresh is not None else await self._read_together()).known

    async def _read_all(self) -> _Table:
        asked_at = clock.seconds()
        (definitions,) = await ask(self._redis, [("HGETALL", SPACE_DEFINITIONS)])
        self._table = _Table(None, read_definitions(definitions), asked_at)
        return self._table

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
        """Delete a space with all its messages, also one whose definition is damaged.

        Raises:
            UnknownSpace: there is no such space.
            StoreUnavailable, StoreRefused, Indefinite: the space may be gone, some of its memory not yet.
        """
        for _ in range(_ATTEMPTS):
            table, used = await self._read(name)
            damaged = table.known.damaged.get(name)
            space = table.known.get(name) if damaged is None else None
            highest = used if space is None else max(used, space.newest.number)
            # Which streams a damaged one has, only their keys say; looked for while they have a definition.
            streams = (
                await self._streams_by_key(name)
                if space is None
                else streams_of(name, (*space.dropping, *space.generations))
            )
            highest = max((highest, *(stream.generation for stream in streams)))
            if await self._write(table, name if damaged is None else damaged.key, "", highest):
                await self._unmake(streams)
                await ask(self._redis, [("UNLINK", space_inbox(name), inbox_refused(name))])
                return
        raise _too_busy(name)

    async def _streams_by_key(self, name: str) -> Streams:
        """The streams of a space that have keys, whatever its definition says."""
        found: set[StreamId] = set()
        for server in await servers(self._redis):
            cursor = b"0"
            while True:
                pattern = f"sl:{{{_literally(name)}.*"
                ((cursor, page),) = await ask(server, [("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)])
                for key in page:
                    with suppress(InvalidInput):  # what is of no stream
                        found.add(StreamId.parse(key.decode("utf-8", "replace")[4:].partition("}")[0]))
                if cursor == b"0":
                    break
        return sorted(stream for stream in found if stream.space == name)

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
            space = table.known.get(name)
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
                return await self.settle(name, again=True)
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
            space = table.known.get(name)
            ended = space.model_copy(update={"ended": True}).model_dump_json()
            if space.ended or await self._write(table, name, ended, max(used, space.newest.number)):
                return await self.settle(name)
        raise _too_busy(name)

    async def drop_generation(self, name: str, number: int) -> Space:
        """Remove a sealed generation with all its messages: from the definition first. Safe to repeat.

        The leader host that does retention calls it for those that nobody needs (`hosts/forgetting.py`).

        Raises:
            UnknownSpace: there is no such space.
            SpaceConflict: the generation is not sealed yet, or it is the newest one.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        for _ in range(_ATTEMPTS):
            table, used = await self._read(name)
            space = table.known.get(name)
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

    async def settle(self, name: str, *, again: bool = False) -> Space:
        """Do what the definition says and is not yet done; the space, settled. Safe to repeat.

        All of it is as durable then as the messages of the space.

        Args:
            again: also seal and begin what the definition says is sealed and begun, for whoever met a pending
                stream of a settled space: a failover of the server that keeps the stream lost that.

        Raises:
            UnknownSpace: there is no such space.
            NotDurable: some of it is done, but less durably.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        for _ in range(_ATTEMPTS):
            table, used = await self._read(name)
            space = table.known.get(name)
            if space.settled and not again:
                return await self._make_durable(space)
            ending = space.generations if space.ended else space.generations[:-1]
            # In this order each step is durable before the next one begins.
            await self._make_durable(space)
            sealing = streams_of(name, (one for one in ending if again or not one.sealed))
            await self._log.seal_all(sealing, space.promised)
            if not space.ended:
                await self.tell_schemas(space)
                await self._log.open(streams_of(name, (space.newest,)), "begin", space.promised)
            if space.settled:
                return space
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
            Unsupported: the definition of the space that covers it is damaged.
            StoreUnavailable, StoreRefused.
        """
        check_topic(topic)
        fresh = self._fresh()
        if fresh is not None:
            with suppress(UnknownSpace, Unsupported):
                return fresh.known.for_topic(topic)
        called = clock.seconds()
        while True:
            table = await self._read_together()
            try:
                return table.known.for_topic(topic)
            except (UnknownSpace, Unsupported):
                if table.read_at >= called:
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

    def _fresh(self) -> _Table | None:
        table = self._table
        return table if table is not None and clock.seconds() - table.read_at < CACHE_SECONDS else None

    async def _read_together(self) -> _Table:
        """All definitions; whoever wants them while they are being read gets the same answer, or error."""
        while (reading := self._reading) is not None:
            try:
                return await asyncio.shield(reading)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not reading.cancelled() or (task is not None and task.cancelling()):
                    raise  # else it was the reader who was cancelled
        reading = self._reading = asyncio.get_running_loop().create_future()
        try:
            table = await self._read_all()
        except StreamleaseError as error:
            reading.set_exception(error)
            reading.exception()  # looked at: perhaps nobody else waits
            raise
        else:
            reading.set_result(table)
            return table
        finally:
            self._reading = None
            reading.cancel()

    async def _read(self, name: str) -> tuple[_Table, int]:
        """All definitions with their version, and the highest generation that `name` ever used, -1 if none.

        The version is read first: a definition written in between makes it too old, never too new.
        """
        commands: list[Command] = [
            ("GET", SPACE_VERSION),
            ("HGETALL", SPACE_DEFINITIONS),
            ("HGET", SPACE_GENERATIONS, name),
        ]
        asked_at = clock.seconds()
        version, definitions, used = await ask(self._redis, commands)
        self._table = _Table(number(SPACE_VERSION, version), read_definitions(definitions), asked_at)
        return self._table, number(SPACE_GENERATIONS, used, -1)

    async def _write(self, table: _Table, name: str | bytes, text: str, generation: int) -> bool:
        """Write a definition; False if another one changed meanwhile."""
        assert table.version is not None
        reply: Any = await load_script("streamlease.streams.spaces", "define").run(
            self._redis,
            [SPACE_DEFINITIONS, SPACE_GENERATIONS, SPACE_VERSION],
            [table.version, name, text, generation],
        )
        self._table = None
        return bool(reply[0] == b"written")


def _several(topics: Iterable[str]) -> Iterable[str]:
    return [topics] if isinstance(topics, str | bytes) else topics


def _too_busy(name: str) -> StreamleaseError:
    return StoreRefused(f"space {name} was not written: others kept changing definitions; try again")


def _literally(name: str) -> str:
    """`name` in a pattern of Redis."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", name)
