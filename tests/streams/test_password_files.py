"""A password in a file: each new connection reads it, so it may change while programs run."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
import redis

import streamlease
from streamlease.protocol.errors import InvalidOption, StoreRefused, StoreUnavailable
from streamlease.streams.redis import local_server, url_parts
from streamlease.streams.redis.connection import check_server, connect, connect_blocking
from streamlease.streams.tasks import stop
from tests.conftest import MakeServer
from tests.servers import NO_RETRY, RedisServer
from tests.streams.helpers import until

SUB = "$shared/g/a/#"


def set_password(port: int, password: str) -> None:
    """Give user ``me`` of a server another password, and cut its connections."""
    with redis.Redis(port=port, retry=NO_RETRY, socket_timeout=10.0) as admin:
        run: Any = admin.execute_command
        run("ACL", "SETUSER", "me", "on", "resetpass", f">{password}", "~*", "&*", "+@all")
        run("CLIENT", "KILL", "USER", "me")


def write(file: Path, password: str | bytes) -> None:
    file.write_bytes(password.encode() if isinstance(password, str) else password)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pass word"


@pytest.fixture(params=["embedded", "redis7"])
def server(request: pytest.FixtureRequest, make_redis_server: MakeServer) -> RedisServer:
    """A server with a user ``me``; the default user needs no password."""
    made = make_redis_server(request.param)
    set_password(made.port, "first")
    return made


@pytest.fixture
def url(server: RedisServer, file: Path) -> str:
    return f"{server.url.replace('//', '//me@')}?password_file={file}".replace(" ", "%20")


async def test_a_client_goes_on_with_the_next_password(server: RedisServer, url: str, file: Path) -> None:
    write(file, "first\n")
    client, blocking = connect(url), connect_blocking(url)
    for password in ("first", "second", "thi rd%"):
        write(file, password)
        set_password(server.port, password)
        for one in (client, blocking):
            with contextlib.suppress(StoreUnavailable):  # by a connection that was cut
                await check_server(one)
            await check_server(one)
        assert await client.execute_command("ACL", "WHOAMI") == b"me"
    blocking.close()
    await client.aclose()


async def test_a_consumer_and_a_publisher_go_on(server: RedisServer, url: str, file: Path) -> None:
    write(file, "first")
    async with streamlease.connect(url) as client, client.publisher() as publisher:
        await client.create_space("s", ["a/#"])
        got: list[int] = []

        async def consume() -> None:
            async with client.subscribe(SUB, start="earliest") as batches:
                async for batch in batches:
                    got.extend(int(message.payload) for message in batch.messages)
                    await batch.commit()

        consuming = asyncio.create_task(consume())
        for number in range(3):
            await publisher.send("a/x", str(number))
            await until(lambda number=number: number in got)  # type: ignore[misc]
            for kept in (b"", b"falsch", f"password {number}"):
                write(file, kept)
                await asyncio.to_thread(set_password, server.port, f"password {number}")
                if isinstance(kept, bytes):
                    with contextlib.suppress(StoreUnavailable, StoreRefused):  # by a connection that was cut
                        await check_server(client.redis)
                    with pytest.raises((StoreUnavailable, StoreRefused), match=r"log ?in"):
                        await check_server(client.redis)
        await publisher.send("a/x", "3")
        await until(lambda: 3 in got)
        await stop([consuming])


async def test_what_is_wrong_with_the_file_is_said_and_may_be_mended(
    server: RedisServer, url: str, file: Path
) -> None:
    client, blocking = connect(url), connect_blocking(url)
    for text, why in (
        (None, r"pass word' cannot be read: No such file or directory: write the password there"),
        (b"", "is empty: write the password there"),
        (b"\r\n", "is empty: write the password there"),
        (b"\xff", "is no UTF-8: write the password there"),
    ):
        if text is not None:
            write(file, text)
        for one in (client, blocking):
            with pytest.raises(StoreUnavailable, match=rf"^cannot log in to Redis at .*: .*{why}") as caught:
                await check_server(one)
            assert "\n" not in str(caught.value)
    write(file, "falsch")
    for one in (client, blocking):
        with pytest.raises(StoreRefused, match=r"refused the login .*into its password_file") as refused:
            await check_server(one)
        assert "falsch" not in str(refused.value)
    write(file, "first")
    for one in (client, blocking):
        await check_server(one)
    blocking.close()
    await client.aclose()


@pytest.mark.parametrize(
    "login",
    [
        "me@{at}?password_file={file}&db=3",
        "{at}?username=me&password_file={file}&db=3",
        "me:@{at}/3?password_file={file}",
    ],
)
async def test_the_rest_of_a_url_stands(server: RedisServer, file: Path, login: str) -> None:
    write(file, "first")
    url = f"redis://{login.format(at=f'127.0.0.1:{server.port}', file=str(file).replace(' ', '%20'))}"
    client, blocking = connect(url), connect_blocking(url)
    for one in (client, blocking):
        assert one.connection_pool.connection_kwargs["db"] == 3  # type: ignore[union-attr]
        await check_server(one)
    assert await client.execute_command("ACL", "WHOAMI") == b"me"
    blocking.close()
    await client.aclose()


async def test_without_a_user_it_is_the_password_of_the_default_one(
    make_redis_server: MakeServer, file: Path
) -> None:
    server = make_redis_server()
    with server.client() as admin:
        admin.config_set("requirepass", "geheim")
    write(file, "geheim\n")
    client = connect(f"{server.url}?password_file={file}".replace(" ", "+"))
    await check_server(client)
    await client.aclose()
    with server.client(password="geheim") as admin:
        admin.config_set("requirepass", "")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:geheim@h?password_file=/x",
        "redis://u:geheim@h?password_file=/x",
        "redis://h?password=geheim&password_file=/x",
        "unix://u:geheim@/s?password_file=/x",
        "redis+sentinel://u:geheim@h/s?password_file=/x",
        "redis+sentinel://h/s?sentinel_password=geheim&sentinel_password_file=/x",
    ],
)
def test_a_password_and_a_file_are_one_too_many(url: str) -> None:
    with pytest.raises(InvalidOption, match="of which only one can be meant") as caught:
        connect(url)
    assert "geheim" not in str(caught.value)


def test_the_file_is_no_secret() -> None:
    url = "redis://me@127.0.0.1:6379/0?password_file=/run/token"
    assert url_parts.masked(url) == url.replace("me@", "***@")


def test_the_embedded_redis_adds_its_password_only_where_none_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    login = "redis://:geheim@127.0.0.1:6379/0"
    state = local_server.ServerState(1, 6379, login, binary="", source="", persistent=False, started=0)
    monkeypatch.setattr(local_server, "running", lambda: state)
    url = "redis://127.0.0.1:6379"
    assert local_server.with_login(url) == "redis://:geheim@127.0.0.1:6379"
    assert local_server.with_login(f"{url}?password_file=/x") == f"{url}?password_file=/x"


async def test_a_socket_takes_it_too(make_redis_server: MakeServer, file: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    server = make_redis_server("redis7", settings={"unixsocket": str(path)})
    set_password(server.port, "first")
    write(file, "first")
    for login in ("me@", ""):
        user = "" if login else "&username=me"
        client = connect(f"unix://{login}{path}?password_file={file}{user}".replace(" ", "%20"))
        await check_server(client)
        assert await client.execute_command("ACL", "WHOAMI") == b"me"
        await client.aclose()


def test_redis_itself_would_not_know_the_option() -> None:
    with pytest.raises(TypeError, match="password_file"):
        redis.Redis.from_url("redis://h?password_file=/x").ping()
