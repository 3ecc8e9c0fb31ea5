"""Spaces: how they are defined, what each stream holds, and who keeps how much of it from being removed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from streamlease.admin.facts.rows import Count, DamagedRow, FactRow, Moment, Seconds, StreamName, moment
from streamlease.admin.output import iso_microseconds
from streamlease.hosts.trimming import expiry_of
from streamlease.registry.group_needs import GroupProgress, Hold, Holds, needs
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.spaces.epoch_settings import OnLoss
from streamlease.streams.spaces.retention import Kept, Retention, kept

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.ids import StreamId
    from streamlease.streams.entries.schemas import Schema
    from streamlease.streams.log.state import LogState
    from streamlease.streams.spaces.spaces import Space


class RetentionRow(FactRow):
    age_ms: Count | None
    bytes: Count | None
    messages: Count | None
    force: bool
    group_expiry_ms: Count

    @property
    def retention(self) -> Retention:
        """What it says."""
        return Retention(**self.model_dump())


class GenerationRow(FactRow):
    number: Count
    streams: Count
    sealed: bool


class ColumnRow(FactRow):
    name: str
    type: str
    nullable: bool


class SchemaRow(FactRow):
    columns: list[ColumnRow]
    fingerprint: str
    version: Count

    @classmethod
    def of(cls, schema: Schema, version: int) -> Self:
        """A schema in the form that ``--schema`` takes, with its version in the space."""
        columns = [ColumnRow(**one) for one in schema.model_dump()["columns"]]
        return cls(columns=columns, fingerprint=schema.fingerprint, version=version)


class ArchiveRow(FactRow):
    uri: str
    catalog: str
    """Empty: the one that comes with the place."""
    keep_ms: Count | None
    keep_bytes: Count | None
    """Of the whole space; null: what retention keeps stays in memory."""


class SpaceRow(FactRow):
    name: str
    topics: list[str]
    streams: Count
    shard_by: str
    shard_hash: str
    retention: RetentionRow
    durability: str
    ended: bool
    compact_after_ms: Count | None
    """At what age small entries are merged; null: never."""
    epochs: Count
    """Of how many dimensions its epochs are; 0: it has none."""
    epochs_timeout_ms: Count
    epochs_on_loss: OnLoss
    collection: bool
    generations: list[GenerationRow]
    schema_: SchemaRow | None = Field(alias="schema")
    archive: ArchiveRow | None = None
    """Left out: it has none."""

    @classmethod
    def of(cls, space: Space, **more: Any) -> Self:
        """A space as it is defined.

        Args:
            more: what else the row has.
        """
        schema = space.newest_schema
        return cls(
            name=space.name,
            topics=list(space.topics),
            streams=space.newest.streams,
            shard_by=space.shard_by,
            shard_hash=space.shard_hash,
            retention=RetentionRow(**space.retention.model_dump()),
            durability=space.durability,
            ended=space.ended,
            compact_after_ms=space.compact_after_ms,
            epochs=space.epochs,
            epochs_timeout_ms=space.epochs_timeout_ms,
            epochs_on_loss=space.epochs_on_loss,
            collection=space.collection,
            generations=[GenerationRow(**one.model_dump()) for one in space.generations],
            schema=None if schema is None else SchemaRow.of(schema, len(space.schemas)),
            archive=None if space.archive is None else ArchiveRow(**space.archive.model_dump()),
            **more,
        )


class SpaceList(FactRow):
    spaces: list[SpaceRow]
    damaged: list[DamagedRow] = Field(default=[])


class SpaceStream(FactRow):
    """All of a stream is null if Redis has lost it."""

    stream: StreamName
    next: Count | None
    oldest: Count | None
    bytes: Count | None
    merged: Count | None
    """Below this offset small entries were merged; null if none were."""
    state: Literal["open", "pending", "sealed"] | None
    last_append: Moment | None
    held_by: str | None
    """Who needs its oldest messages."""
    held_from: Count | None
    held_since: Moment | None
    """Since when that keeps messages that retention would remove; null if there are none."""
    finished_by: list[str] | None
    """Which groups consumed it to its end; null if it is not sealed."""


class SpaceGroup(FactRow):
    subscription: str
    behind: Count
    idle_seconds: Seconds
    expires_after_seconds: Seconds | None
    expired_at: Moment | None


class SpaceShown(FactRow):
    name: str
    topics: list[str]
    streams: list[SpaceStream]
    shard_by: str
    shard_hash: str
    retention: RetentionRow
    durability: str
    ended: bool
    compact_after_ms: Count | None
    epochs: Count
    epochs_timeout_ms: Count
    epochs_on_loss: OnLoss
    collection: bool
    generations: list[GenerationRow]
    schema_: SchemaRow | None = Field(alias="schema")
    archive: ArchiveRow | None = None
    """Left out: it has none."""
    groups: list[SpaceGroup]


class SpaceStatus(SpaceRow):
    messages: Count


async def look(client: Client) -> SpaceList:
    """All spaces.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    known = await client.spaces.look()
    damaged = [DamagedRow(name=one.name, why=one.why) for one in known.damaged.values()]
    return SpaceList(spaces=[SpaceRow.of(space) for space in known.listed], damaged=damaged)


async def look_into(client: Client, name: str) -> SpaceShown:
    """One space with its streams and the groups that consume it.

    Raises:
        UnknownSpace: there is no such space; the message names the nearest ones.
        StoreUnavailable, StoreRefused.
    """
    space = await client.spaces.get(name)
    streams = space.streams()
    states = await AsyncLog(client.redis).states(streams)
    sizes = await kept(client.redis, streams)
    groups = await needs(client.redis, client.groups, [space])
    holds = Holds({stream: state.next for stream, state in states.items()}, groups)
    shown = {
        "streams": [_stream(space, one, states.get(one), sizes.get(one), holds) for one in streams],
        "groups": [_group(one, space, holds) for one in groups],
    }
    return SpaceShown(**{**dict(SpaceRow.of(space)), **shown})


async def status(client: Client, space: Space) -> SpaceStatus:
    """One space with the number of its messages.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    held = await kept(client.redis, space.streams())
    return SpaceStatus.of(space, messages=messages(held.values()))


def messages(sizes: Iterable[Kept]) -> int:
    """How many messages streams hold."""
    return sum(max(0, size.state.next - size.state.floor) for size in sizes)


def _stream(
    space: Space, stream: StreamId, state: LogState | None, size: Kept | None, holds: Holds
) -> SpaceStream:
    hold = holds.of(stream) if state is not None else Hold(0)
    by = None if hold.group is None or space.retention.force else hold.holder
    since = size.held_since if size is not None and by is not None and size.held_by == by else None
    return SpaceStream(
        stream=str(stream),
        next=state.next if state else None,
        oldest=state.floor if state else None,
        bytes=size.state.bytes if size else None,
        merged=(state.merged or None) if state else None,
        state=None if state is None else _word(state),
        last_append=iso_microseconds(state.last_append) if state and state.last_append else None,
        held_by=by,
        held_from=hold.limit if by is not None else None,
        held_since=iso_microseconds(since) if since is not None else None,
        finished_by=_finished_by(stream, state, holds) if state is not None and state.sealed else None,
    )


def _finished_by(stream: StreamId, state: LogState, holds: Holds) -> list[str]:
    """The groups that consumed a sealed stream to its end."""
    return [
        str(group.subscription)
        for group in holds.groups
        if (need := group.needs.get(stream)) is not None and need >= state.next
    ]


def _word(state: LogState) -> Literal["open", "pending", "sealed"]:
    return "sealed" if state.sealed else "pending" if state.pending else "open"


def _group(group: GroupProgress, space: Space, holds: Holds) -> SpaceGroup:
    expiry = expiry_of(group, [space])
    return SpaceGroup(
        subscription=str(group.subscription),
        behind=sum(max(0, holds.ends.get(s, 0) - need) for s, need in group.needs.items()),
        idle_seconds=round(group.idle_ms / 1000, 3),
        expires_after_seconds=expiry / 1000 if expiry else None,
        expired_at=moment(group.expired_at),
    )
