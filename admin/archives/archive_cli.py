"""``streamlease archive run|show|verify|compact``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from streamlease.admin.common_options import AsJson, RedisUrl, chosen_url
from streamlease.admin.completing import SpaceName
from streamlease.admin.output import document, line, noting, table
from streamlease.admin.running import with_client
from streamlease.protocol.errors import InvalidInput
from streamlease.protocol.quantities import format_size

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.streams.redis.connection import BlockingRedis
    from streamlease.streams.spaces.archive_settings import ArchiveSettings
    from streamlease.streams.spaces.definitions import Space

T = TypeVar("T")

app = typer.Typer(
    help="Archives: messages beyond the memory of Redis, in Apache Iceberg tables.", no_args_is_help=True
)


@app.command()
def run(
    name: SpaceName,
    spark: Annotated[
        str | None,
        typer.Option(
            metavar="MASTER",
            help="Let workers of Spark write the files, such as those of 'spark://host:7077'.",
        ),
    ] = None,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Archive now all that is in memory only, and let go of what need not stay there. Safe to repeat.

    Leader hosts do this by themselves, a little later. Whoever comes while another is at it waits.
    """
    from streamlease.admin.archives.archive_rows import ArchiveRun
    from streamlease.streams.archive.archive_turns import turn
    from streamlease.streams.archive.archiver import Archiver

    url = chosen_url(redis)

    def work(redis: BlockingRedis, space: Space, settings: ArchiveSettings) -> ArchiveRun:
        if spark is None:
            with turn(redis, space.name):
                done = Archiver(redis, space, settings).run()
        else:
            from streamlease.admin.archives.spark_archiving import archived_in_spark

            done = archived_in_spark(spark, url, space.name)
        return ArchiveRun(
            space=space.name,
            messages=done.messages,
            files=len(done.files),
            bytes=done.bytes,
            streams=sorted(done.streams),
            healed=done.healed,
            troubles=done.troubles,
        )

    seen = _with_archive(redis, name, work, trim=True)
    if as_json:
        document(seen)
        return
    line(
        f"space {name}: {seen.messages:,} messages are in {seen.files} new files of {format_size(seen.bytes)}"
    )
    for stream, why in seen.troubles.items():
        line(f"stream {stream} stands still: {why}")


@app.command()
def show(name: SpaceName, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """Show what of each stream is in the archive, and in which files."""
    from streamlease.admin.archives.archive_rows import ArchivedFileRow, ArchivedStream, ArchiveShown
    from streamlease.streams.archive.catalogs import table_name
    from streamlease.streams.archive.recording import recorded

    def work(redis: BlockingRedis, space: Space, settings: ArchiveSettings) -> ArchiveShown:
        known = recorded(redis, space.streams())
        return ArchiveShown(
            space=space.name,
            uri=settings.uri,
            table=table_name(space.name),
            streams=[
                ArchivedStream(
                    stream=str(stream),
                    first=one.exists,
                    next=one.archived,
                    bytes=sum(file.size for file in one.files),
                )
                for stream, one in known.items()
            ],
            files=[
                ArchivedFileRow(path=file.path, stream=str(stream), first=file.first, next=file.next)
                for stream, one in known.items()
                for file in one.files
            ],
        )

    seen = _with_archive(redis, name, work)
    if as_json:
        document(seen)
        return
    line(f"space {name}: table {seen.table} at {seen.uri}, {len(seen.files)} files")
    table(
        ("Stream", "First", "Next", "Bytes"),
        [(one.stream, one.first, one.next, one.bytes) for one in seen.streams],
        "no streams",
    )


@app.command()
def verify(name: SpaceName, redis: RedisUrl = None, as_json: AsJson = False) -> int:
    """Read all files again, and name those that are missing or altered. Exit 1 if anything is wrong."""
    from streamlease.admin.archives.archive_rows import ArchiveVerified, WrongRow
    from streamlease.streams.archive import checking

    def work(redis: BlockingRedis, space: Space, settings: ArchiveSettings) -> ArchiveVerified:
        seen = checking.verify(redis, space, settings)
        return ArchiveVerified(
            space=space.name,
            files=seen.files,
            messages=seen.messages,
            bytes=seen.bytes,
            wrong=[WrongRow(**one._asdict()) for one in seen.wrong],
        )

    seen = _with_archive(redis, name, work)
    if as_json:
        document(seen)
    else:
        line(
            f"space {name}: read {seen.messages:,} messages in {seen.files} files, {format_size(seen.bytes)}"
        )
        for one in seen.wrong:
            what = f"the file {one.path}" if one.path is not None else "nothing"
            line(f"offsets {one.first} to {one.next - 1} of stream {one.stream}: {what}: {one.why}")
        if not seen.wrong:
            line("all as it was written")
    return int(bool(seen.wrong))


@app.command()
def compact(name: SpaceName, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """Join small files, let old snapshots of the table go, and remove what nothing names any more.

    Leader hosts do this by themselves, now and then.
    """
    import time

    from streamlease.admin.archives.archive_rows import ArchiveCompacted
    from streamlease.streams.archive.archive_turns import turn
    from streamlease.streams.archive.archiver import Archiver
    from streamlease.streams.archive.upkeep_steps import merge, tidy

    def work(redis: BlockingRedis, space: Space, settings: ArchiveSettings) -> ArchiveCompacted:
        archiver = Archiver(redis, space, settings)
        with turn(redis, space.name):  # a host that is at it begins no other now
            done = merge(archiver)
            snapshots, swept = tidy(archiver, time.time())
        return ArchiveCompacted(
            space=space.name, files=done.files, into=done.into, snapshots=snapshots, swept=swept
        )

    seen = _with_archive(redis, name, work)
    if as_json:
        document(seen)
        return
    line(
        f"space {name}: {seen.files} files became {seen.into}; {seen.snapshots} snapshots and {seen.swept} "
        f"files were removed"
    )


def _with_archive(
    redis: str | None,
    name: str,
    work: Callable[[BlockingRedis, Space, ArchiveSettings], T],
    *,
    trim: bool = False,
) -> T:
    """Do `work` in a thread, with a blocking client; then trim, if no host does so.

    Raises:
        InvalidInput: the space has no archive.
    """
    import asyncio
    from contextlib import closing

    from streamlease.streams.redis.urls import blocking_twin

    async def main(client: Client) -> T:
        space = await client.spaces.get(name)
        settings = space.archive
        if settings is None:
            raise InvalidInput(
                f"space {name} has no archive: give it one: streamlease space alter {name} --archive URI"
            )
        with noting("streamlease.streams"):
            with closing(blocking_twin(client.redis)) as blocking:
                done = await asyncio.to_thread(work, blocking, space, settings)
            if trim:
                await _trim(client)
        return done

    return with_client(redis, main)


async def _trim(client: Client) -> None:
    from streamlease.hosts.trimming import Retainer
    from streamlease.protocol.ids import random_token
    from streamlease.streams.clock import milliseconds

    retainer = Retainer(client.redis, f"archive-{random_token()[:8]}", milliseconds)
    await retainer.round()
    await retainer.close()
