"""TLS with certificates made here, users with few rights, and what a user is told who has the wrong ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

import streamlease
from streamlease.admin import embedded
from streamlease.protocol.errors import StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.registry import spawn
from streamlease.registry.leadership import NOBODY
from streamlease.streams.connection import (
    check_server,
    connect,
    connect_blocking,
    exchange,
    exchange_blocking,
)
from tests.conftest import MakeServer
from tests.servers import Kind, RedisServer

pytestmark = [pytest.mark.topology, pytest.mark.timeout(200)]

RIGHTS = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()


class Certificates:
    """An authority, the server's certificate and a client's, as files."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.authority = directory / "authority.pem"
        self.certificate = directory / "certificate.pem"
        self.key = directory / "key.pem"
        authority.cert_pem.write_to_path(self.authority)
        issued = authority.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(self.key)
        for number, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(self.certificate, append=number > 0)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def tls(make_redis_server: MakeServer, certificates: Certificates) -> Iterator[tuple[RedisServer, int]]:
    """A server of Redis 7 (the embedded one has no TLS) that wants a client certificate, and its port."""
    port = embedded.free_port()
    server = make_redis_server(
        "redis7",
        settings={
            "tls-port": str(port),
            "tls-cert-file": str(certificates.certificate),
            "tls-key-file": str(certificates.key),
            "tls-ca-cert-file": str(certificates.authority),
            "tls-auth-clients": "yes",
        },
    )
    yield server, port


def options(certificates: Certificates) -> str:
    return (
        f"ssl_ca_certs={certificates.authority}&ssl_certfile={certificates.certificate}"
        f"&ssl_keyfile={certificates.key}"
    )


async def test_all_of_it_over_tls(tls: tuple[RedisServer, int], certificates: Certificates) -> None:
    url = f"rediss://127.0.0.1:{tls[1]}/0?{options(certificates)}"
    async with streamlease.connect(url) as client:
        await client.create_space("s", ["s/#"])
        async with client.publisher() as publisher:
            for number in range(10):
                await publisher.send("s/x", b"%d" % number)
        seen: list[bytes] = []
        async with client.subscribe("$shared/g/s/#", start="earliest") as sub:
            async for batch in sub:
                seen += [message.payload for message in batch.messages]
                await batch.commit()
                if len(seen) == 10:
                    break
        assert seen == [b"%d" % number for number in range(10)]
    blocking = connect_blocking(url)
    assert await asyncio.to_thread(exchange_blocking, blocking, [("ECHO", "x")]) == [b"x"]
    blocking.close()


@pytest.mark.parametrize(
    ("kept", "word"),
    [
        ((), "(?i)certificate"),
        (("ssl_ca_certs",), "does not answer"),  # the server may close the line before it says why
    ],
)
async def test_who_does_not_trust_or_is_not_trusted_gets_one_clear_line(
    tls: tuple[RedisServer, int], certificates: Certificates, kept: tuple[str, ...], word: str
) -> None:
    query = "&".join(part for part in options(certificates).split("&") if part.partition("=")[0] in kept)
    client = connect(f"rediss://127.0.0.1:{tls[1]}/0?{query}")
    with pytest.raises(StoreUnavailable, match=word) as caught:
        await check_server(client)
    assert "\n" not in str(caught.value)
    await client.aclose()


async def test_plain_talk_to_a_tls_port_is_no_traceback(tls: tuple[RedisServer, int]) -> None:
    client = connect(f"redis://127.0.0.1:{tls[1]}/0")
    with pytest.raises(StreamleaseError):
        await check_server(client)
    await client.aclose()


# -- users ---------------------------------------------------------------------------------------------------


def documented(name: str) -> list[str]:
    """The rules of the user `name` as docs/redis.md gives them."""
    (line,) = [one for one in RIGHTS.splitlines() if one.startswith(f"ACL SETUSER {name} ")]
    return line.split()[3:]


def with_user(server: RedisServer, name: str) -> str:
    rules = documented(name)
    if server.kind is Kind.REDIS7:
        rules.remove("+waitaof")  # Redis 7.0 does not know it
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", name, *rules)  # type: ignore[no-untyped-call]
    return server.url.replace("//", f"//{name}:PASSWORD@")


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_the_documented_rights_are_enough(make_redis_server: MakeServer, kind: str) -> None:
    server = make_redis_server(kind, persistent=True)
    url = with_user(server, "streamlease")
    async with streamlease.connect(url) as client:
        await client.create_space("s", ["s/#"], streams=2, durability="fsync")
        async with client.publisher() as publisher:
            for number in range(10):
                await publisher.send("s/x", b"%d" % number)
        seen = 0
        async with client.subscribe("$shared/g/s/#", start="earliest") as sub:
            async for batch in sub:
                seen += len(batch)
                await batch.commit()
                if seen == 10:
                    break
        await client.spaces.delete("s")
        with pytest.raises(StoreRefused, match="does not let this user do that"):
            (reply,) = await exchange(client.redis, [("SET", "theirs", "x")])
            raise refused(reply)
    queue = spawn.queue_client(url)
    assert await spawn.spawn(queue, "g/s/#", NOBODY)
    queue.close()


def refused(reply: object) -> StreamleaseError:
    from streamlease.streams.connection import refusal

    assert isinstance(reply, Exception)
    return refusal(reply)  # type: ignore[arg-type]


@pytest.mark.parametrize("login", ["streamlease:wrong", "nobody:PASSWORD"])
async def test_a_wrong_login_is_one_clear_line(make_redis_server: MakeServer, login: str) -> None:
    server = make_redis_server()
    with_user(server, "streamlease")
    client = connect(server.url.replace("//", f"//{login}@"))
    with pytest.raises(StoreRefused, match="refused the login") as caught:
        await check_server(client)
    assert "\n" not in str(caught.value)
    assert "PASSWORD" not in str(caught.value)
    await client.aclose()
