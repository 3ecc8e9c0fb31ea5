"""TLS with certificates made here, users with few rights, and what a user is told who has the wrong ones."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

import streamlease
from streamlease.admin.doctor.roles import CLIENT, Role
from streamlease.admin.redis import server_process
from streamlease.protocol.errors import StoreRefused, StoreUnavailable, StreamleaseError, Unsupported
from streamlease.registry import spawn
from streamlease.registry.leadership import NOBODY
from streamlease.streams.redis.connection import (
    check_server,
    connect,
    connect_blocking,
    exchange,
    run_blocking,
)
from tests.admin.command import Command
from tests.conftest import MakeServer
from tests.servers import Kind, RedisServer
from tests.streams.helpers import has_line, until

pytestmark = [pytest.mark.topology, pytest.mark.timeout(200)]


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
    port = server_process.free_port()
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
            stream, _ = await publisher.send("s/x", b"0")
            await until(lambda: has_line(publisher, stream))
            for number in range(1, 10):
                await publisher.send("s/x", b"%d" % number)
            assert has_line(publisher, stream)
        seen: list[bytes] = []
        async with client.subscribe("$shared/g/s/#", start="earliest") as sub:
            async for batch in sub:
                seen += [message.payload for message in batch.messages]
                await batch.commit()
                if len(seen) == 10:
                    break
        assert seen == [b"%d" % number for number in range(10)]
    blocking = connect_blocking(url)
    assert await asyncio.to_thread(run_blocking, exchange(blocking, [("ECHO", "x")])) == [b"x"]
    blocking.close()


async def test_certificates_that_are_renewed_are_used_by_the_next_connection(
    tls: tuple[RedisServer, int], certificates: Certificates, tmp_path: Path
) -> None:
    """Of another authority, too, which neither the client nor the server had known before."""
    server, port = tls
    url = f"rediss://127.0.0.1:{port}/0?{options(certificates)}"
    blocking = connect_blocking(url)
    async with streamlease.connect(url) as client, client.publisher() as publisher:
        await client.create_space("s", ["s/#"])
        await publisher.send("s/x", b"0")
        run_blocking(check_server(blocking))
        for number in range(1, 3):
            Certificates(tmp_path)
            with server.client() as admin:
                admin.execute_command(  # type: ignore[no-untyped-call]
                    "CONFIG",
                    "SET",
                    *("tls-ca-cert-file", str(certificates.authority)),
                    *("tls-cert-file", str(certificates.certificate)),
                    *("tls-key-file", str(certificates.key)),
                )
                admin.client_kill_filter(_type="normal", skipme=True)
            for redis in (client.redis, blocking):
                with contextlib.suppress(StoreUnavailable):  # by a connection that was cut
                    await check_server(redis)
                await check_server(redis)
            await publisher.send("s/x", b"%d" % number)
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


class DeafPeer:
    """A TLS proxy before a Redis that never answers that a connection is closed, and keeps it open."""

    def __init__(self, port: int, certificates: Certificates) -> None:
        self._redis = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.certificate, certificates.key)
        self._kept: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the test ended
            while True:
                taken, _ = self._listener.accept()
                inside = self._context.wrap_socket(taken, server_side=True)
                outside = socket.create_connection(("127.0.0.1", self._redis))
                self._kept += [inside, outside]
                for pair in ((inside, outside), (outside, inside)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)

    def close(self) -> None:
        for one in (self._listener, *self._kept):
            one.close()


def test_a_peer_that_does_not_finish_its_shutdown_is_left(
    make_redis_server: MakeServer, certificates: Certificates, tmp_path: Path
) -> None:
    peer = DeafPeer(make_redis_server().port, certificates)
    command = Command(tmp_path, f"rediss://127.0.0.1:{peer.port}?ssl_ca_certs={certificates.authority}")
    try:
        command.ok("space", "create", "s", "--topics", "s/#")
        command.ok("publish", "s/a", text="1\n")
        assert command.ok("consume", "$shared/g/s/#", "--from", "earliest", "--count", "1").out == "s/a\t1\n"
        doctor = command("doctor")
        assert (doctor.code, doctor.err) == (0, "")
    finally:
        peer.close()


# -- users ---------------------------------------------------------------------------------------------------


def with_user(server: RedisServer, role: Role, *more: str) -> str:
    rules = role.line().split()[3:]
    if server.kind is Kind.REDIS7:
        rules.remove("+waitaof")  # Redis 7.0 does not know it
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", role.name, *rules, *more)  # type: ignore[no-untyped-call]
    return server.url.replace("//", f"//{role.name}:PASSWORD@")


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_the_documented_rights_are_enough(make_redis_server: MakeServer, kind: str) -> None:
    """All other jobs of the roles: ``tests/admin/test_roles.py``."""
    server = make_redis_server(kind, persistent=True)
    # Redis 7.0 has no WAITAOF: there `fsync` needs a right that no role has, and is refused without it.
    url = with_user(server, CLIENT, *(["+config|get"] if kind == "redis7" else []))
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
        with pytest.raises(StoreRefused, match="does not let this user do that"):
            (reply,) = await exchange(client.redis, [("SET", "theirs", "x")])
            raise refused(reply)
    queue = spawn.queue_client(url)
    with pytest.raises(StoreRefused, match="does not let this user do that"):
        await spawn.spawn(queue, "g/s/#", NOBODY)
    queue.close()


async def test_without_waitaof_and_the_right_to_ask_fsync_is_refused(make_redis_server: MakeServer) -> None:
    url = with_user(make_redis_server("redis7", persistent=True), CLIENT)
    async with streamlease.connect(url) as client:
        with pytest.raises(Unsupported, match="durability fsync needs more"):
            await client.create_space("s", ["s/#"], durability="fsync")


def refused(reply: object) -> StreamleaseError:
    from streamlease.streams.redis.connection import refusal

    assert isinstance(reply, Exception)
    return refusal(reply)  # type: ignore[arg-type]


@pytest.mark.parametrize("login", ["client:wrong", "nobody:PASSWORD"])
async def test_a_wrong_login_is_one_clear_line(make_redis_server: MakeServer, login: str) -> None:
    server = make_redis_server()
    with_user(server, CLIENT)
    client = connect(server.url.replace("//", f"//{login}@"))
    with pytest.raises(StoreRefused, match="refused the login") as caught:
        await check_server(client)
    assert "\n" not in str(caught.value)
    assert "PASSWORD" not in str(caught.value)
    await client.aclose()
