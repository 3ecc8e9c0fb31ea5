"""One request that is asked for twice at once, by two parts of a program or by one that lost patience."""

from __future__ import annotations

import asyncio

from streamlease.protocol.acts import PauseGroup
from streamlease.protocol.messages import Command, CommandDone
from streamlease.protocol.topics import SharedSubscription
from streamlease.testing.memory.memory_connection import connect
from streamlease.testing.memory.memory_server import MemoryServer


async def test_who_asks_for_the_same_request_at_once_gets_the_same_answer() -> None:
    async with connect(MemoryServer()) as client:
        await client.create_space("s", ["a/#"])
        shared = SharedSubscription.parse("$shared/g/a/#")
        await client.groups.join(shared, "earliest")
        agent = await client.agent()
        command = Command(group=shared.id, request="the-same", act=PauseGroup(), who="me", at=1)
        one, other = await asyncio.gather(agent.commands.act(command, 20), agent.commands.act(command, 20))
        assert isinstance(one, CommandDone)
        assert other == one
