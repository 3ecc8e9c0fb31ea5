"""A space gets the next version of its schema, as `Client.alter_space` would have it."""

from __future__ import annotations

from streamlease.streams.entries.schemas import Schema, SchemaLike
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.spaces import SpaceStore


async def alter_schema(store: SpaceStore, name: str, schema: SchemaLike) -> Space:
    wanted = Schema.of(schema)
    return await store.redefine(name, lambda space: space.with_schema(wanted))
