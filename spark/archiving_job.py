"""Archiving a space with the workers of Spark, where there is more than one process can take.

The driver looks at the table and at Redis, tasks write files and prove them, and the driver commits and
records them: once, as if one process had written them all. Tasks that Spark repeats leave files that nothing
names, which are swept away one day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamlease.protocol.errors import InvalidInput
from streamlease.spark.connections import connection
from streamlease.spark.setup.driver_context import driver_context
from streamlease.streams.archive.archiver import Archived, Archiver
from streamlease.streams.archive.files.index import ArchivedFile
from streamlease.streams.archive.many_writers import run_in_pieces
from streamlease.streams.archive.stream_pieces import Halt, StreamPiece, files_of
from streamlease.streams.redis.connection import run_blocking
from streamlease.streams.redis.urls import redis_url
from streamlease.streams.spaces.spaces import SpaceStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive_with_spark(session: SparkSession, url: str, space: str) -> Archived:
    """Archive now all that is in memory only.

    Raises:
        InvalidInput: the space has no archive. InvalidOption: `url` is no URL of a Redis.
        Unsupported: the session is one of Spark Connect, which cannot run such tasks.
        As ``Archiver.run``.
    """
    instead = "archive with --spark MASTER or without Spark, or run the program with spark-submit"
    context = driver_context(session, "tasks that write to an archive are the driver's", instead)
    redis = connection(redis_url(url))
    known = run_blocking(SpaceStore(redis).get(space))
    settings = known.archive
    if settings is None:
        raise InvalidInput(
            f"space {space} has no archive: give it one: streamlease space alter {space} --archive URI"
        )
    uri, collection = settings.uri, known.collection

    def write(pieces: Sequence[StreamPiece], schema: pa.Schema) -> list[list[ArchivedFile | Halt]]:
        columns = schema.serialize().to_pybytes()

        def task(piece: Any) -> list[tuple[Any, ...]]:
            outcomes = written_by_task(url, uri, StreamPiece(*piece), columns, collection=collection)
            return [tuple(one) for one in outcomes]

        if not pieces:
            return []
        given = context.parallelize([tuple(one) for one in pieces], len(pieces))
        return [[_outcome(one) for one in outcomes] for outcomes in given.map(task).collect()]

    return run_in_pieces(Archiver(redis, known, settings), write)


def written_by_task(
    url: str, uri: str, piece: StreamPiece, columns: bytes, *, collection: bool
) -> list[ArchivedFile | Halt]:
    """What a task writes: the files of one piece."""
    schema = pa.ipc.read_schema(pa.py_buffer(columns))
    return [*files_of(connection(url), uri, piece, schema, collection=collection)]


def _outcome(told: tuple[Any, ...]) -> ArchivedFile | Halt:
    return Halt(*told) if len(told) == len(Halt._fields) else ArchivedFile(*told)
