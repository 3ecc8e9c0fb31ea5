"""Whether the place of an archive is still the space's own: looked at whenever its table is opened."""

from __future__ import annotations

from streamlease.protocol.errors import ArchiveUnavailable, SpaceConflict, UnknownSpace
from streamlease.streams.archive.files.places import OWNER_FILE
from streamlease.streams.archive.recording import recorded
from streamlease.streams.redis.connection import BlockingRedis, run_blocking
from streamlease.streams.spaces.archive_place import has_files, owner_of_place
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.spaces import SpaceStore


def check_place(redis: BlockingRedis, space: Space, settings: ArchiveSettings) -> None:
    """Whether the place is marked as that of the space; one that is not is marked, if it has no files.

    Raises:
        SpaceConflict: it is somebody else's.
        ArchiveUnavailable: it should have files, and has not even a mark.
        UnknownSpace: the space is gone.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    owner = run_blocking(owner_of_place(redis, space.name, space.born))
    if owner.is_marked(settings.uri):
        return
    if run_blocking(SpaceStore(redis).get(space.name)).born != space.born:
        raise UnknownSpace(f"space {space.name} was deleted, and created anew")
    known = recorded(redis, space.streams(), with_files=False)
    if any(one.state.exists is not None for one in known.values()):
        raise ArchiveUnavailable(
            f"{settings.uri} has not even the file {OWNER_FILE}, and should have all files of the archive: "
            f"is the right folder mounted there? else restore it from a backup"
        )
    if has_files(settings.uri):
        raise SpaceConflict(
            f"{settings.uri} has files, and no {OWNER_FILE} that says whose: give the space another place: "
            f"streamlease space alter {space.name} --archive URI"
        )
    owner.mark(settings.uri)
