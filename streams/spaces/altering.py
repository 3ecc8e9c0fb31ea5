"""The generations of a space, one after another: made, sealed, dropped.

A new generation (`alter`) comes in steps that anybody may repeat: its streams are made *pending*, the
definition is written, the streams of the former generation are sealed, the new ones opened, and the
former generation is marked as sealed. A pending stream takes nothing, so a key's messages never go
into the new generation while somebody can still append to the old one. What the definition says but is
not yet done, `settle` does: the command itself, and every publisher that meets a pending or sealed stream
(`docs/decisions/0020-generations.md`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from streamlease.protocol.errors import (
    Indefinite,
    InvalidInput,
    InvalidOption,
    SpaceConflict,
    StreamSealed,
)
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.schemas import Versions
from streamlease.streams.log.keys import (
    STAGED,
    snapshot_entries,
    snapshot_state,
    staged_part,
    stream_files,
    stream_log,
    stream_merged,
    stream_meta,
    stream_publishers,
)
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import Legacy
from streamlease.streams.redis.connection import Command, Redis, ask, servers
from streamlease.streams.spaces.definitions import (
    Generation,
    Space,
    check_streams,
    follows,
    streams_of,
)
from streamlease.streams.spaces.epoch_settings import check_keeps_streams
from streamlease.streams.spaces.table import ATTEMPTS, DefinitionTable, too_busy


class Generations:
    """Which streams a space has, and which of them still take messages."""

    def __init__(self, redis: Redis, table: DefinitionTable) -> None:
        self._redis = redis
        self._table = table
        self._log = AsyncLog(redis)

    async def alter(
        self,
        name: str,
        *,
        streams: int | None = None,
        rotate: bool = False,
        expected: int | None = None,
        at_rest: bool = False,
    ) -> Space:
        """Give a space a new generation of `streams` streams, and seal the former one. Safe to repeat.

        A space that has so many streams already is only settled, unless `rotate` asks for new ones.

        Args:
            streams: 1 to 4096; None for as many as now.
            rotate: begin a new generation even if the number stays the same.
            expected: the generation that is to be followed, so that a repeated rotation is made once.
            at_rest: its epochs are at rest; see `streams/epochs/sealing.py`.

        Raises:
            InvalidOption: the number is out of range.
            UnknownSpace: there is no such space.
            StreamSealed: the space was sealed for good.
            SpaceConflict: somebody else altered it otherwise meanwhile; or it has epochs.
            NotDurable: it is done, but less durably than the space asks; safe to repeat.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat; a rotation with `expected`.
        """
        if streams is not None:
            check_streams(name, streams)
        made: list[StreamId] = []
        for _ in range(ATTEMPTS):
            seen, used = await self._table.read(name)
            space = seen.known.get(name)
            check_goes_on(space)
            if not at_rest:
                check_keeps_streams(space)
            newest, wanted = space.newest, streams or space.newest.streams
            expected = newest.number if expected is None else expected
            if newest.number != expected:
                await self.unmake(set(made) - set(space.streams()))
                if follows(space, expected, wanted):
                    return await self.settle(name)
                raise altered_meanwhile(space)
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
                if await self._table.write(seen, name, altered.model_dump_json(), generation.number):
                    return await self.settle(name)
        raise too_busy(name)

    async def seal(self, name: str) -> Space:
        """End a space: it takes no more messages, and readers reach the end. Safe to repeat.

        Raises:
            UnknownSpace: there is no such space.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        for _ in range(ATTEMPTS):
            seen, used = await self._table.read(name)
            space = seen.known.get(name)
            ended = space.model_copy(update={"ended": True}).model_dump_json()
            if space.ended or await self._table.write(seen, name, ended, max(used, space.newest.number)):
                return await self.settle(name)
        raise too_busy(name)

    async def drop(self, name: str, number: int) -> Space:
        """Remove a sealed generation with all its messages: from the definition first. Safe to repeat.

        The leader host that does retention calls it for those that nobody needs (`hosts/forgetting.py`).

        Raises:
            UnknownSpace: there is no such space.
            SpaceConflict: the generation is not sealed yet, or it is the newest one.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        for _ in range(ATTEMPTS):
            seen, used = await self._table.read(name)
            space = seen.known.get(name)
            gone = tuple(one for one in space.generations if one.number == number)
            if gone and (not gone[0].sealed or gone[0] is space.newest):
                raise SpaceConflict(
                    f"generation {number} of space {name} is in use: only a sealed one that was followed "
                    f"by another can be dropped; see 'streamlease space show {name}'"
                )
            left = tuple(one for one in space.generations if one.number != number)
            dropped = space.model_copy(update={"generations": left, "dropping": space.dropping + gone})
            if not gone or await self._table.write(
                seen, name, dropped.model_dump_json(), max(used, space.newest.number)
            ):
                return await self.settle(name)
        raise too_busy(name)

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
        for _ in range(ATTEMPTS):
            seen, used = await self._table.read(name)
            space = seen.known.get(name)
            if space.settled and not again:
                return await self._table.make_durable(space)
            ending = space.generations if space.ended else space.generations[:-1]
            # In this order each step is durable before the next one begins.
            await self._table.make_durable(space)
            sealing = streams_of(name, (one for one in ending if again or not one.sealed))
            at_rest = bool(space.epochs) and not space.ended
            await self._log.seal_all(sealing, space.promised, unless_staged=at_rest)
            if not space.ended:
                await self.tell_schemas(space)
                begin: Literal["begin", "begin_epochs"] = "begin_epochs" if space.epochs else "begin"
                await self._log.open(streams_of(name, (space.newest,)), begin, space.promised)
            if space.settled:
                return space
            await self._bequeath(space)
            await self.unmake(streams_of(name, space.dropping))
            sealed = tuple(one.model_copy(update={"sealed": True}) for one in ending)
            settled = space.model_copy(
                update={"generations": sealed + space.generations[len(ending) :], "dropping": ()}
            )
            if await self._table.write(seen, name, settled.model_dump_json(), max(used, space.newest.number)):
                return await self._table.make_durable(settled)
        raise too_busy(name)

    async def tell_schemas(self, space: Space) -> None:
        """Bring all streams of `space` to the versions of its definition; publishers do so too."""
        if space.schemas:
            await self._log.set_schemas(space.streams(), Versions(space.schemas))

    async def _bequeath(self, space: Space) -> None:
        """Let the streams that follow dropped ones know what is gone, and where it ended.

        So a history from before is truncated, and whoever had read all of it has missed nothing.
        """
        heirs = space.heirs()
        states = await self._log.states({one for gone in heirs.values() for one in gone})
        legacies = {}
        for heir, gone in heirs.items():
            there = {one: states[one] for one in gone if one in states}
            newest = max((state.last_append for state in there.values()), default=0)
            legacies[heir] = Legacy(newest, {one: state.next for one, state in there.items()})
        await self._log.inherit(legacies)

    async def with_keys(self, name: str) -> list[StreamId]:
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

    async def unmake(self, streams: Iterable[StreamId]) -> None:
        """Remove the keys of streams that are in no definition."""
        streams = [*streams]
        asked: list[Command] = [("HGET", snapshot_state(stream), "token") for stream in streams]
        tokens = await ask(self._redis, asked) if asked else []
        keys: list[Command] = [
            (
                "UNLINK",
                stream_meta(stream),
                stream_log(stream),
                stream_merged(stream),
                stream_publishers(stream),
                stream_files(stream),
                *(staged_part(stream, part) for part in STAGED),
                snapshot_state(stream),
                snapshot_entries(stream, (token or b"").decode()),
            )
            for stream, token in zip(streams, tokens, strict=True)
        ]
        if keys:
            await ask(self._redis, keys)


def _literally(name: str) -> str:
    """`name` in a pattern of Redis."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", name)


def check_goes_on(space: Space) -> None:
    """Whether a space still takes messages.

    Raises:
        StreamSealed: it was sealed for good.
    """
    if space.ended:
        raise StreamSealed(f"space {space.name} is sealed and takes no more messages: create another space")


def with_streams(space: Space, streams: int | None, rotate: bool, expected: int | None) -> Space:
    """The definition with the streams that `Generations.alter` would give the space. Pure.

    The number of the generation may be higher in the end.

    Raises:
        InvalidOption, StreamSealed, SpaceConflict: as `Generations.alter`, which may find more.
    """
    if streams is not None:
        check_streams(space.name, streams)
    if type(rotate) is not bool:
        raise InvalidOption(f"rotate is {ascii(rotate)[:80]}: use True or False")
    if expected is not None and (isinstance(expected, bool) or not isinstance(expected, int)):
        raise InvalidOption(f"expected is {ascii(expected)[:80]}: give the number of a generation")
    check_goes_on(space)
    newest, wanted = space.newest, streams or space.newest.streams
    if expected is not None and expected != newest.number:
        if follows(space, expected, wanted):
            return space
        raise altered_meanwhile(space)
    if wanted == newest.streams and not rotate:
        return space
    one = Generation(number=newest.number + 1, streams=wanted)
    return space.model_copy(update={"generations": (*space.generations, one)})


def altered_meanwhile(space: Space) -> SpaceConflict:
    """What is said where other streams follow a generation that is the newest no more."""
    newest = space.newest
    return SpaceConflict(
        f"space {space.name} was altered meanwhile: generation {newest.number} has {newest.streams} "
        f"streams; look at it with 'streamlease space show {space.name}', and repeat if still wanted"
    )
