"""What the user of Redis may do, tried with commands that change nothing: on keys that do not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from streamlease.admin.findings import Finding, Level
from streamlease.streams.connection import Command, exchange

if TYPE_CHECKING:
    from streamlease.agent.client import Client

NOBODY = "sl:{doctor}:nothing"
OF_RQ = "rq:streamlease-doctor"
NO_SCRIPT = "0" * 40

WRITES: tuple[Command, ...] = (
    ("XADD", NOBODY, "NOMKSTREAM", "*", "f", "v"),
    ("SET", NOBODY, "v", "XX"),
    ("HDEL", NOBODY, "f"),
    ("SREM", NOBODY, "m"),
    ("ZREM", NOBODY, "m"),
    ("PEXPIRE", NOBODY, 1),
    ("UNLINK", NOBODY),
    ("PUBLISH", NOBODY, ""),
)
"""What publishers, consumers and leaders do."""

READS: tuple[Command, ...] = (
    ("EVALSHA", NO_SCRIPT, 0),
    ("SCRIPT", "LOAD", "return 0"),
    ("XRANGE", NOBODY, "-", "+", "COUNT", 1),
    ("HMGET", NOBODY, "f"),
    ("SMEMBERS", NOBODY),
    ("SCAN", 0, "COUNT", 1),
)
"""What every view needs."""

QUEUE: tuple[Command, ...] = (("SET", OF_RQ, "v", "XX"), ("ZREM", OF_RQ, "m"))
"""What leader hosts do besides."""


async def rights(client: Client) -> Finding:
    """What of that is refused.

    Raises:
        StoreUnavailable, Indefinite.
    """
    from streamlease.streams.connection import is_cluster

    reads = await _refused(client, READS)
    writes = await _refused(client, WRITES)
    queue = [] if is_cluster(client.redis) else await _refused(client, QUEUE)
    remedy = "give the user the rights of docs/redis.md"
    if reads:
        return Finding("rights", Level.FAIL, f"this user may not {', '.join(reads)}: views fail", remedy)
    if len(writes) >= len(WRITES) - 1:
        return Finding("rights", Level.OK, "this user may only read: views work, nothing else does")
    if writes:
        text = f"this user may not {', '.join(writes)}: publishing, consuming or leading fails"
        return Finding("rights", Level.FAIL, text, remedy)
    if queue:
        text = "this user may not use the keys rq:*: leader hosts fail, all else works"
        return Finding("rights", Level.WARN, text, remedy)
    return Finding("rights", Level.OK, "this user may do all that is needed")


async def _refused(client: Client, commands: tuple[Command, ...]) -> list[str]:
    found = []
    for command in commands:  # one by one: an error reply may end the connection
        (reply,) = await exchange(client.redis, [command])
        text = str(reply) if isinstance(reply, ResponseError) else ""
        if isinstance(reply, ResponseError) and ("NOPERM" in text or "permission" in text):
            found.append(" ".join(str(word) for word in command[: 2 if command[0] == "SCRIPT" else 1]))
    return found
