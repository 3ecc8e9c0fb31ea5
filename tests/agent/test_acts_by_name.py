"""Operators' acts, asked for by programs in words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlease import blocking
from streamlease.agent.client import Client
from streamlease.protocol.acts import PauseGroup
from streamlease.protocol.errors import (
    ActRefused,
    InvalidInput,
    NotLeader,
    StreamleaseError,
    UnknownGroup,
)
from streamlease.registry import keys
from tests.agent.helpers import SUB, publish, take


async def test_a_group_is_paused_and_goes_on(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    async with client.subscribe(SUB, start="earliest") as reader:
        await client.act(SUB, "pause", who="ana")
        assert (await client.command(SUB, "describe"))["paused"] is not None
        await publish(client, range(3), topics=1)
        await client.act(SUB, "resume")
        assert await take(reader, 3) == [0, 1, 2]
        assert (await client.command(SUB, "describe"))["paused"] is None


async def test_an_act_has_fields_and_is_done_once(client: Client) -> None:
    space = await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    (stream,) = map(str, space.streams())
    async with client.subscribe(SUB, start="earliest", name="one") as reader:
        batch = await anext(reader)
        await batch.commit()
        would = await client.act(SUB, "reset", offsets={stream: 1}, dry_run=True)
        done = [await client.act(SUB, "reset", offsets={stream: 1}, request="r") for _ in range(2)]
        assert would
        assert done[0] == done[1], "the second is answered as the first was"
        assert await take(reader, 2) == [1, 2]


REFUSED: dict[str, tuple[Any, Any, dict[str, Any], type[StreamleaseError], str]] = {
    "subscription": (7, "pause", {}, InvalidInput, "shared subscription"),
    "filter": ("a/#", "pause", {}, InvalidInput, "'a/#'"),
    "group": ("$shared/other/a/#", "pause", {}, UnknownGroup, "other/a/#"),
    "act": (SUB, "fly", {}, InvalidInput, "act is 'fly': use one of rebalance, step_down"),
    "number": (SUB, 7, {}, InvalidInput, "act is 7: use one of rebalance, step_down"),
    "lacking": (SUB, "move", {"stream": "s.0.0"}, InvalidInput, "borrower is missing: the act needs it"),
    "other": (SUB, "pause", {"stream": "s.0.0"}, InvalidInput, "stream is 's.0.0'"),
    "unknown": (SUB, "pause", {"wings": 2}, InvalidInput, "wings is 2"),
    "words of parse": (SUB, "pause", {"name": 2, "kind": 3}, InvalidInput, " is 2"),
    "twice": (SUB, PauseGroup(), {"until": 4}, InvalidInput, "until beside them"),
    "seconds": (SUB, "pause", {"seconds": 0}, InvalidInput, "seconds is 0: give more than 0"),
    "no seconds": (SUB, "pause", {"seconds": "4"}, InvalidInput, "seconds is '4'"),
    "truth": (SUB, "reset", {"offsets": {"s.0.0": True}}, InvalidInput, "offsets.s.0.0 is True: "),
    "until": (SUB, "pause", {"until": False}, InvalidInput, "until is False: "),
    "who": (SUB, "pause", {"who": 7}, InvalidInput, "who is 7"),
    "stream": (SUB, "release", {"stream": "none"}, ActRefused, "none"),
}


async def test_what_is_refused_is_one_line_and_nothing_is_done(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    async with client.subscribe(SUB, start="earliest") as reader:
        for what, (subscription, act, fields, kind, says) in REFUSED.items():
            with pytest.raises(kind) as told:
                await client.act(subscription, act, **fields)
            assert says in str(told.value), what
            assert "\n" not in str(told.value), what
        with pytest.raises(InvalidInput, match="seconds is -1"):
            await client.drain_host("host", seconds=-1)
        assert (await client.command(SUB, "describe"))["paused"] is None
        await publish(client, range(1), topics=1)
        assert await take(reader, 1) == [0]


async def test_who_only_asks_the_leader_makes_none(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    async with client.subscribe(SUB):
        pass
    async with asyncio.timeout(20):
        while True:
            try:
                await client.command(SUB, "describe")
            except NotLeader as gone:
                assert "has no leader now" in str(gone)
                break
            await asyncio.sleep(0.05)


async def kept_of(client: Client, group: str) -> list[bytes]:
    """The keys of a group."""
    return [key async for key in client.redis.scan_iter(match=f"*{{g:{group}}}*")]


async def test_a_group_that_is_deleted_is_gone_with_its_progress(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    async with client.subscribe(SUB, start="earliest") as reader:
        assert await take(reader, 3) == [0, 1, 2]
        with pytest.raises(ActRefused, match="has 1 borrower"):
            await client.act(SUB, "delete")
        await client.act(SUB, "delete", force=True, dry_run=True)
        assert [str(group) for group in await client.groups.list()] == [SUB]
    await client.act(SUB, "delete", dry_run=True)
    assert await kept_of(client, "g/a/#") != []
    await client.act(SUB, "delete", who="ana")
    assert await client.groups.list() == []
    assert await kept_of(client, "g/a/#") == []
    with pytest.raises(UnknownGroup):
        await client.act(SUB, "delete", force=True)
    async with client.subscribe(SUB, start="earliest") as reader:
        assert await take(reader, 3) == [0, 1, 2], "it begins anew"
        await client.command(SUB, "delete", force=True)
        assert await client.groups.list() == []
        assert await kept_of(client, "g/a/#") == []


async def test_a_group_that_cannot_be_read_is_deleted_by_force_only(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    async with client.subscribe(SUB):
        pass
    await client.redis.set(keys.definition("g/a/#"), b"junk")
    with pytest.raises(ActRefused, match=r"cannot be read \(.+\), so no leader can say"):
        await client.act(SUB, "delete")
    assert await kept_of(client, "g/a/#") != []
    await client.act(SUB, "delete", force=True)
    assert await client.groups.list() == []
    assert await kept_of(client, "g/a/#") == []


def test_blocking(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.subscribe(SUB):
            client.act(SUB, "pause", who="ana")
            assert client.act(SUB, "describe")["paused"]["who"] == "ana"
            client.act(SUB, "resume")
            assert client.act(SUB, "describe")["paused"] is None
            with pytest.raises(InvalidInput, match="act is 'fly'"):
                client.act(SUB, "fly")
            with pytest.raises(StreamleaseError, match="no-host"):
                client.drain_host("no-host", seconds=1)
