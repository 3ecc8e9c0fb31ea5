"""Whose a place is: two spaces that want the same one, places that were lost or exchanged, and their end."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from streamlease.agent.client import Client
from streamlease.hosts import archiving
from streamlease.hosts.archiving import ArchiveUpkeep
from streamlease.hosts.trimming import Retainer
from streamlease.protocol.errors import ArchiveUnavailable, SpaceConflict, UnknownSpace, Unsupported
from streamlease.streams.archive import removal
from streamlease.streams.archive.files import places
from streamlease.streams.archive.files.places import OWNER_FILE
from streamlease.streams.archive.recording import recorded
from streamlease.streams.archive.removal import delete_with_archive
from streamlease.streams.log.keys import archives_left
from streamlease.streams.redis.connection import BlockingRedis, ask, run_blocking
from streamlease.streams.spaces import archive_place
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Space
from tests.archive.helpers import archive, content_of, drop, is_there, move, publish, put, rows, space_of
from tests.archive.test_upkeep import Clock


async def other(client: Client, uri: str, name: str = "other") -> Space:
    return await client.create_space(name, [f"{name}/#"], archive=ArchiveSettings.of(uri))


async def test_a_place_is_taken_from_when_its_space_is_made(client: Client, uri: str) -> None:
    space = await space_of(client, uri)
    with pytest.raises(SpaceConflict, match="archive of another space, 'flights'"):
        await other(client, uri)
    assert await space_of(client, uri) == space, "its own space may be made again"
    await client.spaces.delete("flights")
    taken = await other(client, uri)
    with pytest.raises(SpaceConflict, match="archive of another space, 'other'"):
        await space_of(client, uri)
    mark = json.loads(content_of(Path(uri, OWNER_FILE)))
    assert (mark["space"], mark["born"]) == ("other", taken.born)
    await client.spaces.delete("other")
    put(Path(uri, OWNER_FILE), json.dumps(mark | {"installation": "elsewhere"}).encode())
    with pytest.raises(SpaceConflict, match="another space in another Redis, 'other'"):
        await other(client, uri)
    put(Path(uri, OWNER_FILE), b'{"installa')
    await other(client, uri)


async def test_of_two_that_take_a_folder_in_one_moment_one_is_refused(
    client: Client, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found no mark before either wrote its own."""
    meet = threading.Barrier(2, timeout=60)
    read = archive_place.read_small

    def both(address: str) -> bytes | None:
        found = read(address)
        if found is None:
            meet.wait()
        return found

    monkeypatch.setattr(archive_place, "read_small", both)
    one, two = await asyncio.gather(space_of(client, uri), other(client, uri), return_exceptions=True)
    (made,) = [found for found in (one, two) if isinstance(found, Space)]
    (refused,) = [found for found in (one, two) if isinstance(found, BaseException)]
    assert isinstance(refused, SpaceConflict)
    assert f"is the archive of another space, {made.name!a}" in str(refused)
    assert [one.name for one in (await client.spaces.look()).listed] == [made.name]
    assert [*places.listed(uri)] == [f"{uri}/{OWNER_FILE}"]


async def test_of_two_spaces_with_one_place_only_its_owner_archives(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked before either wrote its mark."""
    space = await space_of(client, uri)
    mark = content_of(Path(uri, OWNER_FILE))
    drop(Path(uri, OWNER_FILE))
    second = await other(client, uri)
    await publish(client, 0, 100)
    with pytest.raises(SpaceConflict, match="'other'"):
        archive(blocking, space)
    assert places.listed(f"{uri}/data") == places.listed(f"{uri}/metadata") == {}
    put(Path(uri, OWNER_FILE), mark)
    assert archive(blocking, space).messages == 100
    with pytest.raises(SpaceConflict, match="'flights'"):
        archive(blocking, second)
    with pytest.raises(SpaceConflict, match="'flights'"):
        delete_with_archive(blocking, "other")
    assert (await client.spaces.get("other")).name == "other", "nothing was done"
    clock = Clock()
    host = ArchiveUpkeep(client.redis, "host-a", clock)
    for _ in range(2):
        await host.round()
        clock.now += int(archiving.WAIT_SECONDS * 1000)
    assert len(places.listed(f"{uri}/data")) == 2
    await host.close()


async def test_a_place_without_its_mark_gets_it_back_or_is_not_there(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 100)
    drop(Path(uri, OWNER_FILE))
    assert archive(blocking, space).messages == 100
    move(uri, f"{uri}-unmounted")
    await publish(client, 100, 100)
    with pytest.raises(ArchiveUnavailable, match="is the right folder mounted there"):
        archive(blocking, space)
    assert places.listed(uri) == {}, "no new table begins where the old one was"
    move(f"{uri}-unmounted", uri)
    assert archive(blocking, space).messages == 100
    assert sum(table.num_rows for table in (await rows(client, space)).values()) == 200


def _tables(catalog: str) -> list[tuple[str, ...]]:
    with load_catalog("streamlease", uri=catalog) as there:
        return there.list_tables("streamlease")


def _open_files() -> set[Path]:
    return {one.resolve() for one in Path("/proc/self/fd").iterdir()}


async def test_no_catalog_stays_open(
    client: Client, blocking: BlockingRedis, uri: str, tmp_path: Path
) -> None:
    """A host looks at each archive again and again, and the catalog may be a server with few connections."""
    catalog = tmp_path / "shared.db"
    space = await client.create_space(
        "flights", ["flights/#"], archive=ArchiveSettings.of(uri, f"sqlite:///{catalog}")
    )
    gc.disable()
    try:
        for first in (0, 100):
            await publish(client, first, 100)
            assert archive(blocking, space).messages == 100
        delete_with_archive(blocking, "flights")
        assert _tables(f"sqlite:///{catalog}") == []
        assert catalog not in _open_files()
    finally:
        gc.enable()


async def test_the_end_of_an_archive_may_be_repeated(
    client: Client, blocking: BlockingRedis, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = f"sqlite:///{tmp_path}/shared.db"
    given = ArchiveSettings.of(uri, catalog)
    with load_catalog("streamlease", uri=catalog) as there:
        there.create_namespace("streamlease")
    space = await client.create_space("flights", ["flights/#"], archive=given)
    await publish(client, 0, 100)
    assert archive(blocking, space).messages == 100
    assert _tables(catalog) == [("streamlease", "flights")]
    assert not is_there(f"{uri}/catalog.db")
    (file,) = recorded(blocking, space.streams())[space.streams()[0]].files

    def refusing(what: Callable[[str], bool]) -> Callable[[str], bool]:
        return lambda path: path != file.path and what(path)

    with monkeypatch.context() as patched:
        patched.setattr(archive_place, "remove", refusing(archive_place.remove))
        for _ in range(2):
            with pytest.raises(
                ArchiveUnavailable, match="repeat this: streamlease space delete flights"
            ) as told:
                delete_with_archive(blocking, "flights")
            assert file.path in str(told.value)
    with pytest.raises(UnknownSpace):
        await client.spaces.get("flights")
    assert is_there(file.path)
    ((name, note),) = run_blocking(ask(blocking, [("HGETALL", archives_left())]))
    run_blocking(ask(blocking, [("HSET", archives_left(), "other/1", b"junk", name, b"junk")]))
    with pytest.raises(
        Unsupported, match=r"note of an archive that space flights left is damaged.*: restore"
    ):
        delete_with_archive(blocking, "flights")
    run_blocking(ask(blocking, [("HSET", archives_left(), name, note)]))
    delete_with_archive(blocking, "flights")
    assert not is_there(uri)
    assert _tables(catalog) == []
    with pytest.raises(UnknownSpace):
        delete_with_archive(blocking, "flights")
    assert removal._noted(blocking, "flights") == []


async def test_a_catalog_has_one_table_for_one_space(
    client: Client, blocking: BlockingRedis, uri: str, tmp_path: Path
) -> None:
    catalog = f"sqlite:///{tmp_path}/shared.db"
    space = await client.create_space("flights", ["flights/#"], archive=ArchiveSettings.of(uri, catalog))
    await publish(client, 0, 10)
    archive(blocking, space)
    await client.spaces.delete("flights")
    again = await client.create_space(
        "flights", ["flights/#"], archive=ArchiveSettings.of(f"{uri}-2", catalog)
    )
    await publish(client, 0, 10)
    with pytest.raises(SpaceConflict, match=r"has a table streamlease\.flights already"):
        archive(blocking, again)
    delete_with_archive(blocking, "flights")
    assert _tables(catalog) == [("streamlease", "flights")]
    assert not is_there(f"{uri}-2")
    assert is_there(uri)


async def test_a_redis_that_is_full_is_archived_and_an_archive_may_end(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    """What frees memory needs none; see decision 145."""
    space = await client.create_space("flights", ["flights/#"], archive=ArchiveSettings.of(uri, keep_bytes=1))
    await publish(client, 0, 100)
    clock = Clock()
    host, retainer = ArchiveUpkeep(client.redis, "host-a", clock), Retainer(client.redis, "host-a", clock)
    await client.redis.config_set("maxmemory", 1)
    try:
        await host.round()
        clock.now += int(archiving.WAIT_SECONDS * 1000)
        (done,) = await host.round()
        assert done.messages == 100
        await retainer.round()
        (known,) = recorded(blocking, space.streams()).values()
        assert known.state.memory.first == 100
        assert (await rows(client, space))[space.streams()[0]].num_rows == 100
        delete_with_archive(blocking, "flights")
    finally:
        await client.redis.config_set("maxmemory", 0)
    assert not is_there(uri)
    await host.close()
    await retainer.close()
