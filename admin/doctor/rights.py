"""What the user of Redis may do: less than its role needs, or more.

A server of version 7 is asked by a script that runs nothing (``permitted.lua``). An older one cannot tell:
there the commands of a role are tried in forms that change nothing, on keys that do not exist, and what else
the user may do stays unknown. What no role needs is never tried.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from streamlease.admin.doctor.findings import Finding, Level
from streamlease.admin.doctor.roles import ADMIN, CLIENT, EXECUTOR, HOST, NEWER, OBSERVER, ROLES, Role
from streamlease.protocol.errors import StoreRefused
from streamlease.registry.keys import FAILED_JOBS, WAITING_JOBS
from streamlease.registry.spawn_jobs import EXECUTOR_QUEUES
from streamlease.streams.redis.connection import Command, exchange, servers

if TYPE_CHECKING:
    from streamlease.agent.client import Client

NOBODY = "sl:{doctor}:nothing"
FOREIGN = "streamlease-doctor:{nothing}"
"""A key that is not Streamlease's. It is only asked about, never used."""

SHOWN = 6

_FORMS: dict[str, tuple[str | int, ...]] = {
    "asking": (), "cluster|slots": (), "command|info": ("get",), "exec": (), "info": (), "multi": (),
    "ping": (), "time": (), "select": (0,), "wait": (0, 1), "waitaof": (0, 0, 1),
    "scan": (0,), "script|load": ("return 0",), "evalsha": ("0" * 40, 0),
    "subscribe": (NOBODY,), "unsubscribe": (NOBODY,), "publish": (NOBODY, ""),
    "get": (NOBODY,), "hgetall": (NOBODY,), "hkeys": (NOBODY,), "hlen": (NOBODY,), "smembers": (NOBODY,),
    "type": (NOBODY,), "xinfo|stream": (NOBODY,), "xlen": (NOBODY,), "zcard": (NOBODY,), "del": (NOBODY,),
    "unlink": (NOBODY,), "exists": (NOBODY,), "sismember": (NOBODY, "m"), "hget": (NOBODY, "f"),
    "hmget": (NOBODY, "f"), "xrange": (NOBODY, "-", "+"),
    "xrevrange": (NOBODY, "+", "-"), "xread": ("STREAMS", NOBODY, "0"), "zrangebyscore": (NOBODY, 0, 0),
    "zscore": (NOBODY, "m"),
    "set": (NOBODY, "v", "XX"), "hdel": (NOBODY, "f"), "srem": (NOBODY, "m"), "zrem": (NOBODY, "m"),
    "expire": (NOBODY, 1), "pexpire": (NOBODY, 1), "xadd": (NOBODY, "NOMKSTREAM", "*", "f", "v"),
    "xdel": (NOBODY, "1-1"), "xtrim": (NOBODY, "MINID", "0"),
}  # fmt: skip
"""Arguments with which a command may be run on any server without changing anything."""

_ASKED_ONLY: dict[str, tuple[str | int, ...]] = {
    "hincrby": (NOBODY, "f", 1), "hset": (NOBODY, "f", "v"), "incr": (NOBODY,), "incrby": (NOBODY, 1),
    "sadd": (NOBODY, "m"), "zadd": (NOBODY, 1, "m"),
    "llen": (WAITING_JOBS,),
    "blmove": (WAITING_JOBS, f"{WAITING_JOBS}:intermediate", "LEFT", "RIGHT", 1),
    "lrange": (WAITING_JOBS, 0, 0), "lrem": (WAITING_JOBS, 0, "x"), "rpush": (WAITING_JOBS, "x"),
    "hexists": ("rq:worker:streamlease-x", "f"),
    "zremrangebyscore": (FAILED_JOBS, 0, 0),
}  # fmt: skip
"""The same for those that are only asked about."""

_ORDERS = {
    WAITING_JOBS: f"rq:queue:{EXECUTOR_QUEUES}x",
    f"{WAITING_JOBS}:intermediate": f"rq:queue:{EXECUTOR_QUEUES}x:intermediate",
    "rq:worker:streamlease-x": f"rq:worker:{EXECUTOR_QUEUES}x",
    FAILED_JOBS: f"rq:failed:{EXECUTOR_QUEUES}x",
}
"""The same keys of executors' queues: these are what executors and operators write."""

_OF_ORDERS = "orders "
"""In front of the name of a command that is asked about for an executor's queue."""

_BEYOND: tuple[tuple[str, Command], ...] = (
    ("read keys that are not Streamlease's", ("GET", FOREIGN)),
    ("write keys that are not Streamlease's", ("SET", FOREIGN, "x")),
    ("publish on channels that are not Streamlease's", ("PUBLISH", FOREIGN, "x")),
)
_QUEUE_WRITE: tuple[str, Command] = ("write the queue of spawn jobs", ("SET", WAITING_JOBS, "x"))
_DANGEROUS: tuple[Command, ...] = (
    ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "GET", "x"), ("CONFIG", "SET", "x", "y"), ("SWAPDB", 0, 1),
    ("SCRIPT", "FLUSH"), ("FUNCTION", "FLUSH"), ("FUNCTION", "LOAD", "x"), ("MIGRATE", "h", 1, NOBODY, 0, 1),
    ("ACL", "SETUSER", "x"), ("ACL", "LIST"), ("SHUTDOWN",), ("REPLICAOF", "h", 1), ("MODULE", "LOAD", "x"),
    ("DEBUG", "SLEEP", 0), ("CLIENT", "KILL", "x"), ("CLIENT", "PAUSE", 1), ("CLIENT", "LIST"), ("MONITOR",),
    ("KEYS", "x"), ("RESTORE", NOBODY, 0, "x"), ("RENAME", NOBODY, NOBODY), ("MOVE", NOBODY, 1),
    ("COPY", NOBODY, NOBODY), ("DUMP", NOBODY), ("EVAL", "return 0", 0), ("SORT", NOBODY), ("SAVE",),
    ("BGREWRITEAOF",), ("SLOWLOG", "GET"), ("FAILOVER",),
)  # fmt: skip
"""What no role has, the gravest first."""


class Rights(NamedTuple):
    """What the user lacks of the role that it has, or is nearest to, and what it has beyond that."""

    role: Role
    lacks: list[str]
    more: list[str] | None
    """None: the server cannot tell."""


async def examine(client: Client, wanted: Role | None = None) -> Rights:
    """Compare what the user may do with `wanted`, or with the largest role that it has all rights of.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite.
    """
    commands = {name: _command(name) for role in ROLES.values() for name in sorted(role.commands)}
    for name, command in [*commands.items()]:
        if any(word in _ORDERS for word in command):
            commands[f"{_OF_ORDERS}{name}"] = tuple(_ORDERS.get(str(word), word) for word in command)
    beyond = dict((*_BEYOND, _QUEUE_WRITE))
    beyond |= {_shown(command): command for command in _DANGEROUS}
    told = await _told(client, [*commands.values(), *beyond.values()])
    if told is None:
        tried = {name: command for name, command in commands.items() if name.partition("|")[0] in _TRIED}
        refused = set(await _refused(client, tried))
    else:
        refused = {name for name, answer in zip(commands, told, strict=False) if answer == 0}
    lacks = {role.name: sorted(map(_shown_name, _lacked(role, commands, refused))) for role in _BY_RIGHTS}
    role = wanted or next(
        (one for one in _BY_RIGHTS if not lacks[one.name]),
        min(_BY_RIGHTS, key=lambda one: len(lacks[one.name])),
    )
    if told is None:
        return Rights(role, lacks[role.name], None)
    permitted = {text for text, answer in zip(beyond, told[len(commands) :], strict=True) if answer == 1}
    if role is HOST:
        permitted -= {_QUEUE_WRITE[0]}
    ours = [
        _shown_name(name)
        for name in commands
        if not name.startswith(_OF_ORDERS) and name not in role.commands | refused | NEWER.keys()
    ]
    return Rights(role, lacks[role.name], [text for text in beyond if text in permitted] + sorted(ours))


def _lacked(role: Role, asked: Iterable[str], refused: set[str]) -> set[str]:
    """What a role needs and was refused: at the queue of leader hosts, or at those of executors."""
    if role in (HOST, OBSERVER):
        return {*(role.commands & refused)}
    return {
        name
        for name in role.commands
        if (f"{_OF_ORDERS}{name}" if f"{_OF_ORDERS}{name}" in asked else name) in refused
    }


_BY_RIGHTS = (HOST, EXECUTOR, ADMIN, CLIENT, OBSERVER)
_TRIED = {name.partition("|")[0] for name in _FORMS}


async def _told(client: Client, commands: Sequence[Command]) -> list[int] | None:
    """What the server says of each command: 1 permitted, 0 refused, -1 unknown; None if it cannot tell."""
    from streamlease.streams.redis.scripts import load_script

    script = load_script("streamlease.admin.doctor", "permitted")
    (server, *_) = await servers(client.redis)
    try:
        reply = await script.run(server, [], [json.dumps([str(word) for word in one]) for one in commands])
    except StoreRefused:  # this user may run no scripts, or no such script is understood
        return None
    return [int(answer) for answer in reply] if reply else None


async def _refused(client: Client, commands: dict[str, Command]) -> list[str]:
    (server, *_) = await servers(client.redis)
    found = []
    for name, command in commands.items():  # one by one: an error reply may end the connection
        if name in _FORMS and name not in ("subscribe", "unsubscribe", "exec", "multi", "asking"):
            (reply,) = await exchange(server, [command])
            text = str(reply) if isinstance(reply, ResponseError) else ""
            if "NOPERM" in text or "permission" in text:
                found.append(name)
    return found


def _command(name: str) -> Command:
    return (*name.upper().split("|"), *(_FORMS.get(name) or _ASKED_ONLY.get(name, ())))


def _shown_name(name: str) -> str:
    return name.upper().replace("|", " ")


def _shown(command: Command) -> str:
    two = command[0] in ("CONFIG", "SCRIPT", "FUNCTION", "ACL", "CLIENT", "MODULE", "SLOWLOG", "DEBUG")
    return " ".join(str(word) for word in command[: 2 if two and command[0] != "DEBUG" else 1])


def needed(found: Rights, *, asked: bool) -> Finding:
    """Whether the user may do what its role needs. Pure."""
    role, lacks = found.role, found.lacks
    if lacks:
        text = f"this user may not {', '.join(lacks[:SHOWN])}{_rest(lacks)}, which {_a(role)} needs"
        return Finding("rights", Level.FAIL, text, f"give it the rights of {_a(role)} of docs/redis.md")
    if asked:
        return Finding("rights", Level.OK, f"this user may do all that {_a(role)} does")
    what = {
        "observer": "this user may only look: views work, nothing else does",
        "client": "this user may publish, consume and lead as a client does, and is no host",
        "admin": "this user may do all that an operator does, and is no host",
        "host": "this user may do all that is needed, as a host or otherwise",
        "executor": "this user may do all that an executor does, and is no host",
    }
    return Finding("rights", Level.OK, what[role.name])


def excess(found: Rights, socket: str | None, embedded: Path | None = None) -> Finding:
    """Whether the user may do more than its role needs. Pure.

    Args:
        socket: the path of the Unix socket over which Redis is reached.
        embedded: the directory of the Redis that comes along, which has one user, if it is that.
    """
    name = "privileges"
    if found.more is None:
        return Finding(name, Level.OK, "what else this user may do, this server cannot tell: Redis 7 can")
    if not found.more:
        return Finding(name, Level.OK, f"no more than {_a(found.role)} needs")
    may = f"{', '.join(found.more[:SHOWN])}{_rest(found.more)}"
    if socket is not None:
        return Finding(name, Level.OK, f"whoever may open the socket {socket} may do everything")
    if embedded is not None:
        text = f"the embedded Redis has one user, who may do everything: whoever may read {embedded}"
        return Finding(name, Level.OK, text)
    text = f"this user may do more than {_a(found.role)} needs: {may}"
    return Finding(name, Level.WARN, text, "give each kind of process a user of its own (docs/redis.md)")


def _a(role: Role) -> str:
    return f"{'an' if role.name[0] in 'ao' else 'a'} {role.name}"


def _rest(names: Iterable[str]) -> str:
    more = len(list(names)) - SHOWN
    return f" and {more} more" if more > 0 else ""
