"""Defects planted into the product, each for the time of a ``with``: the rig must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from streamlease.streams.archive import archiver as archiver_module
from streamlease.streams.archive import upkeep_steps
from streamlease.streams.archive.files import file_writing
from streamlease.streams.archive.iceberg_table import SpaceTable, table_told
from streamlease.streams.archive.recording import FileChange
from streamlease.streams.log.archived import Files
from streamlease.streams.log.ranges import RangeReader

PLANTED: dict[str, Callable[[], Any]] = {}


def planted(bug: Callable[[], Iterator[None]]) -> Callable[[], Any]:
    """Put it on the list."""
    made = contextmanager(bug)
    PLANTED[bug.__name__] = made
    return made


@planted
def a_commit_stands_on_whatever_is_there() -> Iterator[None]:
    """Two archivers write the same messages, and the second one commits behind the first."""
    commit = SpaceTable.commit

    def again(table: SpaceTable, *about: Any) -> None:
        with table_told(table.uri):
            table.iceberg = table.iceberg.refresh()
        commit(table, *about)

    with mock.patch.object(SpaceTable, "commit", again):
        yield


@planted
def what_waits_counts_as_archived() -> Iterator[None]:
    """Redis is told of one message more than the files hold."""
    record = archiver_module.record

    def generous(redis: Any, term: int, changes: Sequence[FileChange]) -> None:
        record(redis, term, [one._replace(upto=one.upto + 1) if one.new else one for one in changes])

    with mock.patch.object(archiver_module, "record", generous):
        yield


@planted
def a_crash_behind_a_commit_is_not_healed() -> Iterator[None]:
    """What the table has and Redis does not know is archived again."""

    def begins_at_what_is_recorded(one: Any) -> int:
        return int(one.known.archived)

    with (
        mock.patch.object(archiver_module, "_heal", lambda stream, one: None),
        mock.patch.object(archiver_module.InTable, "end", property(begins_at_what_is_recorded)),
    ):
        yield


@planted
def what_left_the_memory_is_gone_for_listeners() -> Iterator[None]:
    """They do not look into the archive."""
    with mock.patch.object(RangeReader, "is_archived", property(lambda self: False)):
        yield


@planted
def a_task_of_spark_passes_over_the_beginning_of_a_file() -> Iterator[None]:
    """And says nothing."""
    read = Files.read

    def later(self: Files, wanted: Any, /) -> Generator[Any]:
        for batch in read(self, wanted):
            yield batch.slice(1) if batch.num_rows > 3 else batch

    with mock.patch.object(Files, "read", later):
        yield


@planted
def what_was_written_is_not_read_again() -> Iterator[None]:
    """A file counts as written when the store has said so."""
    with mock.patch.object(file_writing, "prove", lambda *about: None):
        yield


@planted
def a_file_that_the_table_lists_is_swept() -> Iterator[None]:
    """Because nobody has written to it for a while."""
    sweep = upkeep_steps.sweep

    def thorough(archiver: Any, standing: Any, table: SpaceTable, now: float, grace: float) -> int:
        named = {path for path in table.named_paths() if "/data/" not in path}
        with mock.patch.object(table, "named_paths", lambda: named):
            return sweep(archiver, {}, table, now, grace)

    with mock.patch.object(upkeep_steps, "sweep", thorough):
        yield


@planted
def what_nobody_names_is_swept_at_once() -> Iterator[None]:
    """Also while an archiver is about to commit it."""
    sweep = upkeep_steps.sweep

    def hasty(archiver: Any, standing: Any, table: SpaceTable, now: float, grace: float) -> int:
        return sweep(archiver, standing, table, now, -1.0)

    with mock.patch.object(upkeep_steps, "sweep", hasty):
        yield
