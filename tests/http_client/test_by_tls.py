"""The clients of the gateway by TLS: what they trust, and for which name."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from streamlease import http
from streamlease.gateway.http_app import GatewayApp
from streamlease.gateway.http_server import GatewayServer, gateway_config
from streamlease.http.channel_client import ChannelClient
from streamlease.http.core.channel_machine import ChannelMessage
from tests.gateway.conftest import Client


@asynccontextmanager
async def by_tls(client: Client, certificate: trustme.LeafCert, folder: Path) -> AsyncIterator[str]:
    """A gateway with that certificate; its address."""
    certificate.private_key_pem.write_to_path(folder / "key")
    certificate.cert_chain_pems[0].write_to_path(folder / "certificate")
    app = GatewayApp(client)
    config = gateway_config(app, ssl_certfile=folder / "certificate", ssl_keyfile=folder / "key")
    listener = socket.create_server(("127.0.0.1", 0))
    server = GatewayServer(app, config, signals=False)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.end()
        await serving
        listener.close()


async def test_clients_publish_ask_follow_and_have_channels(client: Client, tmp_path: Path) -> None:
    await client.create_space("s", ["a/#"])
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with by_tls(client, authority.issue_cert("127.0.0.1"), tmp_path) as url, asyncio.timeout(60):
        for trust in (str(tmp_path / "authority"), context):
            async with http.connect(url, trust=trust) as service:
                begin = (await service.since("a/#")).next
                await service.publish("a/1", "x")
                assert [one.payload for one in (await service.since("a/#", begin)).messages] == [b"x"]
                for push in (True, False):
                    async with service.follow("a/#", begin, push=push) as pages:
                        assert [one.payload for one in (await anext(pages)).messages] == [b"x"]
            async with ChannelClient(url, trust=trust) as channel:
                channel.subscribe("k", "a/#", since=begin)
                message = await anext(channel)
                assert isinstance(message, ChannelMessage) and message.message["payload"] == "x"


@pytest.mark.parametrize(("name", "known"), [("127.0.0.1", False), ("elsewhere.example", True)])
async def test_a_gateway_that_is_not_trusted_gets_no_request(
    client: Client, tmp_path: Path, name: str, known: bool
) -> None:
    await client.create_space("s", ["a/#"])
    authority = trustme.CA()
    (authority if known else trustme.CA()).cert_pem.write_to_path(tmp_path / "authority")
    async with by_tls(client, authority.issue_cert(name), tmp_path) as url:
        async with http.connect(url, trust=str(tmp_path / "authority")) as service:
            with pytest.raises(http.GatewayUnavailable, match="certificate verify failed"):
                await service.publish("a/1", "secret", repeat=False, seconds=0.1)
        async with http.connect(url, trust=False) as service:
            assert (await service.since("a/#", "earliest")).messages == ()
