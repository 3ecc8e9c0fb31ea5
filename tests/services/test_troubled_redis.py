"""A Redis that is out of memory, that a stranger has spoilt, or that gives each user his rights."""

from __future__ import annotations

import asyncio

import pytest

import streamlease
from streamlease.admin.doctor.roles import CLIENT, ROLES
from streamlease.protocol.errors import StoreRefused
from streamlease.services import keys
from streamlease.streams.redis.connection import ask
from tests.admin.test_roles import as_user, set_user
from tests.conftest import MakeServer
from tests.services.load import until
from tests.services.models import Score, Scored, Scorer, score


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_without_memory_no_call_begins_and_those_that_did_are_answered(
    make_redis_server: MakeServer, kind: str
) -> None:
    server = make_redis_server(kind)
    scorer = Scorer("one")
    scorer.may_go_on.clear()
    async with (
        streamlease.connect(server.url) as serving,
        streamlease.connect(server.url) as caller,
        serving.serve("scorer", {Score: scorer.score}),
    ):
        begun = asyncio.ensure_future(caller.call("scorer", Score(x=4), answer=Scored))
        await scorer.began.wait()
        with server.client() as operator:
            operator.config_set("maxmemory", "1")
            with pytest.raises(StoreRefused, match="out of memory"):
                await caller.call("scorer", Score(x=6), answer=Scored)
            scorer.may_go_on.set()
            assert (await begun).y == 2.0
            operator.config_set("maxmemory", "0")
        assert (await caller.call("scorer", Score(x=6), answer=Scored)).y == 3.0
        assert scorer.ran == {4: 1, 6: 1}


@pytest.mark.slow
async def test_streams_that_a_stranger_has_spoilt_are_made_anew(real_redis_url: str) -> None:
    async with (
        streamlease.connect(real_redis_url) as server,
        streamlease.connect(real_redis_url) as caller,
        server.serve("scorer", {Score: score}),
    ):
        assert (await caller.call("scorer", Score(x=4), answer=Scored)).y == 2.0
        there, here = await server._services.endpoint(), await caller._services.endpoint()
        for key in (keys.requests(there.address), keys.answers(here.id)):
            await ask(caller.redis, [("DEL", key), ("SET", key, "spoilt")])

        async def called() -> bool:
            try:
                return (await caller.call("scorer", Score(x=4), answer=Scored, wait=9, timeout=1)).y == 2
            except (StoreRefused, streamlease.errors.Indefinite):
                return False

        async with asyncio.timeout(30):
            while not await called():
                pass


async def test_what_is_lost_with_all_keys_comes_again(redis_url: str) -> None:
    async with (
        streamlease.connect(redis_url) as server,
        streamlease.connect(redis_url) as caller,
        server.serve("scorer", {Score: score}),
    ):
        before = (await server._services.endpoint()).address
        await ask(caller.redis, [("FLUSHALL",)])
        endpoint = await server._services.endpoint()
        await until(lambda: endpoint.address != before)
        answer = await caller.call("scorer", Score(x=4), answer=Scored, wait=30)
        assert answer.y == 2.0


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_the_role_of_a_client_serves_and_calls(make_redis_server: MakeServer, kind: str) -> None:
    server = make_redis_server(kind)
    with server.client() as operator:
        for role in ROLES.values():
            set_user(operator, role)
    url = as_user(server, CLIENT)
    async with (
        streamlease.connect(url) as serving,
        streamlease.connect(url) as caller,
        serving.serve("scorer", {Score: score}),
    ):
        assert (await caller.call("scorer", Score(x=4), answer=Scored, wait=5)).y == 2.0
    with server.client() as operator:
        assert operator.execute_command("ACL", "LOG") == []  # type: ignore[no-untyped-call]
