"""Whose a place for an archive is.

A file there names the space, the Redis that it is in, and its first generation, which tells it from an
earlier space of that name. A place is taken by whom that file names, whether there are other files yet or
not; only the mark of a space of this Redis that is not there any more, and left no files, may be overwritten.
A place without a mark may be taken if it has no table.

Of two that take a place in the same moment, one at least is refused (``archive/files/first_writer.py``). Both
may go through only where a place had the mark of a space that is gone, or a folder has no hard links. So the
mark is read again whenever the table is opened (``streams/archive/iceberg_table.py``): one archives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from streamlease.protocol.errors import ArchiveUnavailable, SpaceConflict
from streamlease.streams.archive.files.first_writer import write_new
from streamlease.streams.archive.files.places import (
    OWNER_FILE,
    listed,
    read_small,
    remove,
    remove_folders,
    tried,
    write_small,
)
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import Redis, beside
from streamlease.streams.spaces.archive_settings import ArchiveSettings, check_moves
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.installation import installation
from streamlease.streams.spaces.known import Known


class PlaceOwner(NamedTuple):
    """Whose a place is."""

    installation: str
    space: str
    born: int

    def is_marked(self, uri: str) -> bool:
        """Whether the place is marked as theirs; False: it is not marked.

        Raises:
            SpaceConflict: it is somebody else's.
            ArchiveUnavailable: the store does not say.
        """
        mark = read_small(f"{uri}/{OWNER_FILE}")
        theirs = None if mark is None else _parsed(mark)
        if theirs is not None and theirs != self._asdict():
            raise SpaceConflict(_whose(uri, theirs, self))
        return theirs is not None

    def mark(self, uri: str) -> None:
        """Mark the place as theirs.

        Raises:
            ArchiveUnavailable: it cannot be written.
        """
        write_small(f"{uri}/{OWNER_FILE}", self._mark())

    def mark_first(self, uri: str) -> None:
        """Mark a place that has no mark.

        Raises:
            SpaceConflict: somebody else was faster.
            ArchiveUnavailable: it cannot be written.
        """
        if not write_new(f"{uri}/{OWNER_FILE}", self._mark()) and not self.is_marked(uri):
            raise ArchiveUnavailable(f"{uri} was given up in the moment in which it was taken: repeat this")

    def _mark(self) -> bytes:
        return json.dumps(self._asdict()).encode()


async def owner_of_place(redis: Redis, space: str, born: int) -> PlaceOwner:
    """A space, as it is named outside of its Redis.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite.
    """
    return PlaceOwner(await installation(redis), space, born)


async def take_place(redis: Redis, uri: str, space: str, born: int, known: Known) -> None:
    """Try whether files can be written there, and note whose they are.

    Args:
        known: the spaces that there are.

    Raises:
        SpaceConflict: it belongs to somebody else.
        ArchiveUnavailable: files cannot be written, read and removed there.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    owner, living = await owner_of_place(redis, space, born), _living(known)
    await beside(redis, lambda: _take(uri, owner, living))


async def try_place(redis: Redis, before: Space, after: Space, known: Known) -> None:
    """Whether a space could take the place where `after` has its archive; it is not taken.

    Raises:
        As `take_place`.
    """
    wanted = another_place(before, after)
    if wanted is not None:
        owner, living = await owner_of_place(redis, before.name, before.born), _living(known)
        await beside(redis, lambda: _tried(wanted.uri, owner, living))


def _living(known: Known) -> dict[str, int | None]:
    """The spaces that there are, with the first generation of those that can be read."""
    return {one.name: one.born for one in known.listed} | dict.fromkeys(known.damaged)


def another_place(before: Space, after: Space) -> ArchiveSettings | None:
    """The archive of `after`, if it is not where that of `before` is. Pure."""
    wanted, had = after.archive, before.archive
    if wanted is None or had is None:
        return wanted
    return None if (wanted.uri, wanted.catalog) == (had.uri, had.catalog) else wanted


async def check_place(redis: Redis, before: Space, after: Space) -> None:
    """Whether a space may have its archive where `after` has it; taking the place may find more.

    Raises:
        SpaceConflict: it has files elsewhere.
        StoreUnavailable, StoreRefused.
    """
    wanted = another_place(before, after)
    if wanted is not None:
        states = await AsyncLog(redis).states(before.streams())
        some = any(one.exists is not None for one in states.values())
        check_moves(before.name, before.archive, wanted, has_files=some)


async def leave_former(redis: Redis, before: Space, after: Space) -> None:
    """Let others have the place that a space had before.

    Raises:
        SpaceConflict, ArchiveUnavailable.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    left, now = before.archive, after.archive
    if left is not None and now is not None and left.uri != now.uri:
        owner = await owner_of_place(redis, before.name, before.born)
        await beside(redis, lambda: let_go(left.uri, owner))


def leave_place(uri: str, owner: PlaceOwner) -> int:
    """Remove all files of an archive: what others put beside them stays; how many.

    Raises:
        SpaceConflict: they are somebody else's.
        ArchiveUnavailable: some are still there; safe to repeat.
    """
    gone = 0
    files = [*listed(f"{uri}/data"), *listed(f"{uri}/metadata")]
    if not owner.is_marked(uri):
        if files:
            raise SpaceConflict(f"{uri} has files, and no {OWNER_FILE} that says whose: remove it by hand")
        return gone
    # The mark is the last to go, so this can be repeated.
    for path in [*files, f"{uri}/catalog.db", f"{uri}/{OWNER_FILE}"]:
        if not remove(path):
            raise ArchiveUnavailable(f"{path} cannot be removed")
        gone += 1
    remove_folders(uri)
    return gone


def let_go(uri: str, owner: PlaceOwner) -> None:
    """Remove the mark of a place that has no files.

    Raises:
        SpaceConflict, ArchiveUnavailable.
    """
    if owner.is_marked(uri) and not has_files(uri):
        leave_place(uri, owner)


def has_files(uri: str) -> bool:
    """Whether there is anything of a table.

    Raises:
        ArchiveUnavailable: the store does not say.
    """
    return bool(listed(f"{uri}/metadata") or listed(f"{uri}/data"))


def _take(uri: str, owner: PlaceOwner, living: Mapping[str, int | None]) -> None:
    mark = _tried(uri, owner, living)
    if mark is None:
        owner.mark_first(uri)
    elif _parsed(mark) != owner._asdict():
        owner.mark(uri)


def _tried(uri: str, owner: PlaceOwner, living: Mapping[str, int | None]) -> bytes | None:
    """The mark of a place that its owner may take; None: it has none."""
    tried(uri)
    mark = read_small(f"{uri}/{OWNER_FILE}")
    theirs = None if mark is None else _parsed(mark)
    if theirs == owner._asdict():
        return mark
    if has_files(uri) or (theirs is not None and not _is_spent(theirs, owner, living)):
        raise SpaceConflict(_whose(uri, theirs, owner))
    return mark


def _is_spent(theirs: dict[str, object], owner: PlaceOwner, living: Mapping[str, int | None]) -> bool:
    """Whether a mark is of a space of this Redis that is not there any more."""
    name = theirs.get("space")
    if theirs.get("installation") != owner.installation or not isinstance(name, str):
        return False
    return name not in living or living[name] not in (None, theirs.get("born"))


def _parsed(mark: bytes) -> dict[str, object] | None:
    """What a mark says; None: it is none, such as one that was written in part."""
    try:
        found = json.loads(mark)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _whose(uri: str, theirs: dict[str, object] | None, owner: PlaceOwner) -> str:
    if theirs is None:
        return f"{uri} has a table that is no archive of a space: choose another folder"
    where = "" if theirs.get("installation") == owner.installation else " in another Redis"
    return (
        f"{uri} is the archive of another space{where}, {ascii(theirs.get('space'))[:80]} (first generation "
        f"{ascii(theirs.get('born'))[:20]}): choose another folder, or remove that one"
    )
