"""Members of groups over HTTP: join, fetch, commit, fail, leave."""

from __future__ import annotations

import pytest

import streamlease
from tests.gateway.conftest import Start
from tests.gateway.members.member_client import Member

Client = streamlease.Client


@pytest.fixture
async def space(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=4)


async def publish(client: Client, count: int, first: int = 0) -> None:
    async with client.publisher() as publisher:
        for number in range(first, first + count):
            await publisher.submit(f"a/{number % 20}", str(number).encode())


async def test_a_member_gets_all_and_commits(client: Client, space: None, start_gateway: Start) -> None:
    await publish(client, 100)
    member = await Member([await start_gateway()], "g").join("a/#")
    payloads = []
    while len(payloads) < 100:
        page = await member.fetch(max=30)
        payloads += [one["payload"] for one in page["messages"]]
        await member.done(page)
    assert sorted(map(int, payloads)) == [*range(100)]
    assert len(set(member.got)) == 100
    await member.leave()
