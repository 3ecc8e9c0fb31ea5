"""Archiving that goes on, in a thread, while others read the table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from pyiceberg.table import StaticTable

from streamlease.agent import blocking
from streamlease.streams.archive.upkeep_steps import merge, tidy
from streamlease.streams.redis.connection import connect_blocking, run_blocking
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.spaces import SpaceStore
from tests.archive.helpers import archiver, in_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST = 3
"""How often files are joined, at least, while Spark reads."""

ROUND = 60
"""Messages between two commits."""


class GoingOn:
    """What it has done so far."""

    def __init__(self, url: str, space: Space) -> None:
        self.archived = 0
        """Messages that are in the table, at least."""
        self.commits = 0
        self._merges = 0
        self._url, self._space = url, space
        self._over = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="archiving")

    def _run(self) -> None:
        redis = connect_blocking(self._url)
        try:
            with blocking.connect(self._url) as client, client.publisher() as publisher:
                while not self._over.is_set():
                    for number in range(ROUND):
                        publisher.submit(f"flights/{number % 7}", b"more %d" % number)
                    publisher.flush()
                    keeper = archiver(redis, self._space)
                    self.archived += keeper.run().messages
                    self.commits += 1
                    if self.commits % 3 == 0:
                        self._merges += merge(keeper).files > 0
                        tidy(keeper, time.time())
        except BaseException as error:
            self._error = error
        finally:
            redis.close()

    def has_joined(self, times: int) -> bool:
        """Whether files were joined so often; raises what has ended the archiving."""
        if self._error is not None:
            raise self._error
        return self._merges >= times

    @contextmanager
    def running(self) -> Iterator[GoingOn]:
        """From here on, until the end of the ``with``."""
        self._thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._thread.join(60)
            assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


def all_once(offsets: list[int], least: int) -> None:
    """The rows of one stream: none twice, none missing, and all that were archived before."""
    assert sorted(offsets) == [*range(len(offsets))]
    assert len(offsets) >= least


def read_while_archiving_goes_on(spark: SparkSession, url: str) -> list[int]:
    """Spark's own reader of Parquet, again and again while files are joined; the rows of each time."""
    sizes: list[int] = []
    redis = connect_blocking(url)
    try:
        space = run_blocking(SpaceStore(redis).get("flights"))
        assert space.archive is not None
        before = len(in_table(redis, space))
    finally:
        redis.close()
    folder = Path(space.archive.uri, "metadata")
    with GoingOn(url, space).running() as going:
        while not going.has_joined(LEAST):
            least = before + going.archived
            newest = (folder / "version-hint.text").read_text()
            table = StaticTable.from_metadata(f"{folder}/{newest}.metadata.json")
            files = [one.file.file_path for one in table.scan().plan_files()]
            frame = spark.read.parquet(*files)
            found = [(row.stream, row.offset) for row in frame.select("stream", "offset").collect()]
            sizes.append(len(found))
            assert len(found) >= least
            for stream in map(str, space.streams()):
                all_once([offset for name, offset in found if name == stream], 0)
    return sizes
