"""What stands in a Redis, as JSON that says the same on every server, and back.

Keys that end by themselves are left out: whoever held them has been gone for long.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from redis import Redis

HELD: dict[str, Callable[[Any, bytes], Any]] = {
    "string": lambda redis, key: _text(redis.get(key)),
    "hash": lambda redis, key: sorted(
        [_text(name), _text(value)] for name, value in redis.hgetall(key).items()
    ),
    "set": lambda redis, key: sorted((_text(one) for one in redis.smembers(key)), key=str),
    "zset": lambda redis, key: [
        [_text(one), rank] for one, rank in redis.zrange(key, 0, -1, withscores=True)
    ],
    "list": lambda redis, key: [_text(one) for one in redis.lrange(key, 0, -1)],
    "stream": lambda redis, key: [
        [_text(id), [_text(part) for pair in fields.items() for part in pair]]
        for id, fields in redis.xrange(key)
    ],
}


def dumped(redis: Redis) -> dict[str, Any]:
    """All keys, each with its type and what it holds."""
    keys = {}
    for key in sorted(redis.scan_iter(count=1000)):
        kind = redis.type(key).decode()
        if redis.pttl(key) == -1:
            keys[key.decode()] = [kind, HELD[kind](redis, key)]
    return keys


def restore(redis: Redis, keys: dict[str, Any]) -> None:
    """Write what was dumped into a Redis that is empty."""
    for key, (kind, held) in keys.items():
        match kind:
            case "string":
                redis.set(key, _bytes(held))
            case "hash":
                redis.hset(key, mapping={_bytes(name): _bytes(value) for name, value in held})
            case "set":
                redis.sadd(key, *map(_bytes, held))
            case "zset":
                redis.zadd(key, {_bytes(one): rank for one, rank in held})
            case "list":
                redis.rpush(key, *map(_bytes, held))
            case "stream":
                for id, parts in held:
                    redis.execute_command("XADD", key, _bytes(id), *map(_bytes, parts))
            case _:
                raise AssertionError(f"{key}: {kind}")


def _text(value: bytes) -> str | list[str]:
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        return [base64.b64encode(value).decode()]


def _bytes(value: str | list[str]) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value[0])
