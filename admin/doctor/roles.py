"""What each kind of process may do in Redis: the one table from which docs, `doctor` and tests are made.

============ ================================================================================
role         who
============ ================================================================================
``client``   publishes, consumes, runs Spark queries, and leads groups where no host runs
``host``     ``streamlease serve``: what a client does, and the queue of spawn jobs
``observer`` looks: every view, the page, ``doctor``; writes nothing
``admin``    an operator: what a client does, and what an observer sees
============ ================================================================================

Each command stands here by name: a category such as ``@write`` grows with every version of Redis, and holds
FLUSHALL, SWAPDB, MIGRATE and FUNCTION FLUSH today. CONFIG GET is nobody's: it tells the passwords of the
server. Scripts run with the rights of their caller, so EVALSHA lets nobody do more than he may without.

Between clients and operators there is no wall around the data of Streamlease itself: any client may come to
lead any group, and a leader writes journals, floors and definitions. What a role keeps out is everything
else: the server, the keys of others, and the queue from which hosts take jobs.

Keys in ``reads`` are written ``%R~``, which Redis knows from version 7 on; before, they are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlease.registry.keys import FAILED_JOBS, QUEUE, WAITING_JOBS
from streamlease.registry.spawn_jobs import KINDS

OURS = "sl:*"


@dataclass(frozen=True, slots=True)
class Role:
    """A user of Redis; commands in lower case, subcommands behind a ``|``."""

    name: str
    who: str
    commands: frozenset[str]
    keys: tuple[str, ...]
    """Patterns of keys that it reads and writes, as far as its commands do."""
    reads: tuple[str, ...] = ()
    """Patterns of keys that it only reads."""

    def rules(self) -> list[str]:
        """The rules for ``ACL SETUSER``, all but the password."""
        return [
            "reset",
            "on",
            *(f"~{key}" for key in self.keys),
            *(f"%R~{key}" for key in self.reads),
            f"&{OURS}",
            "-@all",
            *(f"+{command}" for command in sorted(self.commands)),
        ]

    def line(self) -> str:
        """The whole command, with ``PASSWORD`` where the password belongs."""
        first, on, *rest = self.rules()
        return " ".join(["ACL SETUSER", self.name, first, on, ">PASSWORD", *rest])


NEWER = {"waitaof": "Redis 7.2"}
"""Commands that older servers do not know, and from when on they are known."""

_CONNECTION = frozenset({"ping", "select", "info", "time", "command|info", "cluster|slots", "asking"})
_LOOK = frozenset(
    {
        "exists", "get", "hget", "hgetall", "hkeys", "hlen", "hmget", "sismember", "smembers", "type",
        "xinfo|stream", "xlen", "xrange", "xread", "xrevrange", "zcard", "zrangebyscore", "evalsha",
        "script|load", "subscribe", "unsubscribe",
    }
)  # fmt: skip
_WRITE = frozenset(
    {
        "del", "expire", "hdel", "hincrby", "hset", "incr", "incrby", "pexpire", "publish", "sadd", "set",
        "srem", "unlink", "wait", "waitaof", "xadd", "xdel", "xtrim", "zadd", "zrem",
    }
)  # fmt: skip
_SURVEY = frozenset({"scan", "llen"})
_QUEUE = frozenset(
    {"blmove", "exec", "hexists", "llen", "lrange", "lrem", "multi", "rpush", "zremrangebyscore"}
)

_CLIENT = _CONNECTION | _LOOK | _WRITE

CLIENT = Role("client", "publishers, consumers, Spark queries", _CLIENT, (OURS,))
HOST = Role(
    "host",
    "`streamlease serve`",
    _CLIENT | _QUEUE,
    (
        OURS,
        f"{WAITING_JOBS}*",
        *(f"rq:job:{kind.id_prefix}*" for kind in KINDS.values()),
        FAILED_JOBS,
        "rq:queues",
        "rq:workers",
        f"rq:workers:{QUEUE}",
        "rq:worker:streamlease-*",
    ),
)
OBSERVER = Role(
    "observer",
    "views, `streamlease ui` without a token, `doctor`",
    _CONNECTION | _LOOK | _SURVEY,
    (OURS,),
    (WAITING_JOBS, FAILED_JOBS),
)
ADMIN = Role(
    "admin",
    "operators: every command, `streamlease ui` with a token",
    _CLIENT | _SURVEY,
    (OURS,),
    (WAITING_JOBS, FAILED_JOBS),
)
ROLES = {role.name: role for role in (CLIENT, HOST, OBSERVER, ADMIN)}
