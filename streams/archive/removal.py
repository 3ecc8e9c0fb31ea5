"""Deleting a space together with its archive.

The space goes first, so that nobody writes any more, and before that a note says what is to be removed. So
the command may be repeated until all is gone, also when the space is not there any more.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import NamedTuple

from streamlease.protocol.errors import ArchiveUnavailable, SpaceConflict, UnknownSpace
from streamlease.streams.archive.archive_turns import turn
from streamlease.streams.archive.catalogs import NAMESPACE, catalog_of
from streamlease.streams.archive.iceberg_table import table_told
from streamlease.streams.log.keys import archives_left
from streamlease.streams.redis.connection import BlockingRedis, ask, run_blocking
from streamlease.streams.redis.damaged import parsing
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.archive_place import leave_place, owner_of_place
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.spaces import SpaceStore

_LEAVE = load_script("streamlease.streams.archive", "leave")


class LeftArchive(NamedTuple):
    """The archive of a space that is gone, or about to be."""

    space: str
    born: int
    settings: ArchiveSettings

    @property
    def name(self) -> str:
        """Of the note."""
        return f"{self.space}/{self.born}"


def delete_with_archive(redis: BlockingRedis, space: str) -> None:
    """Delete a space, all that is in its memory, and all that is in its archive. Safe to repeat.

    Raises:
        UnknownSpace: there is no such space, and it left no archive.
        SpaceConflict: the place of the archive is another space's; nothing was done.
        ArchiveUnavailable: others work at the archive; or the space is gone, and some files are still there.
        Unsupported, StoreUnavailable, StoreRefused, Indefinite.
    """
    with turn(redis, space):
        left = _noted(redis, space)
        spaces = SpaceStore(redis)
        try:
            found = run_blocking(spaces.get(space))
        except UnknownSpace:
            if not left:
                raise
        else:
            if found.archive is not None:
                one = LeftArchive(space, found.born, found.archive)
                run_blocking(owner_of_place(redis, space, found.born)).is_marked(found.archive.uri)
                note = json.dumps([one.space, one.born, one.settings.model_dump()])
                run_blocking(_LEAVE.run(redis, [archives_left()], [one.name, note]))
                left.append(one)
            run_blocking(spaces.delete(space))
        for one in left:
            try:
                _remove(redis, one)
            except ArchiveUnavailable as error:
                raise ArchiveUnavailable(
                    f"space {space} is deleted, but not all of its archive ({error}): repeat this: "
                    f"streamlease space delete {space} --with-archive"
                ) from None
            run_blocking(ask(redis, [("HDEL", archives_left(), one.name)]))


def _noted(redis: BlockingRedis, space: str) -> list[LeftArchive]:
    (found,) = run_blocking(ask(redis, [("HGETALL", archives_left())]))
    left: list[LeftArchive] = []
    for name, note in zip(found[::2], found[1::2], strict=True):
        if name.startswith(f"{space}/".encode()):
            with parsing(f"the note of an archive that space {space} left", archives_left()):
                _, born, settings = json.loads(note)
                left.append(LeftArchive(space, int(born), ArchiveSettings.model_validate(settings)))
    return left


def _remove(redis: BlockingRedis, one: LeftArchive) -> None:
    owner = run_blocking(owner_of_place(redis, one.space, one.born))
    try:
        if one.settings.catalog:
            _drop_table(redis, one)
        leave_place(one.settings.uri, owner)
    except SpaceConflict:
        return  # somebody else has it since, so there was nothing left


def _drop_table(redis: BlockingRedis, one: LeftArchive) -> None:
    """Let the catalog forget the table."""
    with table_told(one.settings.uri):
        from pyiceberg.exceptions import NoSuchTableError

        identifier = (NAMESPACE, one.space)
        with closing(catalog_of(redis, one.space, one.settings)) as catalog:
            try:
                table = catalog.load_table(identifier)
            except NoSuchTableError:
                return
            if table.location().removeprefix("file://") == one.settings.uri:
                catalog.drop_table(identifier)
