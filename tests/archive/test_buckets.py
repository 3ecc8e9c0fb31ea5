"""Archives in a bucket: a server that speaks S3, right and wrong credentials, and no bucket."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from streamlease.agent.client import Client
from streamlease.protocol.errors import ArchiveUnavailable, Lost
from streamlease.streams.archive.files import file_writing, first_writer, places
from streamlease.streams.archive.files.file_reading import _OPENED, read_file
from streamlease.streams.archive.recording import recorded
from streamlease.streams.archive.redis_catalog import RedisCatalog
from streamlease.streams.archive.removal import delete_with_archive
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import BlockingRedis, ask, run_blocking
from tests.archive.helpers import all_of, archive, in_table, publish, rows, same, space_of, trim_all


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server with the bucket `data`."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    request = urllib.request.Request(f"{url}/data", method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
    yield url
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of a place in it, and an environment in which it is found."""
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    places._files.cache_clear()
    yield f"s3://data/{tmp_path.name}"
    places._files.cache_clear()


async def test_a_bucket_is_an_archive_like_a_folder(
    client: Client, blocking: BlockingRedis, bucket: str
) -> None:
    space = await space_of(client, bucket)
    for first in (0, 200):
        await publish(client, first, 200)
        assert (await asyncio.to_thread(archive, blocking, space)).messages == 200
    whole = await rows(client, space)
    await trim_all(client, space)
    assert same(whole, await rows(client, space))
    assert in_table(blocking, space) == all_of(whole)
    files = recorded(blocking, space.streams())[space.streams()[0]].files
    await asyncio.to_thread(places.remove, files[0].path)
    _OPENED.forget(files[0])
    with pytest.raises(Lost, match="is missing"):
        await AsyncLog(client.redis).read(space.streams()[0], 0)


async def test_what_redis_forgot_of_the_table_is_put_back(
    client: Client, blocking: BlockingRedis, bucket: str
) -> None:
    space = await space_of(client, bucket)
    await publish(client, 0, 100)
    archive(blocking, space)
    key = "sl:{archive:flights}:table"
    (before,) = run_blocking(ask(blocking, [("HGET", key, "metadata")]))
    await publish(client, 100, 100)
    archive(blocking, space)
    run_blocking(ask(blocking, [("HSET", key, "metadata", before)]))
    await publish(client, 200, 100)
    whole = await rows(client, space)
    assert archive(blocking, space).healed == 2
    assert in_table(blocking, space) == all_of(whole)


async def test_two_archivers_in_one_bucket_commit_each_message_once(
    client: Client, blocking: BlockingRedis, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await space_of(client, bucket)
    await publish(client, 0, 100)
    archive(blocking, space)
    await publish(client, 100, 100)
    whole = await rows(client, space)
    point, raced = RedisCatalog._point, []

    def race(catalog: RedisCatalog, seen: str, new: str) -> bool:
        """The other one is faster, between what this one has seen and where it points."""
        if not raced:
            raced.append(0)
            raced.append(archive(blocking, space).messages)
        pointed = point(catalog, seen, new)
        raced.append(pointed)
        return pointed

    monkeypatch.setattr(RedisCatalog, "_point", race)
    assert archive(blocking, space).messages == 0
    assert raced == [0, True, 100, False]
    assert in_table(blocking, space) == all_of(whole)
    named = {file.path for one in recorded(blocking, space.streams()).values() for file in one.files}
    assert set(places.listed(f"{bucket}/data")) == named
    await trim_all(client, space)
    assert same(whole, await rows(client, space))


async def test_the_end_of_a_bucket_leaves_nothing_in_it(
    client: Client, blocking: BlockingRedis, bucket: str
) -> None:
    space = await space_of(client, bucket)
    await publish(client, 0, 100)
    archive(blocking, space)
    assert len(places.listed(bucket)) > 4
    delete_with_archive(blocking, "flights")
    assert places.listed(bucket) == {}
    again = await space_of(client, bucket)
    await publish(client, 0, 100)
    assert archive(blocking, again).messages == 100
    assert in_table(blocking, again) == all_of(await rows(client, again))


async def test_a_store_that_stops_while_it_is_read_has_lost_nothing(
    client: Client, blocking: BlockingRedis, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of its own, which stops behind the first row group and comes back."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    places._files.cache_clear()
    monkeypatch.setattr(file_writing, "GROUP_ROWS", 50)
    space = await space_of(client, bucket, streams=1)
    (stream,) = space.streams()
    await publish(client, 0, 200)
    whole = await rows(client, space)
    (file,) = archive(blocking, space).files
    await trim_all(client, space)
    batches = read_file(file, str(stream), 0, 200)
    assert next(batches).num_rows == 50
    server.stop()
    with pytest.raises(ArchiveUnavailable, match="cannot be read"):
        next(batches)
    with pytest.raises(ArchiveUnavailable, match="cannot be read"):
        await AsyncLog(client.redis).read(stream, 0)
    server = ThreadedMotoServer(host, port, verbose=False)
    server.start()
    try:
        assert same(whole, await rows(client, space))
    finally:
        server.stop()


async def test_wrong_credentials_are_told_in_one_line(
    client: Client, bucket: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _looked_at(endpoint):
        for name, value in (("AWS_ACCESS_KEY_ID", "nobody"), ("AWS_SECRET_ACCESS_KEY", "guessed")):
            monkeypatch.setenv(name, value)
            places._files.cache_clear()
            with pytest.raises(ArchiveUnavailable, match="cannot be written") as caught:
                await space_of(client, bucket)
            told = str(caught.value)
            assert "ACCESS_DENIED" in told or "INVALID_ACCESS_KEY_ID" in told or "403" in told, told
            assert "\n" not in told and "guessed" not in told
    assert (await client.spaces.look()).listed == []


@contextmanager
def _looked_at(endpoint: str) -> Iterator[None]:
    """Let the server look at credentials from now on, and no more at the end."""

    def post(data: bytes) -> None:
        plain = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", data, plain, method="POST")
        urllib.request.urlopen(request, timeout=30).close()

    post(b"0")
    try:
        yield
    finally:
        post(b"inf")


async def test_no_bucket_and_no_store_are_told_in_one_line(
    client: Client, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArchiveUnavailable, match="cannot be written") as caught:
        await space_of(client, "s3://none/flights")
    assert "\n" not in str(caught.value)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
    places._files.cache_clear()
    with pytest.raises(ArchiveUnavailable, match="cannot be written") as caught:
        await space_of(client, bucket)
    assert "\n" not in str(caught.value)


def test_of_two_that_take_a_place_in_a_bucket_at_once_one_is_refused(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one stands still between its last look and its write."""
    address = f"{bucket}/{places.OWNER_FILE}"
    write = first_writer.write_small
    seen: list[str] = []

    def slowly(path: str, data: bytes) -> None:
        if path == address and not seen:
            seen.append(path)
            with pytest.raises(ArchiveUnavailable, match="by somebody else in this moment: repeat this"):
                first_writer.write_new(address, b"the second one")
            assert places.read_small(address) is None
        write(path, data)

    monkeypatch.setattr(first_writer, "write_small", slowly)
    assert first_writer.write_new(address, b"the first one")
    assert seen == [address]
    assert not first_writer.write_new(address, b"a third one")
    assert places.read_small(address) == b"the first one"
    assert places.listed(f"{bucket}/{first_writer.CLAIMS}") == {}


def test_a_claim_of_who_died_is_passed_over_when_it_is_old(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{bucket}/{places.OWNER_FILE}"
    places.write_small(f"{bucket}/{first_writer.CLAIMS}/left", b"")
    with pytest.raises(ArchiveUnavailable, match="by somebody else in this moment"):
        first_writer.write_new(address, b"mine")
    monkeypatch.setattr(first_writer, "OLD_SECONDS", 0.0)
    monkeypatch.setattr(first_writer, "LATE_SECONDS", -1.0)
    with pytest.raises(ArchiveUnavailable, match="too slow; repeat this later"):
        first_writer.write_new(address, b"mine")
    assert places.read_small(address) is None
    monkeypatch.setattr(first_writer, "LATE_SECONDS", 60.0)
    assert first_writer.write_new(address, b"mine")
    assert places.listed(bucket).keys() == {address}
