"""Whose a place for an archive is.

A file there names the space, the Redis that it is in, and its first generation, which tells it from an
earlier space of that name. A place with a table belongs to whom that file names; one without may be taken.
"""

from __future__ import annotations

import json

from streamlease.protocol.errors import ArchiveUnavailable, SpaceConflict
from streamlease.streams.archive.files.places import (
    listed,
    read_small,
    remove,
    remove_folders,
    tried,
    write_small,
)
from streamlease.streams.redis.connection import Redis, beside
from streamlease.streams.spaces.installation import installation

OWNER_FILE = "streamlease-archive.json"


async def take_place(redis: Redis, uri: str, space: str, born: int) -> None:
    """Try whether files can be written there, and note whose they are.

    Raises:
        SpaceConflict: it belongs to somebody else.
        ArchiveUnavailable: files cannot be written, read and removed there.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    owner: dict[str, str | int] = {"installation": await installation(redis), "space": space, "born": born}
    await beside(redis, lambda: _take(uri, owner))


def leave_place(uri: str) -> int:
    """Remove all files of an archive: what others put beside them stays; how many.

    Raises:
        ArchiveUnavailable: some are still there; safe to repeat.
    """
    gone = 0
    paths = [*listed(f"{uri}/data"), *listed(f"{uri}/metadata"), f"{uri}/catalog.db", f"{uri}/{OWNER_FILE}"]
    for path in paths:
        if not remove(path):
            raise ArchiveUnavailable(f"{path} cannot be removed: remove {uri} by hand")
        gone += 1
    remove_folders(uri)
    return gone


def _take(uri: str, owner: dict[str, str | int]) -> None:
    path = f"{uri}/{OWNER_FILE}"
    tried(uri)
    mark = read_small(path)
    if mark is not None and _parsed(mark) == owner:
        return
    if listed(f"{uri}/metadata"):
        raise SpaceConflict(_whose(uri, mark))
    write_small(path, json.dumps(owner).encode())


def _parsed(mark: bytes) -> object:
    try:
        return json.loads(mark)
    except ValueError:
        return None


def _whose(uri: str, mark: bytes | None) -> str:
    owner = None if mark is None else _parsed(mark)
    if not isinstance(owner, dict):
        return f"{uri} has a table that is no archive of a space: choose another folder"
    return (
        f"{uri} is the archive of another space, {ascii(owner.get('space'))[:80]} (first generation "
        f"{ascii(owner.get('born'))[:20]}): choose another folder, or remove that one"
    )
