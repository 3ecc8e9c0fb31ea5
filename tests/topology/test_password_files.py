"""A password in a file, where several servers are logged in to."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

import streamlease
from streamlease.streams.redis.connection import check_server, connect, connect_blocking, run_blocking
from tests.conftest import MakeServer
from tests.servers import NO_RETRY
from tests.streams.helpers import until
from tests.streams.test_password_files import set_password
from tests.topology.servers import Cluster, Sentinels

pytestmark = [pytest.mark.topology, pytest.mark.timeout(180)]


def logged_in(port: int) -> bool:
    """Whether somebody is connected to that server as ``me``."""
    with redis.Redis(port=port, retry=NO_RETRY, socket_timeout=10.0) as admin:
        return any(one["user"] == "me" for one in admin.client_list())


async def goes_on(url: str, files: dict[Path, list[int]], used: list[int]) -> None:
    """Clients publish and read after each change, logged in at all servers that are `used`."""
    rotate(files, 0)
    async with streamlease.connect(url) as client, client.publisher() as publisher:
        await client.create_space("s", ["a/#"], streams=12)
        blocking = connect_blocking(url)
        for number in range(3):
            for topic in range(12):
                await publisher.send(f"a/{topic}", b"")
            seen: list[object] = []
            async with client.listen("a/#", start="earliest") as batches:
                async for batch in batches:
                    seen += batch.messages
                    if len(seen) == 12 * (number + 1):
                        break
            run_blocking(check_server(blocking))
            assert [logged_in(port) for port in used] == [True] * len(used)
            rotate(files, number + 1)
            await until(lambda: _answers(blocking))
        blocking.close()


def rotate(files: dict[Path, list[int]], number: int) -> None:
    for file, ports in files.items():
        file.write_text(f"{file.name} {number}\n")
        for port in ports:
            set_password(port, f"{file.name} {number}")


def _answers(blocking: object) -> bool:
    """A connection that was cut says so once."""
    try:
        run_blocking(check_server(blocking))  # type: ignore[arg-type]
    except streamlease.errors.StoreUnavailable:
        return False
    return True


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_all_nodes_of_a_cluster_are_logged_in_to_by_the_file(
    make_redis_server: MakeServer, tmp_path: Path, kind: str
) -> None:
    cluster = Cluster(make_redis_server, kind)
    url = f"{cluster.url.replace('//', '//me@')}?password_file={tmp_path / 'data'}"
    ports = [node.port for node in cluster.nodes]
    await goes_on(url, {tmp_path / "data": ports}, ports)


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_sentinels_and_their_servers_have_files_of_their_own(
    make_redis_server: MakeServer, tmp_path: Path, kind: str
) -> None:
    made = Sentinels(make_redis_server, kind, tmp_path)
    try:
        files = {
            tmp_path / "data": [made.primary.port, made.replica.port],
            tmp_path / "watchers": made.ports,
        }
        url = (
            f"{made.url.replace('//', '//me@')}?password_file={tmp_path / 'data'}"
            f"&sentinel_username=me&sentinel_password_file={tmp_path / 'watchers'}"
        )
        await goes_on(url, files, [made.primary.port])
        for port in made.ports:  # and they are asked as that user, by its password
            set_password(port, "another")
        client = connect(url)
        with pytest.raises(streamlease.errors.StoreUnavailable, match="the primary of main does not answer"):
            await check_server(client)
        await client.aclose()
    finally:
        made.stop()
