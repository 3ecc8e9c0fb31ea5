"""Lone surrogates in what a program hands to a client: one clear line, and the agent lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import ValidationError

from streamlease.agent.client import Client, connect
from streamlease.protocol.acts import parse
from streamlease.protocol.errors import InvalidInput, InvalidOption, StreamleaseError
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.groups import Declaration
from tests.agent.helpers import SUB, publish, take

BAD: Any = "x\ud800"
SHARED = SharedSubscription.parse(SUB)
Call = Callable[[Client], Awaitable[object]]


def entered(make: Callable[[Client], Any]) -> Call:
    async def call(client: Client) -> None:
        async with make(client):
            raise AssertionError("it was entered")

    return call


CALLS: dict[str, Call] = {
    "space": lambda client: client.create_space(BAD, ["q/#"]),
    "topics": lambda client: client.create_space("q", [BAD]),
    "shard_by": lambda client: client.create_space("q", ["q/#"], shard_by=BAD),
    "shard_hash": lambda client: client.create_space("q", ["q/#"], shard_hash=BAD),
    "durability": lambda client: client.create_space("q", ["q/#"], durability=BAD),
    "get": lambda client: client.spaces.get(BAD),
    "delete": lambda client: client.spaces.delete(BAD),
    "alter": lambda client: client.spaces.generations.alter(BAD, streams=2),
    "offsets": lambda client: client.next_offsets([StreamId(BAD, 0, 0)]),
    "group": lambda client: client.groups.get(SharedSubscription(BAD, "a/#")),
    "subscription": entered(lambda client: client.subscribe(BAD)),
    "filter": entered(lambda client: client.subscribe(f"$shared/g/a/{BAD}")),
    "name": entered(lambda client: client.subscribe(SUB, name=BAD)),
    "start": entered(lambda client: client.subscribe(SUB, start=BAD)),
    "strategy": entered(lambda client: client.subscribe(SUB, options=GroupOptions(strategy=BAD))),
    "dead letters": entered(lambda client: client.subscribe(SUB, options=GroupOptions(dead_letters=BAD))),
    "listen": entered(lambda client: client.listen(BAD)),
    "listen start": entered(lambda client: client.listen("a/#", start=BAD)),
    "history": entered(lambda client: client.history(BAD)),
    "history since": entered(lambda client: client.history("a/#", since=BAD)),
    "act": lambda client: client.act(SHARED, parse(BAD)),
    "who acts": lambda client: client.act(SHARED, parse("describe"), who=BAD),
    "stream of an act": lambda client: client.act(SHARED, parse("release", stream=BAD)),
    "reset": lambda client: client.act(SHARED, parse("reset", offsets={BAD: 1})),
    "who commands": lambda client: client.command(SHARED, parse("describe"), who=BAD),
    "host": lambda client: client.drain_host(BAD),
    "who drains": lambda client: client.drain_host("h", who=BAD),
    "codec": entered(lambda client: client.publisher(compression=BAD)),
    "url": entered(lambda client: connect(BAD)),
}


async def test_what_is_no_text_is_refused_and_the_agent_lives_on(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    async with client.subscribe(SUB, start="earliest") as reader:
        agent = await client.agent()
        for what, call in CALLS.items():
            try:
                async with asyncio.timeout(20):
                    await call(client)
            except StreamleaseError as error:
                shown = str(error)
                shown.encode()
                assert "\n" not in shown, what
                assert len(shown) < 400, what
            else:
                raise AssertionError(what)
        assert agent.error is None
        assert await client.agent() is agent
        assert await take(reader, 3) == [0, 1, 2]


KINDS: dict[str, Callable[[Client, Any], Awaitable[object]]] = {
    "topics": lambda client, bad: client.create_space("q", bad),
    "space": lambda client, bad: client.spaces.get(bad),
    "catalog": lambda client, bad: entered(lambda client: client.catalog(bad))(client),
    "listen": lambda client, bad: entered(lambda client: client.listen(bad))(client),
    "history": lambda client, bad: entered(lambda client: client.history(bad))(client),
    "collection": lambda client, bad: entered(lambda client: client.collection(bad))(client),
    "subscription": lambda client, bad: entered(lambda client: client.subscribe(bad))(client),
    "options": lambda client, bad: entered(lambda client: client.subscribe(SUB, options=bad))(client),
    "lookup": lambda client, bad: client.lookup(bad),
    "act": lambda client, bad: client.act(SUB, bad),
}


@pytest.mark.parametrize("what", KINDS)
async def test_what_is_of_another_kind_is_one_line(client: Client, what: str) -> None:
    await client.create_space("s", ["a/#"])
    for bad in (3, 1.5, True, object(), {}, [], b"\xff"):
        with pytest.raises(InvalidInput) as told:
            async with asyncio.timeout(20):
                await KINDS[what](client, bad)
        assert "\n" not in str(told.value), bad


async def test_a_filter_may_be_bytes(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(2), topics=1)
    filter: Any = b"a/#"
    async with client.history(filter) as history:
        assert [int(message.payload) async for batch in history for message in batch.messages] == [0, 1]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_failures": "many"}, "max_failures is 'many': "),
        ({"on_poison": "eat"}, "on_poison is 'eat': Input should be 'dead-letter' or 'stop'"),
        ({"strategy": 3}, "strategy is 3: "),
        ({"retry_delay_ms": None}, "retry_delay_ms is None: "),
    ],
)
def test_an_option_of_another_kind_is_one_line(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption) as told:
        GroupOptions(**fields)
    assert str(told.value).startswith(says)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("options", ['{"colour": 1}', '{"max_failures": "many"}'])
def test_kept_options_of_another_kind_are_damage(options: str) -> None:
    """And no error that those who read many declarations do not know."""
    with pytest.raises(ValidationError):
        Declaration.model_validate_json(
            f'{{"subscription": "{SUB}", "start": "latest", "options": {options}}}'
        )


async def test_the_cause_of_a_failure_may_be_anything(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(1), topics=1)
    async with client.subscribe(SUB, start="earliest", options=GroupOptions(max_failures=1)) as reader:
        async with asyncio.timeout(20):
            batch = await anext(reader)
            assert await batch.fail(0, ValueError(f"{BAD}\n" * 5000)) == "passed"
    async with client.history("$dead/#") as history:
        (letter,) = [message async for found in history for message in found.messages]
    assert dict(letter.headers)["dead-letter-cause"].startswith(b"ValueError: x\\ud800")


@pytest.mark.parametrize("what", ["act", "stream"])
async def test_what_an_act_cannot_be_is_one_line(client: Client, what: str) -> None:
    await client.create_space("s", ["a/#"])
    async with client.subscribe(SUB, start="earliest"):
        with pytest.raises(StreamleaseError, match=f"{what} is "):
            if what == "act":
                await client.act(SHARED, parse("fly"))
            else:
                await client.act(SHARED, parse("release", stream=7))
