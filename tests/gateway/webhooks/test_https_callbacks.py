"""Callbacks by TLS: the certificate must be of somebody who is trusted, and for the name in the subscription.

The name is resolved and its address checked before; the connection goes to that address, and the name that
the certificate is compared with stays that of the subscription.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from streamlease.gateway.webhooks.callback_lines import CallbackLines, NoAnswer
from streamlease.gateway.webhooks.core.callbacks import parse_callback
from streamlease.gateway.webhooks.webhook_service import WebhookSettings
from tests.gateway.conftest import Client, running
from tests.gateway.webhooks.conftest import post, publish

REQUEST = b"POST /hook HTTP/1.1\r\nhost: hooks.example\r\ncontent-length: 0\r\n\r\n"


class Callback(NamedTuple):
    """What a callback by TLS saw."""

    port: int
    names: list[str | None]
    """That were wanted of it, in each handshake."""
    requests: list[bytes]


@asynccontextmanager
async def serving(certificate: trustme.LeafCert) -> AsyncIterator[Callback]:
    """A callback with a certificate; it answers every request with 204."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    names: list[str | None] = []
    requests: list[bytes] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = (
                int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"
            )
            requests.append(head + await reader.readexactly(length))
            writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # a client that does not trust it ends the connection
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        yield Callback(server.sockets[0].getsockname()[1], names, requests)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """Whom this machine trusts, and nobody else."""
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    return made


async def posted(callback: Callback, host: str) -> int:
    lines = CallbackLines(allow_private=True, seconds=20.0, resolve=lambda *_: ["127.0.0.1"])
    try:
        wanted = parse_callback(f"https://{host}:{callback.port}/hook", allow_private=True)
        return await lines.post(wanted, REQUEST, suspect=False, still_may=lambda: True)
    finally:
        lines.close()


async def test_a_certificate_for_the_name_is_accepted(authority: trustme.CA) -> None:
    async with serving(authority.issue_cert("hooks.example")) as callback:
        assert await posted(callback, "hooks.example") == 204
        assert callback.names == ["hooks.example"] and callback.requests == [REQUEST]


async def test_a_certificate_for_an_address_is_accepted(authority: trustme.CA) -> None:
    async with serving(authority.issue_cert("127.0.0.1")) as callback:
        assert await posted(callback, "127.0.0.1") == 204


@pytest.mark.parametrize("host", ["other.example", "127.0.0.1", "sub.hooks.example"])
async def test_a_certificate_for_another_name_is_refused_before_anything_is_sent(
    authority: trustme.CA, host: str
) -> None:
    async with serving(authority.issue_cert("hooks.example")) as callback:
        with pytest.raises(NoAnswer, match=r"TLS with 127\.0\.0\.1 failed.*mismatch") as caught:
            await posted(callback, host)
        assert caught.value.kind == "callback-unreachable" and "\n" not in str(caught.value)
        assert callback.requests == []


@pytest.mark.usefixtures("authority")
async def test_a_certificate_of_somebody_else_is_refused_before_anything_is_sent() -> None:
    async with serving(trustme.CA().issue_cert("hooks.example")) as callback:
        with pytest.raises(NoAnswer, match=r"TLS with 127\.0\.0\.1 failed.*certificate"):
            await posted(callback, "hooks.example")
        assert callback.requests == []


async def test_a_certificate_that_has_expired_is_refused(authority: trustme.CA) -> None:
    old = authority.issue_cert("hooks.example", not_after=datetime(2020, 1, 1, tzinfo=UTC))
    async with serving(old) as callback:
        with pytest.raises(NoAnswer, match="expired"):
            await posted(callback, "hooks.example")
        assert callback.requests == []


async def test_a_subscription_is_delivered_by_tls(client: Client, authority: trustme.CA) -> None:
    await client.create_space("s", ["a/#"])
    settings = WebhookSettings(allow_private=True, resolve=lambda *_: ["127.0.0.1"])
    async with (
        serving(authority.issue_cert("hooks.example")) as callback,
        running(client, webhooks=settings) as http,
        asyncio.timeout(60),
    ):
        url = f"https://hooks.example:{callback.port}/hook"
        assert (await post(http, {"filter": "a/#", "callback": url, "id": "h"})).status == 201
        await publish(http, 1)
        while (await http.get("/v1/subscriptions/h")).json()["delivered"] == 0:
            pass
        (request,) = callback.requests
        assert b"\r\nstreamlease-signature: sha256=" in request and b'"payload":"0"' in request
