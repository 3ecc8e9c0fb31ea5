"""The in-memory server answers as Redis does: the same random commands to both, and the same replies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.exceptions import ResponseError

from streamlease.streams.redis.connection import AsyncRedis, Command, connect, exchange
from streamlease.testing.memory.commands import COMMANDS
from streamlease.testing.memory.memory_connection import connect_redis
from streamlease.testing.memory.memory_server import MemoryServer

SEQUENCES = 25
LENGTH = 120
KEYS = ("G1", "G2", "H1", "H2", "S1", "S2", "Z1", "Z2", "X1", "X2")
NAMES = ("x", "y", "z", "")
LEX = ("L1", "L2")
"""Sorted by name: all their scores are equal."""


@pytest.fixture
async def redis(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(real_redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def memory() -> AsyncIterator[AsyncRedis]:
    client = connect_redis(MemoryServer())
    yield client
    await client.aclose()


class Commands:
    """Random commands, many of them about the same few keys, some of them wrong."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kind = "G"

    def key(self) -> str:
        """Mostly one that commands of this kind have used before."""
        return (
            f"{self.kind}{self.random.randint(1, 2)}"
            if self.random.random() < 0.9
            else self.random.choice(KEYS)
        )

    def name(self) -> str:
        return self.random.choice(NAMES)

    def number(self) -> str:
        return self.random.choice(("0", "1", "-3", "17", "x"))

    def id(self) -> str:
        if self.random.random() < 0.05:
            return self.random.choice(("x", "1-", "-1", "18446744073709551616-0"))
        first = self.random.randint(0, 9)
        return f"{first}-{self.random.randint(0, 3)}" if self.random.random() < 0.8 else str(first)

    def border(self, open: str) -> str:
        return self.random.choice((open, self.id(), self.id(), f"({self.id()}"))

    def count(self) -> tuple[str, ...]:
        return () if self.random.random() < 0.5 else ("COUNT", str(self.random.randint(1, 3)))

    def trimmed(self) -> tuple[str, ...]:
        how = self.random.choice(("MAXLEN", "MINID"))
        what = str(self.random.randint(0, 4)) if how == "MAXLEN" else self.id()
        return (how, *self.random.choice(((), ("=",))), what)

    def score(self) -> str:
        return self.random.choice(("0", "1", "2.5", "3", "-inf", "+inf", "(1"))

    def next(self) -> Command:
        name = self.random.choice(sorted({command.decode() for command in COMMANDS} - UNTOLD))
        self.kind = name[0] if name[0] in "HSZX" and name != "SET" else "G"
        return (name, *getattr(self, f"do_{name.lower()}", lambda: (self.key(),))())

    def do_set(self) -> Command:
        options = ((), ("NX",), ("XX",), ("KEEPTTL",), ("PX", "100000"))
        return self.key(), self.random.choice(("1", "41", "text")), *self.random.choice(options)

    def do_incrby(self) -> Command:
        return self.key(), self.number()

    def do_expire(self) -> Command:
        return self.key(), self.random.choice(("1000", "0", "-1", "x"))

    do_pexpire = do_expire

    def do_del(self) -> Command:
        return self.key(), self.key()

    do_unlink = do_exists = do_del

    def do_hget(self) -> Command:
        return self.key(), self.name()

    do_hexists = do_sismember = do_zscore = do_hget

    def do_hmget(self) -> Command:
        return self.key(), self.name(), self.name()

    do_hdel = do_sadd = do_srem = do_zrem = do_hmget

    def do_hset(self) -> Command:
        extra = self.random.choice(((), (self.name(), "2"), (self.name(),)))
        return self.key(), self.name(), self.random.choice(("1", "v")), *extra

    def do_hincrby(self) -> Command:
        return self.key(), self.name(), self.number()

    def do_zadd(self) -> Command:
        if self.random.random() < 0.4:
            return self.random.choice(LEX), "0", self.name()
        return self.key(), self.random.choice(("0", "1", "2.5")), self.name()

    def do_zrangebyscore(self) -> Command:
        options = ((), ("WITHSCORES",), ("LIMIT", "1", "2"))
        return self.key(), self.score(), self.score(), *self.random.choice(options)

    def do_zrangebylex(self) -> Command:
        return *self.do_zlexcount(), *self.random.choice(((), (), ("LIMIT", "1", "2"), ("LIMIT", "0", "-1")))

    def do_zlexcount(self) -> Command:
        borders = ("-", "+", *(f"{kind}{name}" for kind in "[(" for name in NAMES), "x", "-x")
        return self.random.choice(LEX), self.random.choice(borders), self.random.choice(borders)

    def do_xadd(self) -> Command:
        options = self.random.choice(((), (), ("NOMKSTREAM",)))
        trim = self.trimmed() if self.random.random() < 0.2 else ()
        id = self.id() if self.random.random() < 0.8 else f"{self.random.randint(0, 9)}-*"
        return self.key(), *options, *trim, id, "f", self.name(), *self.random.choice(((), (), ("g",)))

    def do_xrange(self) -> Command:
        return self.key(), self.border("-"), self.border("+"), *self.count()

    def do_xrevrange(self) -> Command:
        return self.key(), self.border("+"), self.border("-"), *self.count()

    def do_xtrim(self) -> Command:
        return self.key(), *self.trimmed()

    def do_xdel(self) -> Command:
        return self.key(), self.id(), self.id()


UNTOLD = {"TIME", "SCAN", "FLUSHALL", "FLUSHDB", "PTTL", "TTL"}
"""Their replies are not the same twice; they have tests of their own."""

UNORDERED = {"SMEMBERS", "HKEYS"}


def comparable(command: Command, reply: Any) -> Any:
    """A reply without what Redis leaves open: the order of sets, and the words of an error."""
    if isinstance(reply, ResponseError):
        return type(reply).__name__
    if command[0] in UNORDERED and isinstance(reply, list):
        return sorted(reply)
    if command[0] == "HGETALL" and isinstance(reply, list):
        return sorted(zip(reply[::2], reply[1::2], strict=True))
    return reply


@pytest.mark.timeout(120)
@pytest.mark.slow
async def test_random_commands_have_the_same_replies(redis: AsyncRedis, memory: AsyncRedis) -> None:
    replied: set[str] = set()
    for seed in range(SEQUENCES):
        commands = Commands(seed)
        sequence = [commands.next() for _ in range(LENGTH)]
        for client in (redis, memory):
            await exchange(client, [("DEL", *KEYS)])
        for number, command in enumerate(sequence):
            ((real,), (simulated,)) = [await exchange(client, [command]) for client in (redis, memory)]
            there, here = comparable(command, real), comparable(command, simulated)
            assert there == here, (seed, sequence[:number][-30:], command, real, simulated)
            if not isinstance(real, ResponseError):
                replied.add(str(command[0]))
    assert {name.decode() for name in COMMANDS} - UNTOLD - replied == set()


async def of_both(redis: AsyncRedis, memory: AsyncRedis, commands: list[Command]) -> list[Any]:
    """The replies of both, if they are the same."""
    real, simulated = await exchange(redis, commands), await exchange(memory, commands)
    assert simulated == real
    return simulated


async def test_lifetimes_are_told_in_the_same_way(redis: AsyncRedis, memory: AsyncRedis) -> None:
    replies = await of_both(
        redis,
        memory,
        [
            ("SET", "k", "1", "PX", 100_000), ("TTL", "k"), ("INCR", "k"), ("TTL", "k"), ("SET", "k", "1"),
            ("TTL", "k"), ("PTTL", "absent"), ("EXPIRE", "k", 50), ("TTL", "k"), ("DEL", "k"), ("TTL", "k"),
            ("HSET", "h", "f", "v"), ("EXPIRE", "h", 70), ("HDEL", "h", "f"), ("HSET", "h", "f", "v"),
            ("TTL", "h"), ("SCAN", 0, "MATCH", "h*", "COUNT", 100),
        ],
    )  # fmt: skip
    assert replies[1] == 100


async def test_a_blocking_read_gets_what_comes_and_gives_up_in_time(
    redis: AsyncRedis, memory: AsyncRedis
) -> None:
    async def read(client: AsyncRedis, ms: int, id: str) -> Any:
        return await exchange(client, [("XREAD", "COUNT", 5, "BLOCK", ms, "STREAMS", "s", "t", id, id)])

    found = []
    for client in (redis, memory):
        early = await read(client, 30, "0-0")
        reading = asyncio.create_task(read(client, 20_000, "$"))
        while not reading.done():
            await exchange(client, [("XADD", "t", "*", "f", "v")])
            await asyncio.wait([reading], timeout=0.05)
        ((name, entries),) = (await reading)[0]
        found.append((early, name, [fields for _, fields in entries][:1]))
    assert found[0] == found[1]


async def test_what_is_published_comes_to_those_who_listen(redis: AsyncRedis, memory: AsyncRedis) -> None:
    heard = []
    for client in (redis, memory):
        listening: Any = client.pubsub()
        await listening.subscribe("one", "two")
        said = [await listening.get_message(timeout=5) for _ in range(2)]
        counts = await exchange(client, [("PUBLISH", "two", "b"), ("PUBLISH", "three", "c")])
        said.append(await listening.get_message(timeout=5))
        await listening.unsubscribe("two")
        said.append(await listening.get_message(timeout=5))
        counts += await exchange(client, [("PUBLISH", "two", "d")])
        said.append(await listening.get_message(timeout=0.05))
        await listening.aclose()
        heard.append((said, counts))
    assert heard[0] == heard[1]


SCRIPTS: dict[str, str] = {
    "numbers": "return {1, -2, 3.9, tonumber('7')}",
    "until nothing": "return {1, redis.call('GET', 'absent'), 3, nil, 5}",
    "nothing": "return redis.call('GET', 'absent')",
    "truths": "return {true, 1, false}",
    "status": "return {redis.call('SET', 'k', 'v'), redis.call('GET', 'k'), redis.call('HSET', 'h', 'f', 1)}",
    "a written number": "redis.call('SET', 'k', 12345678901234) return redis.call('GET', 'k')",
    "a broken number": "redis.call('SET', 'k', 0.5) return redis.call('GET', 'k')",
    "types": "return {type(redis.call('GET', 'absent')), type(redis.call('SET', 'k', 1)), type(KEYS[9])}",
    "an entry": "redis.call('XADD', 's', '1-1', 'f', 'v') return redis.call('XRANGE', 's', '-', '+')",
    "an error reply": "return redis.error_reply('ERR mine')",
    "an error": "return redis.call('HGET', 'k')",
    "an error caught": "local r = redis.pcall('INCR', 'h') return {r['err'] ~= nil, type(r)}",
    "an error of Lua": "return nil .. 'x'",
    "decoded": "return cjson.decode('{\"a\": [1, \"b\", {\"c\": 2}]}')['a'][3]['c']",
    "arguments": "return {KEYS[1], ARGV[1], #KEYS, #ARGV, string.format('%.0f', ARGV[2] * 2)}",
}


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
async def test_scripts_run_in_the_same_way(redis: AsyncRedis, memory: AsyncRedis, text: str) -> None:
    replies = []
    for client in (redis, memory):
        await exchange(client, [("DEL", "k", "h", "s"), ("HSET", "h", "f", "1")])
        (digest,) = await exchange(client, [("SCRIPT", "LOAD", text)])
        (reply,) = await exchange(client, [("EVALSHA", digest, 1, "key", "arg", "21")])
        replies.append(comparable(("EVALSHA",), reply))
    assert replies[0] == replies[1]


async def test_a_script_that_is_not_loaded_and_a_command_that_is_none(
    redis: AsyncRedis, memory: AsyncRedis
) -> None:
    for command in (("EVALSHA", "0" * 40, 0), ("NOSUCH", "x"), ("HSET", "k"), ("XTRIM", "k", "ODD", 1)):
        errors = [(await exchange(client, [command]))[0] for client in (redis, memory)]
        assert [type(error) for error in errors] == [type(errors[0])] * 2
        assert isinstance(errors[0], ResponseError)
