"""Requests of one member at several gateways: in turns, where they reach each other and where they do not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

import streamlease
from streamlease.admin.facts.group import describe
from streamlease.gateway.between.gateway_lines import GatewayLines, Unreachable, certificate_digest
from streamlease.gateway.http_app import GatewayApp
from streamlease.gateway.http_server import GatewayServer, gateway_config
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys
from tests.gateway.conftest import Start
from tests.gateway.http_client import HttpClient
from tests.gateway.members.member_client import Member, ends
from tests.gateway.members.test_members import named, publish

Client = streamlease.Client
SHARED = SharedSubscription.parse("$shared/g/a/#")


async def arrival(client: Client) -> int:
    """By which session of the group the member is served; each take-over makes a new one."""
    return int(await client.redis.execute_command("GET", keys.arrivals(SHARED.id)))


async def gateways(start_gateway: Start, client: Client, count: int) -> list[HttpClient]:
    await client.create_space("s", ["a/#"], streams=4)
    return [await start_gateway() for _ in range(count)]


async def test_requests_in_turns_do_not_move_the_session(client: Client, start_gateway: Start) -> None:
    member = await Member(await gateways(start_gateway, client, 3), "g").join("a/#")
    first = await arrival(client)
    await publish(client, 100)
    while len(member.got) < 100:
        await member.done(await member.fetch(max=7))
    assert len(set(member.got)) == 100
    assert await arrival(client) == first
    await member.leave()
    for gateway in member.gateways:
        named(await gateway.get(f"{member.base}/{member.id}/messages"), 404, "unknown-member")


async def test_gateways_that_do_not_reach_each_other_move_the_session(
    client: Client, start_gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(*_: Any) -> None:
        raise Unreachable("no way", asked=False)

    monkeypatch.setattr(GatewayLines, "ask", none)
    member = await Member(await gateways(start_gateway, client, 2), "g").join("a/#")
    first = await arrival(client)
    await publish(client, 100)
    while len(member.got) < 100:
        await member.done(await member.fetch(max=20))
    assert len(set(member.got)) == 100
    assert await arrival(client) > first
    moved = (await describe(client, SHARED)).moves
    assert moved == 0


async def test_a_gateway_that_was_replaced_passes_requests_on(
    client: Client, start_gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, newer = await gateways(start_gateway, client, 2)
    member = await Member([former], "g").join("a/#")
    await publish(client, 20, topics=1)
    page = await member.fetch(max=10)
    with monkeypatch.context() as patch:
        patch.setattr("streamlease.registry.members.member_records.GatewaySigns.alive", _dead)
        member.send_to([newer])
        await member.done(page)
    member.send_to([former])  # which still thinks that it serves the member
    rest = await member.fetch(max=100)
    assert [one["offset"] for one in rest["messages"]] == [*range(10, 20)]
    await member.done(rest)
    assert await arrival(client) == 2


async def _dead(*_: Any) -> bool:
    return False


async def test_two_gateways_that_want_a_member_at_once(
    client: Client, start_gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = await gateways(start_gateway, client, 4)
    member = await Member([first], "g").join("a/#")
    await publish(client, 40, topics=1)
    page = await member.fetch(max=10)
    (stream,) = ends(page)
    with monkeypatch.context() as patch:
        patch.setattr("streamlease.registry.members.member_records.GatewaySigns.alive", _dead)
        path = f"{member.base}/{member.id}/commit"
        body = f'{{"offsets": {{"{stream}": 10}}}}'
        answers = await asyncio.gather(*(gateway.post(path, body) for gateway in others * 3))
    assert {answer.status for answer in answers} <= {200, 503}
    assert 200 in {answer.status for answer in answers}
    member.send_to([first, *others])
    while len({*member.got}) < 40:
        await member.done(await member.fetch(max=10))


async def test_a_request_that_was_passed_on_is_not_passed_on_again(
    client: Client, start_gateway: Start
) -> None:
    first, second = await gateways(start_gateway, client, 2)
    member = await Member([first], "g").join("a/#")
    path = f"{member.base}/{member.id}/messages"
    named(await second.get(path, {"streamlease-forwarded": "gateway-x"}), 421, "misdirected")


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


@asynccontextmanager
async def by_tls(client: Client, folder: Path) -> AsyncIterator[tuple[int, str]]:
    """A gateway with a certificate that nobody vouches for; its port, and its digest."""
    certificate = trustme.CA().issue_cert("example.org")
    certificate.private_key_pem.write_to_path(folder / "key")
    for place, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(folder / "certificate", append=place > 0)
    digest = certificate_digest((folder / "certificate").read_text())
    app = GatewayApp(client, digest=digest)
    config = gateway_config(app, ssl_certfile=folder / "certificate", ssl_keyfile=folder / "key")
    listener = socket.create_server(("127.0.0.1", 0))
    server = GatewayServer(app, config, signals=False)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1], digest
    finally:
        server.end()
        await serving
        listener.close()


async def test_by_tls_the_certificate_is_pinned(
    client: Client, embedded_redis_url: str, tmp_path: Path
) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    await publish(client, 20)
    async with (
        streamlease.connect(embedded_redis_url) as another,
        by_tls(client, make(tmp_path / "one")) as (first, digest),
        by_tls(another, make(tmp_path / "two")) as (second, _),
    ):
        lines = GatewayLines()
        addresses = [f"https://127.0.0.1:{port}#{digest}" for port in (first, second)]
        base, form = b"/v1/groups/g/members", [(b"content-type", b"application/json")]
        joined = await lines.ask(addresses[0], "POST", base, form, b'{"filter": "a/#", "start": "earliest"}')
        assert joined.status == 201, joined
        with pytest.raises(Unreachable, match="another certificate"):
            await lines.ask(addresses[1], "GET", base, (), b"")
        member = joined.body.decode().split('"')[3]
        own = certificate_digest((tmp_path / "two" / "certificate").read_text())
        path = f"/v1/groups/g/members/{member}/messages?wait=5".encode()
        passed = await lines.ask(f"https://127.0.0.1:{second}#{own}", "GET", path, (), b"")
        assert passed.status == 200, passed
        assert await arrival(client) == 1  # it was passed on, by TLS, to who serves it
        lines.close()
