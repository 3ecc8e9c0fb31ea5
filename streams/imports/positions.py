"""What Redis remembers about a source that is published piece by piece: what it is, and how far it has come.

The truth about single messages stands in the streams (``transfer``). This memory adds three things: that
the source is still the same one; a position below which all is done, so that a resumed run need not ask
again and a dropped generation does not bring old messages back; and that the spaces are the same ones. If a
space was deleted and created again, the source begins anew: its messages are gone with the old one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamlease.protocol.errors import InvalidOption
from streamlease.streams.log.keys import source_state
from streamlease.streams.log.log import Position
from streamlease.streams.redis.connection import AsyncRedis, Command, ask
from streamlease.streams.redis.damaged import parsing
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.spaces import Space

BEGINNING: Position = (-1, -1)


class Resume:
    """The memory of one source. Made by :meth:`open`."""

    def __init__(self, redis: AsyncRedis, key: str, done: Position, complete: bool) -> None:
        self._redis = redis
        self._key = key
        self._begun = False
        self.done = done
        """All messages at or below this position are in their streams."""
        self.complete = complete
        """The source has an end, and all of it is there."""

    @classmethod
    async def open(
        cls, redis: AsyncRedis, source: str, identity: Mapping[str, Any], spaces: Mapping[str, Space]
    ) -> Resume:
        """What is remembered of `source`, which is `identity` once it has begun.

        Args:
            identity: values that say what the source is and how it is read.
            spaces: all spaces by name.

        Raises:
            InvalidOption: the source was another one before; says what differs.
            Unsupported: what is remembered cannot be read.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        key = source_state(source)
        text = json.dumps(identity, sort_keys=True)
        born = json.dumps({name: space.born for name, space in sorted(spaces.items())})
        script = load_script("streamlease.streams.imports", "source")
        kept, done, complete = await script.run(redis, [key], [text, born])
        with parsing(f"what is known of {source}", key):
            before, reached = dict(json.loads(kept)), _position(done)
        _same(source, before, json.loads(text))
        return cls(redis, key, reached, complete == b"1")

    async def drawn(self, line: Position) -> Position:
        """`line`, unless one was drawn before anything of the source was appended: then that one."""
        begun, kept = await ask(self._redis, [("HGET", self._key, "begun"), ("HGET", self._key, "line")])
        if begun and kept:
            with parsing("up to where a source is read", self._key):
                return _position(kept)
        await ask(self._redis, [("HSET", self._key, "line", f"{line[0]} {line[1]}")])
        return line

    async def begin(self) -> None:
        """From now on messages are appended, so the source can be no other one any more."""
        if not self._begun:
            await ask(self._redis, [("HSET", self._key, "begun", "1")])
            self._begun = True

    async def advance(self, done: Position) -> None:
        """All at or below `done` is in its streams."""
        if done > self.done:
            await self.begin()
            await ask(self._redis, [("HSET", self._key, "done", f"{done[0]} {done[1]}")])
            self.done = done

    async def finish(self) -> None:
        """All of the source is in its streams."""
        await self.begin()
        commands: list[Command] = [("HSET", self._key, "complete", "1")]
        await ask(self._redis, commands)
        self.complete = True


def _position(text: bytes) -> Position:
    if not text:
        return BEGINNING
    incarnation, sequence = text.split()
    return int(incarnation), int(sequence)


def _same(source: str, kept: dict[str, Any], now: dict[str, Any]) -> None:
    for name in sorted(kept.keys() | now.keys()):
        before, after = kept.get(name), now.get(name)
        if before != after:
            raise InvalidOption(
                f"{source} was begun with {name} {_shown(before)}, and now it is {_shown(after)}: "
                f"go on with what it was, or choose another name for what is new"
            )


def _shown(value: Any) -> str:
    return "not set" if value is None else ascii(value)[:80]
