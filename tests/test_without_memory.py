"""Scripts on a Redis at its `maxmemory`: what is bounded is written all the same, and what is not is refused.

`tests/house/test_lua_files.py` says which are refused. What becomes of whole programs is in
`tests/leader/test_out_of_memory.py` and `tests/epochs/test_epochs_out_of_memory.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import pytest

from streamlease.protocol.errors import StoreRefused
from streamlease.registry import keys
from streamlease.registry.members.member_records import GatewaySigns
from streamlease.services.directory import Directory
from streamlease.services.keys import answers
from streamlease.services.lives import Lives, make_stream
from streamlease.streams.redis.connection import Argument, AsyncRedis, Command, ask, connect
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.tasks import Supervisor
from tests.streams.helpers import full


class Act(NamedTuple):
    """A call of a script, what stands there before it, and how its reply begins; None: it is refused."""

    script: str
    keys: Sequence[str]
    args: Sequence[Argument]
    reply: Any
    before: Sequence[Command] = ()


ENTERED = ("HSET", "{s}w", "one", "3 token 1 1 5 here", "!lines", 1)
ACTS = [
    Act("registry/heir", ["{g}l"], ["host", 1, 5000], 1, [("HSET", "{g}l", "term", 1)]),
    Act("registry/remember", ["secrets"], ["name", "word", 60], b"word"),
    Act("registry.members/take_member", ["m", "n", "p"], ["", "gateway", "address", 9000, "f", "v"], 1),
    Act("registry.members/keep_member", ["m"], ["3", 9000, 1, "f", "v"], 1, [("HSET", "m", "arrival", 3)]),
    Act("registry.members/end_member", ["m"], ["3", 0], 1, [("HSET", "m", "arrival", 3)]),
    Act("registry.members/hold_channel", ["c"], ["old", "new", 9000], 1, [("SET", "c", "old")]),
    Act("registry.members/hold_channel", ["c"], ["", "new", 9000], None),
    Act("registry.webhooks/claim_webhooks", ["{w}s", "{w}p", "{w}f"], [1, 1], [b"held", b"0"]),
    Act(
        "registry.webhooks/settle_webhooks",
        ["{w}s", "{w}p", "{w}f"],
        [1, 1, "id", "t" * 24, "standing"],
        [b"held", b"0", 1],
        [("HSET", "{w}s", "id", "t" * 24 + "{}"), ("HSET", "{w}f", "generation", 1, "epoch", 1)],
    ),
    Act(
        "services/services",
        ["rows", "alive", "types", "changes", "processes", "owned"],
        ["news", "told", "hold", "a.1", 9000, 0, "svc", '{"digest":"d"}', "d", "{}", ",,"],
        [b"held"],
    ),
    Act(
        "catalog/process",
        ["processes", "owned", "changes", "rows", "tokens", "refused", "written"],
        ["p", 9000, "told", "services", "", "", "", "me", "mark", "services", "key", "row"],
        1,
    ),
    Act("streams.publish/answer_once", ["o"], ["claim", "me", "print", 9, 9, 9], None),
    Act(
        "streams.publish/answer_once",
        ["o"],
        ["settle", "me", "answer", 9000],
        [b"kept"],
        [("HSET", "o", "owner", "me")],
    ),
    Act("streams.publish/answer_once", ["o"], ["let_go", "me"], [b"left"], [("HSET", "o", "owner", "me")]),
    Act("streams.publish.staged/decide", ["d"], [1, "", "plan"], [b"decided", b"0", b"plan"]),
    Act(
        "streams.publish.staged/decide",
        ["d"],
        [1, "", "other"],
        [b"decided", b"0", b"plan"],
        [("HSET", "d", "batch", 1, "version", 0, "plan", "plan")],
    ),
    Act("streams.publish.staged/stage", ["t"], [1, 1, 9, "f", "v"], None),
    Act("streams.publish.staged/register", ["r"], [9, "0 s.0.0 token"], None),
    Act("streams.log/raise", ["m"], [5, "news"], [b"raised", 0], [("HSET", "m", "next", 0, "state", "open")]),
    Act("streams.log/schema", ["m"], [1, "print", "[]"], [b"set"], [("HSET", "m", "next", 0)]),
    Act(
        "streams.spaces/note_topics",
        ["{s}t", "{s}o", "{s}c", "{s}d"],
        ["told", 10, "space", "a/1", "row"],
        1,
        [("HSET", "{s}d", "space", "{}")],
    ),
    Act("streams.spaces/note_lineage", ["{s}w", "{s}s"], [], 1),
    Act(
        "streams.collections/take_snapshot",
        ["{s}m", "{s}n", "{s}e", "{s}f", "{s}l"],
        [0, 0, "token", 0, 0, "{}", 9, 0, ""],
        [b"taken", 1],
        [("HSET", "{s}m", "next", 0)],
    ),
    Act("streams.epochs/rest", ["{s}w"], [9000], [b"resting"]),
    Act("streams.epochs/seal_epochs", ["{s}w", "{s}l"], ["news", "{}"], [b"sealed", 1]),
    Act("streams.epochs/take_over", ["{s}s"], [1], [b"taken"]),
    Act("streams.epochs/snapshot", ["{s}s", "{s}l"], [1, 0, "{}", 0, ""], [b"kept"]),
    Act(
        "streams.epochs/forget",
        ["{s}b", "{s}a", "{s}s"],
        [1, 2, "s.0.0", 7],
        [b"forgotten", 1],
        [("XADD", "{s}b", "1-0", "b", "{}"), ("XADD", "{s}b", "2-0", "b", "{}")],
    ),
    Act("streams.epochs/enter", ["{s}w", "{s}l", "{s}s"], ["one", "t", 0, '""', "news", 9], None),
    Act(
        "streams.epochs/enter",
        ["{s}w", "{s}l", "{s}s"],
        ["one", "other", 0, '""', "news", 9],
        [b"entered"],
        [ENTERED],
    ),
    Act("streams.epochs/line", ["{s}w", "{s}l"], ["one", 3, "token", 0], [b"alive", 1], [ENTERED]),
    Act(
        "streams.epochs/line",
        ["{s}w", "{s}l"],
        ["one", 3, "token", 2, "left", "news", "{}"],
        [b"written", 2],
        [ENTERED],
    ),
    Act("streams.epochs/lose", ["{s}w", "{s}l"], ["one", 3, "", "news", "{}"], [b"lost", 2], [ENTERED]),
    Act("streams.epochs/drop", ["{s}p", "{s}t", "{s}e"], ["one", 3, "-", 9, "0 one 3"], [b"dropped", 0]),
]


@pytest.fixture
async def redis(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(real_redis_url)
    yield client
    await client.aclose()


def told(act: Act) -> str:
    """A name of the case that says what is expected."""
    return f"{act.script}-{'refused' if act.reply is None else 'written'}"


@pytest.mark.parametrize("act", ACTS, ids=told)
async def test_what_is_written_without_memory(redis: AsyncRedis, real_redis_url: str, act: Act) -> None:
    if act.before:
        await ask(redis, act.before)
    room, _, name = act.script.partition("/")
    script = load_script(f"streamlease.{room}", name)
    with full(real_redis_url):
        if act.reply is None:
            with pytest.raises(StoreRefused, match="out of memory"):
                await script.run(redis, act.keys, act.args)
            return
        reply = await script.run(redis, act.keys, act.args)
    assert (reply[: len(act.reply)] if isinstance(act.reply, list) else reply) == act.reply


async def test_a_gateway_lives_without_memory(redis: AsyncRedis, real_redis_url: str) -> None:
    """Else others would take its members over."""
    signs = GatewaySigns(redis)
    with full(real_redis_url):
        await signs.give("new", 9000)
        await signs.give("new", 9000)
        assert await signs.alive("new")
    (left,) = await ask(redis, [("PTTL", keys.gateway("new"))])
    assert 1000 < left <= 9000


async def test_a_server_of_a_service_begins_without_memory(redis: AsyncRedis, real_redis_url: str) -> None:
    directory = Directory(redis, Supervisor("never asked", lambda *_: None))
    lives = Lives(redis, "endpoint", 60_000, directory)
    await make_stream(redis, answers("endpoint"), "endpoint", 60_000)
    await lives.begin()
    with full(real_redis_url):
        await lives.begin()
    assert (lives.address, lives.holds) == ("endpoint.2", True)
    (entries,) = await ask(redis, [("XRANGE", answers("endpoint"), "-", "+")])
    assert len(entries) == 3, "whoever reads is woken each time"
