"""``streamlease space create|list|show|alter|seal|delete``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, cast

import typer

from streamlease.admin.acting import Yes, confirm
from streamlease.admin.archives.archive_options import Archive, ArchiveCatalog, KeepInMemory, archive_settings
from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.completing import SpaceName
from streamlease.admin.facts.fact_tables import LISTED_SPACES
from streamlease.admin.output import document, line, note, noting, printable, table
from streamlease.admin.running import with_client
from streamlease.admin.spaces import schema_option, space_alter, space_view
from streamlease.admin.spaces.compaction_option import CompactAfter, parse_compact_after
from streamlease.admin.spaces.epoch_options import Epochs, EpochsOnLoss, EpochsTimeout, epoch_options
from streamlease.admin.spaces.retention_options import (
    Age,
    Bytes,
    Force,
    GroupExpiry,
    Messages,
    RetentionOptions,
)
from streamlease.admin.spaces.schema_option import SchemaFile
from streamlease.admin.watching import Watch, view
from streamlease.protocol.plurals import counted

if TYPE_CHECKING:
    from streamlease.admin.facts.spaces import SpaceList
    from streamlease.agent.client import Client
    from streamlease.streams.spaces.definitions import ShardHash

app = typer.Typer(
    help="Topic spaces: which topics belong together, in how many streams.", no_args_is_help=True
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Letters, digits, '_' and '-'.")],
    topics: Annotated[
        list[str],
        typer.Option("--topics", metavar="FILTER...", help="Topic filter of the space. May be repeated."),
    ],
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    streams: Annotated[int, typer.Option(help="Number of ordered streams to spread the topics over.")] = 1,
    retention: Age = None,
    retention_bytes: Bytes = None,
    retention_messages: Messages = None,
    retention_force: Force = None,
    group_expiry: GroupExpiry = None,
    durability: Annotated[
        str,
        typer.Option(
            metavar="memory|fsync|replicated:K",
            help="When a message counts as written: at once, on disk, or in K replicas.",
        ),
    ] = "memory",
    schema: SchemaFile = None,
    compact_after: CompactAfter = None,
    epochs: Epochs = None,
    epochs_timeout: EpochsTimeout = None,
    epochs_on_loss: EpochsOnLoss = None,
    shard_hash: Annotated[
        str | None,
        typer.Option(
            metavar="blake2b|sha256",
            help="Which hash of its topic chooses the stream of a message. sha256 is for programs that "
            "append without Streamlease and have no BLAKE2b. Cannot be changed later.",
        ),
    ] = None,
    collection: Annotated[
        bool,
        typer.Option("--collection", help="Messages are changes of a multiset. Cannot be changed later."),
    ] = False,
    archive: Archive = None,
    keep_in_memory: KeepInMemory = None,
    archive_catalog: ArchiveCatalog = None,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a space. Succeeds if it already exists with the same definition."""
    # In "--topics a/# b/#" the shell hands the second filter over as an argument of its own.
    filters = [*topics, *(more or [])]
    from streamlease.streams.spaces.retention import Retention

    asked = RetentionOptions(retention, retention_bytes, retention_messages, retention_force, group_expiry)
    keep = asked.changed(Retention()) if asked.anything else None
    columns = None if schema is None else schema_option.read(schema)
    older = archive_settings(archive, keep_in_memory, archive_catalog)
    space = with_client(
        redis,
        lambda client: client.create_space(
            name,
            filters,
            streams=streams,
            retention=keep,
            durability=durability,
            schema=columns,
            compact_after_ms=parse_compact_after(compact_after),
            collection=collection,
            archive=older,
            shard_hash=cast("ShardHash | None", shard_hash),  # it is checked there
            **epoch_options(epochs, epochs_timeout, epochs_on_loss),
        ),
    )
    if as_json:
        space_view.definition(space)
    else:
        line(f"space {space.name} has {counted(space.newest.streams, 'stream')} for {' '.join(space.topics)}")


@app.command("list")
def list_spaces(watch: Watch = None, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """List all spaces."""

    from streamlease.admin.facts import spaces

    view(redis, spaces.look, _draw_list, as_json=as_json, watch=watch)


def _draw_list(seen: SpaceList) -> None:
    LISTED_SPACES.table(seen.spaces)
    for one in seen.damaged:
        line(f"space {printable(one.name)} cannot be read: {printable(one.why)}")


@app.command()
def show(name: SpaceName, watch: Watch = None, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """Show one space and its streams: what they hold, and which groups keep messages from being removed."""
    from streamlease.admin.facts import spaces

    view(redis, partial(spaces.look_into, name=name), space_view.draw, as_json=as_json, watch=watch)


@app.command()
def topics(name: SpaceName, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """List the topics that anybody has published to, since the space was made: 10,000 at most."""
    from streamlease.admin.facts.catalog_rows import TopicsShown
    from streamlease.streams.spaces.published_topics import KnownTopics, known_topics

    async def work(client: Client) -> KnownTopics:
        space = await client.spaces.get(name)
        return await known_topics(client.redis, space.name)

    found = with_client(redis, work)
    if as_json:
        document(TopicsShown(space=name, topics=found.topics, truncated=found.truncated))
        return
    table(("topic",), [(topic,) for topic in found.topics], f"nobody has published to space {name}")
    if found.truncated:
        note(f"there may be more: {len(found.topics):,} topics of a space are kept")


app.command("alter")(space_alter.alter)


@app.command()
def seal(
    name: SpaceName,
    yes: Yes = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """End a space for good: it takes no more messages, and readers reach its end. Safe to repeat."""
    confirm(
        f"Seal space {name}, so that it never takes a message again?",
        f"space {ascii(name)[:80]} is sealed for good",
        yes=yes,
        as_json=as_json,
    )
    space = with_client(redis, lambda client: client.seal_space(name))
    if as_json:
        space_view.definition(space)
    else:
        line(f"space {space.name} is sealed")


@app.command()
def delete(
    name: SpaceName,
    with_archive: Annotated[
        bool, typer.Option("--with-archive", help="Remove the files of its archive too; else they stay.")
    ] = False,
    yes: Yes = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete a space and all its messages. The files of its archive stay, unless --with-archive is given.

    With --with-archive it is safe to repeat until all of the archive is gone.
    """
    confirm(
        f"Delete space {name} with all its messages{' and its archive' if with_archive else ''}?",
        f"space {ascii(name)[:80]} is deleted with all its messages",
        yes=yes,
        as_json=as_json,
    )
    with_client(redis, lambda client: _delete(client, name, with_archive=with_archive))
    if as_json:
        from streamlease.admin.answers import Deleted

        document(Deleted(deleted=name))
    else:
        line(f"space {name} is deleted")


async def _delete(client: Client, name: str, *, with_archive: bool) -> None:
    if not with_archive:
        await client.spaces.delete(name)
        return
    import asyncio
    from contextlib import closing

    from streamlease.streams.archive.removal import delete_with_archive
    from streamlease.streams.redis.urls import blocking_twin

    with closing(blocking_twin(client.redis)) as blocking, noting("streamlease.streams"):
        await asyncio.to_thread(delete_with_archive, blocking, name)
